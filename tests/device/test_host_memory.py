from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from seesay.device.host_memory import MemoryReturn


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
