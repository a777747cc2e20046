"""Tests of the engine on `examples/my_device`, in a process of their own: `tests/device/test_my_device.py` starts it.

A device that is added to PyTorch stays there until the process ends, so these tests are left out of any other.
"""

from __future__ import annotations

import os

DEVICE = os.environ.get("SEESAY_TEST_DEVICE")
collect_ignore_glob = [] if DEVICE else ["test_*.py"]
