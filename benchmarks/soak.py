"""Host and GPU memory over thousands of requests with pictures, which should stay where they are.

    python benchmarks/soak.py [MODEL] [--requests 8000] [--clients 32] [--max-side-px 1024] [--cache-mb 16]
        [--kv-blocks 400] [--plot FILE.png]

Every client asks about one picture after another. Sizes and shapes differ, most are small and some are large; one in
five is a picture that was shown before, so that every cache fills, evicts and hits. Memory is read fifty times, each
time when nothing is being answered, and what this process has freed is returned to the system first. The warm-up ends
when all caches are full: embeddings are evicted, preprocessed pictures and cached KV blocks are at 90 % of their limits
(on the CPU, the KV cache takes memory as its blocks are first written), and as many requests again were answered, in
which heaps and compiled operations settle. After that every reading counts. The caches are
small by default, so that a fifth of the requests fills them. On a GPU, memory grows until the sizes that recur have
graphs in the tower: `--warm-up 3000` adds requests.

Prints a line `RESULT {JSON}` per process and for the GPU, in MB: at the first reading that counts, at the last, and the
slope of a line through all of them, per 1,000 requests; then what was answered; then an account of the memory of each
process, before and after the caches are reset. Ends with status 1 when an answer is missing, when KV blocks are still
in use, when the caches were not full in the first half, or when a slope is above `--max-growth-mb`.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from h200 import open_pipeline, report
from placement import add_placement_options, engine_placement, vision_placement

from seesay.bench.plotting import Lines, add_plot_option, save_plot
from seesay.bench.workload import make_picture, make_text
from seesay.device.host_memory import return_memory
from seesay.device.memory_account import MemoryAccount, find_children

if TYPE_CHECKING:
    from seesay import Pipeline
    from seesay.values import EngineStats

NUM_READINGS = 50
SEEN_SHARE = 0.2
FULL_SHARE = 0.9
"""Of its limit, from which on a cache counts as full: the next entry may not fit."""
SETTLING = 2
"""The warm-up takes so many times as long as the caches fill: threads compile the operations of recurring shapes."""
NUM_REMEMBERED = 500
"""A picture is shown again within this many requests."""
NUM_ANSWER_TOKENS = 16

Shape = tuple[int, int, int]
"""Width and height in pixels, and the picture's seed."""


def make_shapes(num: int, max_side_px: int, seed: int) -> Iterator[Shape]:
    """Pictures in the order in which they are shown. The longer side's distribution favours small ones."""
    rng = random.Random(seed)
    shown: list[Shape] = []
    for index in range(num):
        if shown and rng.random() < SEEN_SHARE:
            yield rng.choice(shown[-NUM_REMEMBERED:])
            continue
        longer = int(56 + (max_side_px - 56) * rng.random() ** 2.5)
        shorter = max(28, int(longer * rng.uniform(0.4, 1.0)))
        width_px, height_px = rng.sample((longer, shorter), 2)
        shown.append((width_px, height_px, seed * 1_000_003 + index))
        yield shown[-1]


def ask(pipe: Pipeline, shape: Shape) -> bool:
    """Send one picture, and return whether it was answered in full."""
    from seesay import GenerationConfig, Response

    width_px, height_px, seed = shape
    file = io.BytesIO()
    make_picture(width_px, height_px, seed).save(file, "JPEG", quality=90)
    config = GenerationConfig(max_new_tokens=NUM_ANSWER_TOKENS, ignore_eos=True)
    answer = pipe((make_text(8, random.Random(seed)), file.getvalue()), gen_config=config)
    assert isinstance(answer, Response)
    return answer.finish_reason == "length" and answer.generate_token_len == NUM_ANSWER_TOKENS


def kept_mb() -> float:
    """Resident memory of this process without what it has freed."""
    return_memory()
    return MemoryAccount.read().resident / 2**20


def memory_readers() -> dict[str, Callable[[], float]]:
    """Memory in use, in MB: that of this process, of each that it started, and what is taken of a GPU."""
    import torch

    readers: dict[str, Callable[[], float]] = {"host": kept_mb}
    for number, pid in enumerate(find_children(), start=1):
        readers[f"child {number}"] = lambda pid=pid: MemoryAccount.read(pid).resident / 2**20  # type: ignore[misc]
    if torch.cuda.is_available():
        free, total = 0, 1
        readers["gpu"] = lambda: (torch.cuda.mem_get_info()[total] - torch.cuda.mem_get_info()[free]) / 2**20
    return readers


def is_warm(stats: EngineStats, feature_limit_bytes: int) -> bool:
    """Whether all caches are full."""
    return (
        stats.total_embedding_evictions > 0
        and stats.feature_bytes >= FULL_SHARE * feature_limit_bytes
        and stats.num_cached_kv_blocks >= FULL_SHARE * stats.num_kv_blocks
    )


def report_accounts(when: str) -> None:
    """Print the account of each process, in MB."""
    for name, pid in {"host": None, **{f"child {i}": pid for i, pid in enumerate(find_children(), start=1)}}.items():
        account = {f"{key}_mb": round(value / 2**20, 1) for key, value in asdict(MemoryAccount.read(pid)).items()}
        report(what="account", when=when, process=name, **account)


def growth(num_requests: Sequence[int], readings_mb: Sequence[float]) -> dict[str, float]:
    """First, last, and the slope of the least-squares line per 1,000 requests."""
    slope = float(np.polyfit(num_requests, readings_mb, 1)[0])
    return {
        "first_mb": round(readings_mb[0], 1),
        "last_mb": round(readings_mb[-1], 1),
        "growth_mb_per_1000": round(1000 * slope, 2),
    }


def find_faults(
    *, num_missing: int, num_blocks: int, slopes_mb: Sequence[float], max_mb: float, is_late: bool
) -> list[str]:
    """Return the faults that make the soak fail, as sentences. `is_late`: the warm-up took more than half of it."""
    faults = {
        "the caches were not full after half of the requests: give more requests, or smaller caches": is_late,
        f"{num_missing} answers are missing": num_missing > 0,
        f"{num_blocks} KV blocks are still in use": num_blocks > 0,
        f"memory grows by more than {max_mb} MB per 1,000 requests": max(slopes_mb, default=0.0) > max_mb,
    }
    return [fault for fault, is_there in faults.items() if is_there]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo")
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--warm-up", type=int, default=0, help="requests whose readings do not count in any case")
    parser.add_argument("--clients", type=int, default=32, help="requests at the same time")
    parser.add_argument("--max-side-px", type=int, default=1024, help="the longest side of the largest pictures")
    parser.add_argument("--kv-blocks", type=int, default=400, help="0: as many as fit; see above")
    parser.add_argument("--cache-mb", type=int, default=16, help="of embeddings, and of preprocessed pictures")
    parser.add_argument("--max-growth-mb", type=float, default=5.0, help="per 1,000 requests")
    parser.add_argument("--seed", type=int, default=1)
    add_placement_options(parser)
    add_plot_option(parser)
    args = parser.parse_args(argv)
    if args.requests < NUM_READINGS:
        parser.error(f"--requests is at least {NUM_READINGS}, and a slope tells something from some thousands on")
    if not 0 <= args.warm_up <= args.requests / 2:
        parser.error("--warm-up is at most half of --requests")

    shapes = list(make_shapes(args.requests, args.max_side_px, args.seed))
    step = max(1, args.requests // NUM_READINGS)
    num_answered, num_filling, counts = 0, 0, list[int]()
    vision = {"embedding_cache_bytes": args.cache_mb << 20, "feature_cache_bytes": args.cache_mb << 20}
    vision |= vision_placement(args)
    pipe = open_pipeline(args.model, vision, num_gpu_blocks=args.kv_blocks, **engine_placement(args))
    with pipe, ThreadPoolExecutor(args.clients) as clients:
        readers = memory_readers()
        for read in readers.values():  # the first look at a GPU creates this process's context, some 100 MB
            read()
        readings_mb: dict[str, list[float]] = {name: [] for name in readers}
        started_s = time.perf_counter()
        for first in range(0, args.requests, step):
            num_answered += sum(clients.map(lambda shape: ask(pipe, shape), shapes[first : first + step]))
            if not num_filling and is_warm(pipe.engine.stats(), args.cache_mb << 20):
                num_filling = first + step
            if num_filling and first >= max(args.warm_up, SETTLING * num_filling - step):
                counts.append(min(first + step, args.requests))
                for name, read in readers.items():
                    readings_mb[name].append(read())
        seconds = time.perf_counter() - started_s
        stats = pipe.engine.stats()
        report_accounts("at the end")
        pipe.reset_caches()
        report_accounts("caches reset")
    slopes_mb = []
    is_late = not counts or counts[0] > args.requests / 2
    for name, values_mb in readings_mb.items() if not is_late else ():
        figures = growth(counts, values_mb)
        slopes_mb.append(figures["growth_mb_per_1000"])
        report(what="soak", memory=name, **figures)
    faults = find_faults(
        num_missing=args.requests - num_answered,
        num_blocks=stats.num_used_kv_blocks,
        slopes_mb=slopes_mb,
        max_mb=args.max_growth_mb,
        is_late=is_late,
    )
    report(
        what="soak_requests",
        requests=args.requests,
        warm_up=counts[0] if counts else args.requests,
        answered=num_answered,
        req_per_s=round(args.requests / seconds, 1),
        seen_before=args.requests - len(set(shapes)),
        encoded=stats.total_encoder_items,
        embedding_mb=round(stats.embedding_bytes / 2**20, 1),
        feature_mb=round(stats.feature_bytes / 2**20, 1),
        faults=faults,
    )
    if args.plot is not None:
        series = {name: (counts, values_mb) for name, values_mb in readings_mb.items()}
        save_plot(
            args.plot,
            f"seesay, {args.model}: memory over {args.requests:,} requests",
            [Lines(title="memory, MB", x_title="requests", series=series)],
        )
    sys.exit(int(bool(faults)))


if __name__ == "__main__":
    main()
