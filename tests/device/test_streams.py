"""How long queued work takes."""

from __future__ import annotations

import time

import pytest
import torch
from gpu_work import keep_gpu_busy

from seesay.device.streams import Stopwatch, make_stream, on_stream


def test_on_the_cpu_a_stopwatch_tells_the_time_between_its_calls() -> None:
    began_s = time.perf_counter()
    stopwatch = Stopwatch(None)
    time.sleep(0.02)
    stopwatch.stop()
    taken_s = time.perf_counter() - began_s
    time.sleep(0.01)
    assert 0.02 <= stopwatch.seconds() <= taken_s


@pytest.mark.gpu
def test_on_a_gpu_it_tells_the_time_of_the_work_itself() -> None:
    device = torch.device("cuda")
    stream = make_stream(device, is_urgent=True)
    cycles = 50_000_000
    with on_stream(stream):
        keep_gpu_busy(cycles)
        empty = Stopwatch(stream)
        empty.stop()
        busy = Stopwatch(stream)
        keep_gpu_busy(cycles)
        busy.stop()
    assert busy.seconds() > 0.01 > 0.001 > empty.seconds() >= 0
