"""The process of `precompile.py`, `python -m seesay.engine.process.precompile_child`: rehearses a model's start without
weights and without the GPU, and compiles the kernels that it calls.

Its orders are a line of JSON on standard input; what it prints is a line of JSON. It ends with its parent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesay.kernels.absent_gpu import Gpu

_MAX_THREADS = 16
_THREAD_BYTES = 1 << 30
"""Memory of the host that there must be for each thread."""


def main() -> None:
    """Do what the orders say, and print what was done."""
    started_s = time.perf_counter()
    orders = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        report: dict[str, Any] = {"num_kernels": _compile(Path(orders["folder"]), orders["engine"], orders.get("gpu"))}
    except Exception as error:
        report = {"error": f"{type(error).__name__}: {error}"}
    report["seconds"] = time.perf_counter() - started_s
    print(json.dumps(report), flush=True)
    os._exit(0)


def _compile(folder: Path, engine: dict[str, Any], given: dict[str, Any] | None) -> int:
    """Compile the kernels of the model in `folder`. Returns their number. `given` is the GPU; by default that of the
    configuration."""
    from concurrent.futures import ThreadPoolExecutor

    from seesay.config import EngineConfig
    from seesay.engine.core.loading.loading import rehearse
    from seesay.engine.opened_model import open_model
    from seesay.kernels.absent_gpu import Gpu, absent_gpu

    config = EngineConfig(**engine)
    gpu = _find_gpu(config.device_type) if given is None else Gpu(tuple(given["capability"]), given["shared_bytes"])
    if gpu is None:
        return 0
    with ThreadPoolExecutor(_count_threads()) as threads, absent_gpu(gpu, threads) as launches:
        rehearse(open_model(folder, config), config)
    return len(launches.specializations)


def _find_gpu(device_type: str) -> Gpu | None:
    """Return what kernels depend on; None where the device is not NVIDIA's: its kernels are compiled one by one."""
    from seesay.device.cuda import CUDA
    from seesay.device.query import pick_device
    from seesay.device.registry import accelerator_of
    from seesay.kernels.absent_gpu import Gpu

    if accelerator_of(pick_device(device_type)) is not CUDA:
        return None
    return Gpu.present(pick_device(device_type).index or 0)


def _count_threads() -> int:
    """As many as there are processors and memory for; the compiler holds the GIL for a small part of its time."""
    import torch

    from seesay.device.query import measure_memory

    num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = measure_memory(torch.device("cpu")).free_bytes // _THREAD_BYTES
    return max(1, min(num_processors, room, _MAX_THREADS))


def _end_with_parent() -> None:
    """End when nobody holds the other end of standard input any more."""
    try:
        while os.read(sys.stdin.fileno(), 1 << 10):
            pass
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
