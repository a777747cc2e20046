from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seesay.device.host_memory import NUM_PRIMITIVES, MemoryReturn
from seesay.device.memory_account import MemoryAccount, find_children


def resident_mb() -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match.group(1)) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_between_what_is_in_use_is_given_back() -> None:
    arrays = [np.ones(60_000 + 100 * (i % 7), np.uint8) for i in range(4000)]
    kept = arrays[::50]
    full_mb = resident_mb()
    del arrays
    if not MemoryReturn(interval_s=0.0).return_if_due():
        pytest.skip("not glibc")
    assert resident_mb() < full_mb - 150
    assert all(array[0] == 1 for array in kept)


def test_it_is_not_done_all_the_time() -> None:
    memory = MemoryReturn(interval_s=3600.0)
    assert not memory.return_if_due()


CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
SHAPES = """
import sys
if sys.argv[1] == "bounded":
    from seesay.device.host_memory import bound_allocators
    bound_allocators()
import torch
from seesay.device.memory_account import MemoryAccount
weight = torch.arange(384 * 384).reshape(384, 384).remainder(7).bfloat16()
def multiply(stop):
    inputs = (torch.ones(n, 384, dtype=weight.dtype) for n in range(1, stop))
    return sum(float(torch.nn.functional.linear(each, weight).sum()) for each in inputs)
first = multiply(100)
before = MemoryAccount.read().resident
total = multiply(600)
print(MemoryAccount.read().resident - before, total)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_products_of_many_shapes_leave_nothing_behind_and_are_the_same() -> None:
    """In bfloat16, which is oneDNN's where the processor has instructions for it."""
    env = {name: value for name, value in os.environ.items() if name not in CAPACITIES}
    results = {
        mode: subprocess.run(
            [sys.executable, "-c", SHAPES, mode], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        for mode in ("bounded", "unbounded")
    }
    assert results["bounded"][1] == results["unbounded"][1]
    if int(results["unbounded"][0]) < 150 << 20:
        pytest.skip("oneDNN compiles nothing here")
    assert int(results["bounded"][0]) < 80 << 20


PICTURES = """
import resource
import ctypes, sys, threading
import numpy as np
from seesay.device.host_memory import NUM_ARENAS, bound_allocators
from seesay.device.memory_account import MemoryAccount
bound_allocators()
barrier = threading.Barrier(16)
def work():
    barrier.wait()
    kept = [np.ones(1 << 20, np.uint8) for _ in range(2)]
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
for _ in range(3):
    array = np.ones(40 << 20, np.uint8)
    assert MemoryAccount.read().malloc_mapped >= 40 << 20
    del array
    assert MemoryAccount.read().malloc_mapped < 40 << 20
for _ in range(4):  # memory of pictures is used again, and not given back and paged in each time
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    array = np.ones(24 << 20, np.uint8)
    num_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del array
assert num_faults < 500, num_faults
import os
print(os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"], NUM_ARENAS)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
@pytest.mark.parametrize("capacity", [None, "7"])
def test_allocators_are_bounded(tmp_path: Path, capacity: str | None) -> None:
    unset = ("GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", *CAPACITIES)
    env = {name: value for name, value in os.environ.items() if name not in unset}
    if capacity is not None:
        env["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = capacity
    path = tmp_path / "heaps.xml"
    done = subprocess.run([sys.executable, "-c", PICTURES, path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, num_arenas = done.stdout.split()
    assert found == (capacity or str(NUM_PRIMITIVES)), "what the environment says counts"
    assert path.read_text().count("<heap nr=") <= int(num_arenas)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_account_adds_up() -> None:
    before = MemoryAccount.read()
    array = np.ones(64 << 20, np.uint8)
    during = MemoryAccount.read()
    assert during.resident - before.resident >= 60 << 20 and during.anonymous - before.anonymous >= 60 << 20
    assert array[0] and abs(during.resident - during.anonymous - during.file - during.shared) < 1 << 20
    other = MemoryAccount.read(os.getppid())
    assert other.resident > 0 and other.malloc_used == 0, "the heap of another process cannot be read"
    assert MemoryAccount.read(2**22 + 1) == MemoryAccount()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in find_children()
        child.communicate(b"\n")
    assert child.pid not in find_children()
