"""All that is particular to a device is asked of `seesay.device`: no other code names CUDA."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import seesay

PACKAGE = Path(seesay.__file__).parent
ALLOWED = {"device/cuda.py", "kernels/absent_gpu.py", "kernels/gpu.py"}
"""`torch.cuda` behind the seam, and what Triton's kernels, which are below it, ask of NVIDIA's GPUs."""


def find_cuda(source: str) -> Iterator[str]:
    """Yield what names CUDA: `torch.cuda`, however imported, `.cuda()`, `.is_cuda`, and comparisons of a device's type
    with 'cuda'."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Attribute(attr="extra"), attr="cuda"):
                pass  # Triton's intrinsics in kernels, which ask for them by a constant: `gpu.has_dependent_launch`
            case ast.Attribute(attr="cuda"):
                yield f"line {node.lineno}: .cuda"
            case ast.Attribute(attr="is_cuda"):
                yield f"line {node.lineno}: .is_cuda"
            case ast.Import(names=names) if any(name.name.startswith("torch.cuda") for name in names):
                yield f"line {node.lineno}: import torch.cuda"
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch.cuda") or (
                module == "torch" and any(name.name == "cuda" for name in names)
            ):
                yield f"line {node.lineno}: from torch.cuda"
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value="cuda"), *_]):
                yield f"line {node.lineno}: getattr(…, 'cuda')"
            case ast.Compare() if _is_about_cuda(node):
                yield f"line {node.lineno}: a comparison with 'cuda'"


def _is_about_cuda(node: ast.Compare) -> bool:
    """Whether the type of a device is compared with 'cuda', alone or in a tuple."""
    sides = [node.left, *node.comparators]
    asks = any(isinstance(side, ast.Attribute) and side.attr == "type" for side in sides)
    values = [each for side in sides for each in (side.elts if isinstance(side, ast.Tuple) else [side])]
    return asks and any(isinstance(each, ast.Constant) and each.value == "cuda" for each in values)


def find_all(package: Path) -> dict[str, list[str]]:
    found = {str(path.relative_to(package)): list(find_cuda(path.read_text())) for path in package.rglob("*.py")}
    return {name: lines for name, lines in found.items() if lines and name not in ALLOWED}


def test_no_other_code_names_cuda() -> None:
    assert find_all(PACKAGE) == {}


def test_those_that_may_do() -> None:
    assert all(any(find_cuda((PACKAGE / name).read_text())) for name in ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        "torch.cuda.synchronize()",
        "x = y.cuda()",
        "import torch.cuda as c",
        "from torch.cuda import Stream",
        "from torch import cuda",
        "assert x.is_cuda",
        "def f(stream: torch.cuda.Stream | None) -> None: ...",
        "if device.type == 'cuda': pass",
        "if x.device.type in ('cuda', 'meta'): pass",
        "getattr(torch, 'cuda').synchronize()",
    ],
)
@pytest.mark.parametrize("name", ["llm/running/runner.py", "encoders/worker.py", "device/streams.py"])
def test_a_line_that_names_it_is_found(name: str, line: str, tmp_path: Path) -> None:
    target = tmp_path / name
    target.parent.mkdir(parents=True)
    shutil.copy(PACKAGE / name, target)
    assert find_all(tmp_path) == {}
    with target.open("a") as file:
        file.write(f"\n{line}\n")
    assert list(find_all(tmp_path)) == [name]
