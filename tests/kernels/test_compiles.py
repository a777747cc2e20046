"""Every kernel compiles for GPUs of several kinds and finds its shared memory there. No GPU is needed: `compile_all.py`
runs in a process of its own for each, because what it pretends holds for a whole process."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import seesay

SCRIPT = Path(__file__).with_name("compile_all.py")
GPUS = [(89, "bfloat16"), (90, "bfloat16"), (89, "float32")]
"""Compute capability, and type. float32 has the same tiles on all, so the smallest shared memory decides. 8.0 takes the
tiles of 9.0 and the instructions of 8.9."""


TIMEOUT_S = 1800
"""For compilers that hang and compute nothing. `compile_all.py` bounds its processor time itself: how long that takes
depends on what else the machine does."""


@pytest.fixture
def compiled(pytestconfig: pytest.Config, tmp_path: Path) -> Path:
    """Triton's own cache, whose keys have the sources: what was compiled by an earlier run is not compiled again."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    return tmp_path if cache is None else cache.mkdir("kernels")


pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.timeout(TIMEOUT_S + 60),
]


def test_each_kernel_compiles_for_its_first_call(compiled: Path) -> None:
    check("90", "bfloat16", "once", cache=compiled)


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "dtype"), GPUS)
def test_kernels_compile_and_fit(capability: int, dtype: str, compiled: Path) -> None:
    check(str(capability), dtype, cache=compiled)


TOO_LARGE = {"seesay.kernels.tower:segment_kernel"}
"""Needs more memory than a work group of gfx942 has. Towers are computed by torch there."""


@pytest.mark.slow
def test_kernels_compile_for_amd(compiled: Path) -> None:
    """All but those whose modules say that they are NVIDIA's alone."""
    report = compile_for("gfx942", "bfloat16", "once", cache=compiled)
    assert {problem.split()[0] for problem in report["problems"]} == TOO_LARGE, "\n".join(report["problems"])
    left_out = {name.partition(":")[0] for name in report["unused"]}
    marked = {module for module in left_out if getattr(importlib.import_module(module), "NVIDIA_ALONE", False)}
    assert left_out == marked != set()


def test_kernels_with_assembly_are_marked() -> None:
    """Inline assembly is PTX. It is in modules that say so, or in branches for NVIDIA (`HAS_PTX`), which is true of no
    other GPU."""
    package = Path(seesay.__file__).parent
    for path in (package / "llm").rglob("*.py"):
        given = re.findall(r"HAS_PTX\"?(?:=|: )(?!tl)(\w*)", path.read_text())
        assert set(given) <= {"has_ptx"}, path
    for path in (package / "kernels").rglob("*.py"):
        text = path.read_text()
        if "inline_asm_elementwise" in text:
            assert "NVIDIA_ALONE = True" in text or "if HAS_PTX:" in text or "elif HAS_PTX:" in text, path


def check(*arguments: str, cache: Path) -> None:
    """Nothing that `compile_all.py` compiles has a problem. For 9.0 it calls every kernel."""
    report = compile_for(*arguments, cache=cache)
    assert not report["problems"], "\n".join(report["problems"])
    assert not report["unused"] or arguments[:2] != ("90", "bfloat16")


def compile_for(*arguments: str, cache: Path) -> dict[str, Any]:
    """Return the report of `compile_all.py`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(seesay.__file__).parents[1]),
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_INTERPRET": "0",
    }
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr}"
    report = json.loads(done.stdout.splitlines()[-1])
    if "unavailable" in report:
        pytest.skip(f"this Triton cannot compile without a GPU: {report['unavailable']}")
    found: dict[str, Any] = report
    return found


def test_no_kernel_is_compiled_again_where_ranks_lie_elsewhere() -> None:
    """A start calls the kernels of one layer of each kind; those of each layer lie at another place of one tensor."""
    kernels = importlib.import_module("seesay.kernels.low_rank"), importlib.import_module("seesay.kernels.low_rank_row")
    found = [
        parameter.do_not_specialize_on_alignment
        for module in kernels
        for kernel in vars(module).values()
        for parameter in getattr(kernel, "params", ())
        if parameter.name == "ranks_ptr"
    ]
    assert found == [True] * 4


def test_masks_of_any_width_take_the_kernel_of_the_start() -> None:
    """Masks may have more words than the vocabulary has, as those of a start have."""
    kernel = importlib.import_module("seesay.kernels.token_masks").mask_kernel
    assert [each.name for each in kernel.params if each.do_not_specialize] == ["num_words"]
