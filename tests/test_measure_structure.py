"""The figures of tools/measure_structure.py count what they say, and the package stays within their limits."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools import measure_structure
from tools.measure_structure import MOST_METHODS, complexity, measure

TOOL = Path(measure_structure.__file__)


def complexity_of(body: str) -> int:
    return complexity(ast.parse(f"def f(a, b):\n    {body}").body[0])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a", 1),
        ("return a if b else 0", 2),
        ("return a and b and f", 3),
        ("return [x for x in a if x if b]", 4),
        ("return lambda: a or b", 2),
        ("while a: b()", 2),
        ("def g(): return a or b", 1),
    ],
)
def test_complexity_counts_every_way_through_a_function(body: str, expected: int) -> None:
    assert complexity_of(body) == expected


def test_figures_count_what_stands_in_the_files(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(MOST_METHODS + 1))
    overloads = "    @overload\n    def m0(self, x): ...\n"
    (package / "large.py").write_text(
        "class Large:\n" + overloads + methods + "x: Any = 1  # noqa: E501\n" + "y = 1\n" * 483
    )
    branches = "".join(f"    if a == {number}: return {number}\n" for number in range(10))
    (package / "branched.py").write_text("def branched(a):\n" + branches)
    (package / "kernels").mkdir()
    (package / "kernels" / "kernel.py").write_text("def kernel(a):\n" + branches)
    classes, functions, exceptions, anys, files, lines = measure(package)
    assert classes.places == ("house/large.py:1 Large 13",)
    assert functions.places == ("house/branched.py:1 branched 11",)
    assert exceptions.places == ("house/large.py:17 # noqa: E501",)
    assert files.places == ("house/large.py 500",)
    assert lines.value == 522 and anys.value == round(1000 / 522, 2)


def test_the_package_stays_within_the_limits_and_the_command_prints_every_figure() -> None:
    figures = measure()
    over = {each.name: each.value for each in figures if each.limit is not None and each.value > each.limit}
    assert not over, f"see python {TOOL.name} --list"
    done = subprocess.run(
        [sys.executable, str(TOOL), "--list"], check=True, capture_output=True, text=True, timeout=120
    )
    printed = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" " * 12)]
    assert printed == [f"{each.value:g}" for each in figures]
