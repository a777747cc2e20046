"""Compiles `backend.cpp` for the PyTorch that is installed, once: the library stays in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from hashlib import blake2b
from pathlib import Path

import torch

from seesay.system.user_folders import find_cache_folder

SOURCE = Path(__file__).with_name("backend.cpp")
_TORCH = Path(torch.__file__).parent
_TIMEOUT_S = 600


def find_compiler() -> str | None:
    """Return the C++ compiler: that of the variable CXX, else g++, else clang++."""
    return next(
        (found for name in (os.environ.get("CXX"), "g++", "clang++") if name and (found := shutil.which(name))), None
    )


def build() -> Path:
    """Return the library. Raises `RuntimeError` without a compiler, or with what the compiler says."""
    library = find_cache_folder() / f"my_device-{_make_key()}.so"
    if library.exists():
        return library
    compiler = find_compiler()
    if compiler is None:
        raise RuntimeError("my_device: there is no C++ compiler: install g++")
    library.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(".so", dir=library.parent)
    os.close(handle)
    includes = [f"-isystem{_TORCH / 'include'}", f"-isystem{_TORCH / 'include/torch/csrc/api/include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", abi, *includes, str(SOURCE), "-o", unfinished]
    libraries = [f"-L{_TORCH / 'lib'}", f"-Wl,-rpath,{_TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10"]
    try:
        done = subprocess.run([*command, *libraries], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"my_device: {compiler} cannot compile {SOURCE}: {done.stderr[-2000:]}")
        Path(unfinished).replace(library)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return library


def _make_key() -> str:
    return blake2b(SOURCE.read_bytes() + torch.__version__.encode() + str(_TORCH).encode(), digest_size=8).hexdigest()
