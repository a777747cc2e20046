"""How decoding and hashing of pictures scales with frontend processes, and with threads of one process.

    python benchmarks/preprocess_scaling.py [--workers 1 2 4 8] [--kind processes threads] [--seconds 5] [--pages 4]

The pictures are pages of text of 1275 x 1650 pixels (letter paper at 150 dpi) as PNG files, opened, decoded and hashed
as a request's are. Each worker has pages of its own and works on one at a time. Prints a JSON line for each kind and
number of workers: pages per second, how many times those of one worker that is, the processor time of a page in the
worker's thread (threads that wait for each other use more of it), and megabytes of memory per worker.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import resource
import string
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from seesay.config import MediaLimits
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.open import open_media
from seesay.values import Modality

WIDTH, HEIGHT = 1275, 1650
_MARGIN, _LINE_PX, _CHARS_PER_LINE = 100, 24, 90


def make_page(seed: int, *, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    """A page of random words with the noise of a scanner, as a PNG file."""
    rng = np.random.default_rng(seed)
    page = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(18)
    letters = list(string.ascii_lowercase + " " * 6)
    for top in range(_MARGIN, height - _MARGIN, _LINE_PX):
        draw.text((_MARGIN, top), "".join(rng.choice(letters, _CHARS_PER_LINE)), fill="black", font=font)
    noise = rng.integers(0, 4, (height, width, 1))
    file = io.BytesIO()
    Image.fromarray((np.asarray(page) - np.minimum(np.asarray(page), noise)).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@dataclass(frozen=True, slots=True)
class Work:
    """Pages per second of one worker, and the processor time of its thread for a page."""

    pages_per_s: float
    cpu_ms: float


def work(seed: int, seconds: float, num_pages: int, wait: Callable[[], object]) -> Work:
    """Decode and hash pages for `seconds`, once all workers are ready."""
    pages = [make_page(1000 * seed + number) for number in range(num_pages)]
    limits = MediaLimits()

    def decode(page: bytes) -> None:
        media = open_media(Modality.IMAGE, page, {}, Allowance(limits))
        media.size()
        media.decode()

    decode(pages[0])  # imports and tables of Pillow
    wait()
    started, cpu_started, count = time.perf_counter(), time.thread_time(), 0
    while time.perf_counter() - started < seconds:
        decode(pages[count % len(pages)])
        count += 1
    return Work(count / (time.perf_counter() - started), (time.thread_time() - cpu_started) / count * 1e3)


def _work_in_process(seed: int, seconds: float, num_pages: int, barrier: Barrier, results: Any) -> None:
    results.put((work(seed, seconds, num_pages, barrier.wait), _peak_mb()))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_processes(num_workers: int, seconds: float, num_pages: int) -> tuple[Sequence[Work], float]:
    """(what each process did, megabytes of the largest one)."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(num_workers), context.SimpleQueue()
    workers = [
        context.Process(target=_work_in_process, args=(seed, seconds, num_pages, barrier, results))
        for seed in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"a worker ended with exit code {worker.exitcode}")
    done, peaks = zip(*(results.get() for _ in workers))
    return done, max(peaks)


def run_threads(num_workers: int, seconds: float, num_pages: int) -> tuple[Sequence[Work], float]:
    """(what each thread did, megabytes of this process for each thread)."""
    barrier = threading.Barrier(num_workers)
    with ThreadPoolExecutor(num_workers) as threads:
        done = list(threads.map(lambda seed: work(seed, seconds, num_pages, barrier.wait), range(num_workers)))
    return done, _peak_mb() / num_workers


RUNS = {"processes": run_processes, "threads": run_threads}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--kind", choices=RUNS, nargs="+", default=list(RUNS))
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each number of workers runs")
    parser.add_argument("--pages", type=int, default=4, help="different pages of each worker")
    options = parser.parse_args(argv)
    for kind in options.kind:
        first: float | None = None
        for num_workers in options.workers:
            done, mb_per_worker = RUNS[kind](num_workers, options.seconds, options.pages)
            pages_per_s = sum(work.pages_per_s for work in done)
            first = first or pages_per_s / num_workers
            print(
                json.dumps(
                    {
                        "kind": kind,
                        "workers": num_workers,
                        "cores": len(os.sched_getaffinity(0)),
                        "pages_per_s": round(pages_per_s, 1),
                        "times_one": round(pages_per_s / first, 2),
                        "cpu_ms_per_page": round(sum(work.cpu_ms for work in done) / num_workers, 1),
                        "mb_per_worker": round(mb_per_worker),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
