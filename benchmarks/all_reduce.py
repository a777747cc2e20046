"""How long the sum of a small tensor over GPUs takes in a CUDA graph: our kernels beside NCCL. Checks the sums first.

    python benchmarks/all_reduce.py [--ranks N] [--replays 10000] [--json FILE]

Starts a process per rank, by default one for each GPU and at least two; processes share GPUs in turn where there are
fewer, and then nothing is timed: they wait for each other's time slices. Rows are bfloat16 of 3584 components, 7 KB.
Times are microseconds of one of 100 calls in a graph: of each rank the median of 20 replays, of these the largest.

"added" adds the sum to a residual, "nccl added" by two kernels. `begun_us` is one sum of 4,096 rows (29 MB), of those
that run beside other work, by copies and by NCCL. Largest errors are ‖ours - exact‖ / ‖exact‖ with sums in float64 as
exact ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

from seesay.device.peer_ranks import PeerRanks, open_peer_ranks
from seesay.device.ranks import OpenSum, Ranks, TorchRanks

HIDDEN = 3584
NUM_ROWS = (1, 2, 4, 8, 14, 32, 64, 73, 128, 256, 512)
NUM_CALLS, NUM_REPLAYS = 100, 20
TOLERANCES = {torch.float32: 1e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
LARGEST_EXACT = 256
"""Integers up to here are exact in bfloat16."""


def random(*shape: int, dtype: torch.dtype, seed: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def check_sums(ranks: PeerRanks, device: torch.device) -> dict[str, float]:
    """Return the largest error by type. Raises where sums are not those of float32 in order of the ranks."""
    errors: dict[str, float] = {}
    for dtype, tolerance in TOLERANCES.items():
        for num in (77, 14 * HIDDEN, 500_003):
            summands = [random(num, dtype=dtype, seed=num + rank, device=device) for rank in range(ranks.place.size)]
            in_order = summands[0].float()
            for summand in summands[1:]:
                in_order = in_order + summand.float()
            exact = torch.stack([summand.double() for summand in summands]).sum(dim=0)
            for sum_up in (ranks.sums.sum_one_shot, ranks.sums.sum_two_shot):
                x = summands[ranks.place.rank].clone()
                sum_up(x)
                assert torch.equal(x, in_order.to(dtype)), (dtype, num, sum_up)
                error = float((x.double() - exact).norm() / exact.norm())
                assert error <= tolerance, (dtype, num, sum_up, error)
                errors[str(dtype)] = max(error, errors.get(str(dtype), 0.0))
    return errors


def check_replays(ranks: PeerRanks, device: torch.device, num_replays: int) -> int:
    """Replay a graph of sums of all kinds and sizes whose values change, while ranks lag behind each other at times.
    Return the number of sums; raises if any element was wrong."""
    place, step = ranks.place, torch.zeros((), dtype=torch.int64, device=device)
    num_wrong = torch.zeros((), dtype=torch.int64, device=device)

    def make(num: int, rank: int, call: int) -> torch.Tensor:
        columns = torch.arange(num, device=device)
        return ((columns + 7 * step + 13 * rank + 5 * call) % (LARGEST_EXACT // place.size)).bfloat16()

    def run() -> None:
        step.add_(1)
        for call, num_rows in enumerate((1, 64, 3, 1, 146)):
            num = num_rows * HIDDEN
            expected = torch.stack([make(num, rank, call) for rank in range(place.size)]).sum(0)
            for sum_up in (ranks.sums.sum_one_shot, ranks.sums.sum_two_shot):
                x = make(num, place.rank, call)
                sum_up(x)
                num_wrong.add_((x != expected).sum())
            added = torch.zeros_like(expected)
            ranks.sums.sum_one_shot(make(num, place.rank, call), add_to=added)
            num_wrong.add_((added != expected).sum())

    run()
    graph = record(run)
    for replay in range(num_replays):
        if replay % 97 == place.rank:
            torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        graph.replay()
    torch.cuda.synchronize()
    assert int(num_wrong) == 0, f"{int(num_wrong)} wrong elements"
    return 15 * num_replays


def check_begun(ranks: PeerRanks, device: torch.device, num_calls: int = 200) -> int:
    """Sum large tensors, two at a time, beside products, while ranks lag behind each other at times. Return the number
    of sums; raises if any element was wrong."""
    place, begun = ranks.place, list[tuple[int, Callable[[], OpenSum]]]()
    factor = torch.ones(HIDDEN, HIDDEN, dtype=torch.bfloat16, device=device)
    num_wrong = torch.zeros((), dtype=torch.int64, device=device)

    def make(rank: int, call: int) -> torch.Tensor:
        columns = torch.arange((1000 + 37 * call) * HIDDEN, device=device)
        return ((columns + 13 * rank + 5 * call) % (LARGEST_EXACT // place.size)).bfloat16()

    for call in range(num_calls):
        if len(begun) == 2:
            number, finish = begun.pop(0)
            expected = torch.stack([make(rank, number) for rank in range(place.size)]).sum(0)
            num_wrong.add_((finish().close() != expected).sum())
        if call % 31 == place.rank:
            torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call]
        begun.append((call, ranks.begin_sum(make(place.rank, call))))
        torch.mm(factor, factor)
    for _, finish in begun:
        finish()
    assert int(num_wrong) == 0, f"{int(num_wrong)} wrong elements"
    return num_calls


def measure_begun(ranks: Ranks, device: torch.device, num_rows: int = 4096) -> float:
    """Return microseconds of a sum that nothing runs beside, those of this rank."""
    x, times = torch.zeros(num_rows, HIDDEN, dtype=torch.bfloat16, device=device), list[float]()
    for _ in range(NUM_REPLAYS):
        ranks.sum(torch.zeros(1, device=device))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(NUM_CALLS):
            ranks.begin_sum(x)().close()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / NUM_CALLS)
    return round(median(times[1:]), 1)


def record(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog may ask for events meanwhile
        run()
    return graph


def measure(call: Callable[[], object], ranks: TorchRanks, device: torch.device) -> float:
    """Return microseconds of a call, those of the slowest rank."""

    def run() -> None:
        for _ in range(NUM_CALLS):
            call()

    call()
    graph = record(run)
    times = []
    for _ in range(NUM_REPLAYS):
        ranks.sum(torch.zeros(1, device=device))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / NUM_CALLS)
    return float(ranks.gather(torch.tensor([[median(times[1:])]], device=device)).max())


def measure_rows(num_rows: int, ranks: PeerRanks, nccl: TorchRanks, device: torch.device) -> dict[str, Any]:
    x, residual = (random(num_rows, HIDDEN, dtype=torch.bfloat16, seed=seed, device=device) for seed in range(2))
    sums = ranks.sums
    calls: dict[str, Callable[[], object]] = {
        "nccl": lambda: nccl.sum(x),
        "nccl added": lambda: nccl.sum_add(x, residual),
    }
    if sums.can_sum(x):
        calls["one_shot"] = lambda: sums.sum_one_shot(x)
        calls["two_shot"] = lambda: sums.sum_two_shot(x)
        calls["added"] = lambda: sums.sum_one_shot(x, add_to=residual)
    times = {name: round(measure(call, nccl, device), 2) for name, call in calls.items()}
    return {"rows": num_rows, "kb": round(x.numel() * x.element_size() / 1e3, 1), **times}


def print_table(lines: Sequence[dict[str, Any]]) -> None:
    names = ("rows", "kb", "one_shot", "two_shot", "added", "nccl", "nccl added")
    print(" ".join(f"{name:>13}" for name in names))
    for line in lines:
        print(" ".join(f"{line.get(name, '-'):>13}" for name in names), flush=True)


def run_rank(rank: int, num_ranks: int, folder: str, options: argparse.Namespace) -> None:
    """Check and measure as one of the ranks."""
    num_gpus = torch.cuda.device_count()
    device, is_alone = torch.device("cuda", rank % num_gpus), num_ranks <= num_gpus
    torch.cuda.set_device(device)
    backend = "nccl" if is_alone else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks)
    assert distributed.group.WORLD is not None
    nccl = TorchRanks(distributed.group.WORLD)
    ranks = open_peer_ranks(nccl, device)
    if not isinstance(ranks, PeerRanks):
        raise SystemExit("the GPUs do not reach each other's memory")
    record: dict[str, Any] = {"gpu": torch.cuda.get_device_name(device), "ranks": num_ranks}
    record["errors"] = check_sums(ranks, device)
    record["sums_in_replays"] = check_replays(ranks, device, options.replays)
    record["begun_sums"] = check_begun(ranks, device)
    if is_alone:
        record["begun_us"] = {"ours": measure_begun(ranks, device), "nccl": measure_begun(nccl, device)}
    lines = [measure_rows(num_rows, ranks, nccl, device) for num_rows in options.rows] if is_alone else []
    record["us"] = lines
    if rank == 0:
        print(json.dumps({name: value for name, value in record.items() if name != "us"}))
        print_table(lines)
        if options.json is not None:
            options.json.write_text(json.dumps(record, indent=1))
    torch.cuda.synchronize()
    distributed.barrier()
    ranks.close()
    distributed.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--replays", type=int, default=10_000)
    parser.add_argument("--rows", type=int, nargs="*", default=NUM_ROWS)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        spawn(run_rank, args=(options.ranks, folder, options), nprocs=options.ranks)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
