"""All that is particular to a device is asked of `seesay.device`: no other code names CUDA."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import seesay

PACKAGE = Path(seesay.__file__).parent
SEAM = "device/cuda.py"
ALLOWED = {
    "harnesses/arguments.py": ["'cuda:0'"],
    "kernels/absent_gpu.py": ["'cuda'", ".cuda", ".cuda", ".cuda"],
    "kernels/gpu.py": [".cuda", ".cuda"],
    "low_level/runtime_config.py": ["'cuda'"],
}
"""Below the seam, the only questions that Triton's kernels ask about NVIDIA's GPUs, and what a process pretends to have
such a one by; and names that the published interfaces of others have."""
NAME = re.compile(r"(torch\.)?_?cuda(?![a-z])")
"""What a text that names CUDA begins with."""


def find_cuda(source: str) -> Iterator[str]:
    """Yield what names CUDA: `torch.cuda`, however imported, `.cuda()`, `.is_cuda`, `._cuda_…`, and texts, such as
    'cuda:0', that are not docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(attr="extra"), attr="cuda"):
                pass  # Triton's intrinsics in kernels, which ask for them by a constant: `gpu.has_dependent_launch`
            case ast.Attribute(attr=name) if name == "cuda" or name == "is_cuda" or name.startswith("_cuda"):
                yield f"line {node.lineno}: .{name}"
            case ast.Import(names=names) if any(NAME.match(name.name) for name in names):
                yield f"line {node.lineno}: import torch.cuda"
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("torch.cuda") or (
                module.partition(".")[0] == "torch" and any(NAME.match(name.name) for name in names)
            ):
                yield f"line {node.lineno}: from torch import cuda"
            case ast.Constant(value=str(text)) if id(node) not in docstrings and NAME.match(text):
                yield f"line {node.lineno}: {text!r}"


def find_all(package: Path) -> dict[str, list[str]]:
    found = {str(path.relative_to(package)): list(find_cuda(path.read_text())) for path in package.rglob("*.py")}
    return {name: lines for name, lines in found.items() if strip(lines) != ALLOWED.get(name, []) and name != SEAM}


def strip(lines: list[str]) -> list[str]:
    """Return them in order, without their numbers."""
    return sorted(line.partition(": ")[2] for line in lines)


def test_no_other_code_names_cuda() -> None:
    assert find_all(PACKAGE) == {}


def test_those_that_may_do() -> None:
    assert {name: strip(list(find_cuda((PACKAGE / name).read_text()))) for name in ALLOWED} == ALLOWED
    assert any(find_cuda((PACKAGE / SEAM).read_text()))


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
        "getattr(x, 'cuda')()",
        "def f(x, device='cuda:0'): return x.to(device)",
        "def f(x, *, index=0): return x.to(f'cuda:{index}')",
        "x = torch.empty(3, device='cuda')",
        "torch.set_default_device('cuda:1')",
        "torch.__dict__['cuda'].synchronize()",
        "importlib.import_module('torch.cuda').synchronize()",
        "operator.attrgetter('cuda.synchronize')(torch)()",
        "torch._C._cuda_synchronize()",
        "torch.backends.cuda.enable_flash_sdp(False)",
        "from torch.backends import cuda as c",
        "class C: device: str = 'cuda'",
        "with torch.autocast('cuda'): pass",
    ],
)
@pytest.mark.parametrize("name", ["llm/running/runner.py", "encoders/worker.py", "device/streams.py", *ALLOWED])
def test_a_line_that_names_it_is_found(name: str, line: str, tmp_path: Path) -> None:
    target = tmp_path / name
    target.parent.mkdir(parents=True)
    shutil.copy(PACKAGE / name, target)
    assert find_all(tmp_path) == {}
    with target.open("a") as file:
        file.write(f"\n{line}\n")
    assert list(find_all(tmp_path)) == [name]
