"""tools/mutants.py makes faults that matter, in a copy, and tells those that a test notices from the others."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools import mutants, single_faults
from tools.mutants import describe, draw_faults, find_test_files, list_modules, read_equivalent
from tools.single_faults import Fault, find_faults

MODULE = '''
def clamp(value: int, limit: int = 10) -> int:
    """Return the value, 3 at most."""
    assert value != 4
    if value > limit:
        return limit
    return value
'''
TEST = """
from seesay.sizes import clamp


def test_limits():
    assert clamp(11) == 10 and clamp(5) == 5 and clamp(10) == 10
"""


def list_changes(source: str) -> list[str]:
    faults = find_faults(source.encode(), "a.py")
    for fault in faults:
        ast.parse(fault.apply(source.encode()))
    return [f"{' '.join(fault.before.split())} -> {' '.join(fault.after.split())}" for fault in faults]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a < b -> (a <= b)"]),
        ("a is b", ["a is b -> (a is not b)"]),
        ("a < b < c", ["a < b < c -> (a < b <= c)", "a < b < c -> (a <= b < c)"]),
        ("x = 3", ["3 -> 2", "3 -> 4"]),
        ("x = 0", ["0 -> 1"]),
        ("x = True", ["True -> False"]),
        ("x = 0.5", ["0.5 -> 1.0"]),
        ("x = a + b", ["a + b -> (a - b)"]),
        ("x = 'a' + b", []),
        ("Kind = int | None", []),
        ("x = not a", ["not a -> (a)"]),
        ("x = a and b", ["a and b -> (a or b)", "a and b -> (a)", "a and b -> (b)"]),
        ("x = f(a, b)", ["f(a, b) -> f(b, a)"]),
        ("x = max(a, b)", ["max -> min"]),
        ("x = queue.popleft()", ["queue.popleft -> queue.pop"]),
        ("held.release()", ["held.release() -> pass"]),
        ("del a[b]", ["del a[b] -> pass"]),
        ("total += a", ["total += a -> pass", "total += a -> total -= a"]),
        ("self.total = a + b", ["self.total = a + b -> pass", "a + b -> (a - b)"]),
        ("if a: b = c", ["a -> (not (a))"]),
        ("if not a: b = c", ["not a -> (a)"]),
        ("while a:\n    b = c", ["a -> (not (a))", "b = c -> b = c break"]),
        ("for a in b:\n    if a:\n        continue\n    c = a", [
            "a -> (not (a))", "continue -> pass", "c = a -> c = a break"
        ]),
        ("def f():\n    if a:\n        return b\n    return c", ["a -> (not (a))", "return b -> pass"]),
        ("x = [a for a in b if a]", ["a -> (not (a))"]),
        ("raise ValueError(f'{a + 1} of {b < c}', 3)", ["raise ValueError(f'{a + 1} of {b < c}', 3) -> pass"]),
    ],
)  # fmt: skip
def test_faults_of_each_kind(source: str, expected: list[str]) -> None:
    assert sorted(list_changes(source)) == sorted(expected)


@pytest.mark.parametrize(
    "source",
    [
        '"""A text of 3."""',
        "x: Literal[3] = a",
        "@dataclass(frozen=True)\nclass A:\n    x: int",
        "assert a < 3",
        "logger.warning('%d', a + 1)",
        "x = f'{a + 1}'",
        "if TYPE_CHECKING:\n    x = 3",
        "Thread(daemon=True, name=f'{a + 1}')",
        "import a",
    ],
)
def test_what_only_people_read_has_no_faults(source: str) -> None:
    assert [change for change in list_changes(source) if not change.endswith("-> pass")] == []


def test_every_fault_changes_the_module_and_none_of_the_rest() -> None:
    """Of a module that has most of Python, with letters of several bytes: this one's tool."""
    source = Path(single_faults.__file__).read_bytes() + "\nx = ('ä', a < 1)\n".encode()
    faults = find_faults(source, "tools/single_faults.py")
    assert len(faults) > 150 and len({(fault.start, fault.stop, fault.after) for fault in faults}) == len(faults)
    for fault in faults:
        changed = fault.apply(source)
        assert changed != source and source[fault.start : fault.stop].decode() == fault.before
        ast.parse(changed)
    assert {"find_faults", "_Finder.visit", "<module>"} <= {fault.scope for fault in faults}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "seesay" / "parts").mkdir(parents=True)
    (root / "tests" / "parts").mkdir(parents=True)
    (root / "seesay" / "__init__.py").write_text("")
    (root / "seesay" / "sizes.py").write_text(MODULE)
    (root / "seesay" / "parts" / "inner.py").write_text("x = 3\n")
    (root / "tests" / "test_sizes.py").write_text(TEST)
    (root / "notes.txt").write_text("a note")
    return root


def test_the_seed_says_which_faults_are_drawn(project: Path) -> None:
    modules = list_modules(["seesay"], project)
    assert modules == ["seesay/__init__.py", "seesay/parts/inner.py", "seesay/sizes.py"]
    everything = draw_faults(modules, None, 0, project)
    assert draw_faults(modules, 3, 1, project) == draw_faults(modules, 3, 1, project)
    assert len({tuple(draw_faults(modules, 3, seed, project)) for seed in range(9)}) > 1
    assert draw_faults(modules, 100, 5, project) == everything
    assert set(draw_faults(modules, 3, 1, project)) < set(everything)


def test_the_file_that_matches_a_module_is_the_nearest_of_its_name(project: Path) -> None:
    assert find_test_files("seesay/sizes.py", project) == ["tests/test_sizes.py"]
    assert find_test_files("seesay/parts/_sizes.py", project) == ["tests/test_sizes.py"]
    (project / "tests" / "parts" / "test_sizes.py").write_text("")
    assert find_test_files("seesay/parts/sizes.py", project) == ["tests/parts/test_sizes.py"]
    assert find_test_files("seesay/parts/inner.py", project) == []


def test_modules_of_one_part_have_its_test_file_too() -> None:
    root = mutants.ROOT
    for folder, (own, *others) in mutants._PARTS.items():
        assert (root / folder).is_dir() and all((root / file).is_file() for file in (own, *others))
    found = find_test_files("seesay/llm/scheduling/preemption.py")
    assert found == ["tests/llm/scheduling/test_preemption.py", "tests/llm/scheduling/test_scheduler.py"]
    assert mutants.find_wider_tests("seesay/llm/scheduling/preemption.py") == [
        "tests/llm/test_scheduler_random.py", "tests/llm/scheduling", *(f"--ignore={file}" for file in found)
    ]  # fmt: skip


def test_a_copy_is_changed_and_the_tree_is_not(project: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copy"
    mutants.copy_tree(project, copied)
    assert (copied / "notes.txt").is_symlink() and (copied / "notes.txt").read_text() == "a note"
    fault = draw_faults(["seesay/sizes.py"], None, 0, project)[0]
    with mutants.put(fault, copied):
        assert (copied / fault.path).read_text() != MODULE
        assert (project / fault.path).read_text() == MODULE
    assert (copied / fault.path).read_text() == MODULE


def test_faults_that_change_nothing_are_named_without_their_lines(tmp_path: Path) -> None:
    fault = Fault("a.py", "A.f", 7, 0, 5, "a <\n  b", "(a <= b)", "if a <")
    assert fault.key == "a.py A.f: a < b -> (a <= b) in if a <" and str(fault) == "a.py:7 A.f: a < b -> (a <= b)"
    listed = tmp_path / "equal.txt"
    listed.write_text(f"# they are never equal\n{fault.key}\n\n")
    assert read_equivalent(listed) == {fault.key} and read_equivalent(tmp_path / "none") == set()


def test_listed_faults_still_exist() -> None:
    """Each has a reason, and is a fault of the module as it is now."""
    lines = mutants.EQUIVALENT.read_text(encoding="utf-8").splitlines()
    assert not lines or lines[0].startswith("#")
    keys = read_equivalent()
    paths = {key.split(" ")[0] for key in keys}
    assert keys <= {fault.key for fault in draw_faults(sorted(paths), None, 0)}


def test_the_score_leaves_out_what_changes_nothing() -> None:
    counts = Counter({"caught": 6, "caught late": 1, "caught by the folder": 2, "survived": 1, "equivalent": 5})
    assert describe(counts, 20) == (
        "9 of 10 faults caught (90.0 %), 6 by the matching file within 20 s (60.0 %); 5 more change nothing"
    )


def test_a_run_tells_what_tests_notice_from_what_they_do_not(project: Path) -> None:
    """In a process of its own, which forks."""
    (project / "tools").mkdir()
    for name in ("mutants.py", "single_faults.py"):
        (project / "tools" / name).write_text(Path(mutants.__file__).with_name(name).read_text())
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow']\n")
    (project / "seesay" / "sizes.py").write_text(MODULE + "\n\nUNUSED = 7\n")
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutants", "seesay/sizes.py", "--all"],
        check=False,
        capture_output=True,
        text=True,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    results = {line.split("  (")[0].split(": ", 1)[1]: line.split()[0] for line in lines[1:-1]}
    assert results == {
        "10 -> 9": "caught",
        "10 -> 11": "caught",
        "value > limit -> (value >= limit)": "survived",
        "return limit -> pass": "caught",
        "7 -> 6": "survived",
        "7 -> 8": "survived",
    }
    assert "test_sizes.py::test_limits" in done.stdout
    assert lines[-1].startswith("3 of 6 faults caught (50.0 %), 3 by the matching file within 20 s (50.0 %)")
    assert (project / "seesay" / "sizes.py").read_text() == MODULE + "\n\nUNUSED = 7\n"
