"""A model divided among ranks, on one device: do the shards give what the whole gives, and does each take its part of
the time?

    python benchmarks/shards.py MODEL [--ranks 2] [--rows 1,256] [--context 1024] [--rounds 9] [--tokens 64]

*sums*: the whole and every shard, each in a process of its own, compute a prompt of `--tokens` tokens in float32. The
shards' sums are made by hand: their summands go through the host and are added up in float64. Printed are the largest
‖logits - whole's‖ / ‖whole's‖ of a rank, how many sums each rank took part in, and how many of its tokens are the
likeliest ones of the whole.

*step*: milliseconds of a decode step with so many rows of about `--context` tokens each, in the model's own type, of
the whole and of the first shard alone, without what it would exchange, nor the addition to the residual stream that one
kernel does with it: the median of `--rounds` times 32 steps. On a GPU those are replays of their graph, one behind the
other, so that the host is not measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from h200 import report
from step_times import BLOCK_SIZE, WARM_TOKENS, Point, Prepared, Stopwatch, cut_prompt, get_ready
from torch import distributed
from torch.multiprocessing.spawn import spawn

from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.device.ranks import ALONE, OpenSum, Place, Ranks
from seesay.device.streams import Stopwatch as GpuStopwatch
from seesay.device.streams import on_stream
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.opened_model import open_model
from seesay.llm.memory.kv_cache import KVCache
from seesay.llm.models.decoder import ModelInput
from seesay.llm.ops import RowLayout
from seesay.llm.running.runner import ModelRunner

NUM_STEPS = 32
"""Decode steps that are timed together on a GPU."""
WHOLE = -1
"""Names the process that computes all, where others have the number of their rank."""


class Options(NamedTuple):
    """The command line. folder: where the processes leave what they found."""

    model: str
    num_ranks: int
    num_rows: tuple[int, ...]
    context: int
    rounds: int
    num_tokens: int
    folder: Path


class SumsByHand:
    """`Ranks` whose summands go through the host, where they are added up in float64 in the order of the ranks."""

    def __init__(self, place: Place) -> None:
        self.place, self.num_sums = place, 0

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        self.num_sums += 1
        total = torch.zeros(x.shape, dtype=torch.float64)
        for summand in self._exchange(x):
            total += summand
        return x.copy_(total)

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        total = self.sum(x)
        return lambda: OpenSum(total)

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        residual.add_(self.sum(x))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange(x), dim=1).to(x.device)

    def broadcast(self, x: torch.Tensor) -> None:
        x.copy_(self._exchange(x)[0])

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return x of all ranks, on the host."""
        mine = x.cpu().contiguous()
        pieces = [torch.empty_like(mine) for _ in range(self.place.size)]
        distributed.all_gather(pieces, mine)
        return pieces


class NoExchange:
    """`Ranks` of a shard that runs alone, to measure the time of its own work: nothing comes from the others, and what
    the kernel of an exchange does besides is not done."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        return lambda: OpenSum(x)

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        pass

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(len(x), self.place.size * x.shape[1])

    def broadcast(self, x: torch.Tensor) -> None:
        pass


def load(options: Options, ranks: Ranks | None, dtype: Literal["auto", "float32"]) -> ModelRunner:
    """The whole model, or the shard of a rank."""
    config = EngineConfig(dtype=dtype)
    opened = open_model(resolve_checkpoint(options.model), config)
    resolved = resolve(config, opened.checkpoint, opened.backbone)
    return load_runner(opened, resolved, max_step_tokens=WARM_TOKENS, block_size=BLOCK_SIZE, ranks=ranks)


def place_of(index: int, options: Options) -> Place:
    return ALONE if index == WHOLE else Place(index, options.num_ranks)


# --- sums ------------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """The logits [T, vocabulary] of a prompt, and in how many sums their rank took part."""

    logits: torch.Tensor
    num_sums: int


def compute_prompt(options: Options, ranks: Ranks | None) -> torch.Tensor:
    """The logits [T, vocabulary] of a prompt of random tokens."""
    runner = load(options, ranks, "float32")
    decoder, num_tokens = runner.decoder, options.num_tokens
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    places = torch.arange(num_tokens, device=runner.device)
    axes = decoder.traits.num_position_axes
    generator = torch.Generator().manual_seed(0)
    prompt = ModelInput(
        input_ids=torch.randint(decoder.traits.vocab_size, (num_tokens,), generator=generator).to(runner.device),
        positions=places if axes == 1 else places.repeat(axes, 1),
        slot_mapping=places,
        layout=RowLayout(
            cu_seqlens_q=np.array([0, num_tokens]),
            kv_lens=np.array([num_tokens]),
            block_table=np.arange(num_blocks)[None],
            block_size=BLOCK_SIZE,
            num_decode=0,
        ),
        faults=torch.zeros(num_tokens, device=runner.device),
    )
    cache = KVCache(runner.kv_layouts, num_blocks=num_blocks, device=runner.device)
    with torch.inference_mode():
        return decoder.logits(decoder.forward(prompt, cache.layers)).float().cpu()


def compute_as_rank(rank: int, options: Options) -> None:
    """Leave the logits of a shard in a file."""
    store = f"file://{options.folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=options.num_ranks)
    ranks = SumsByHand(place_of(rank, options))
    logits = compute_prompt(options, ranks)
    torch.save((logits, ranks.num_sums), file_of(rank, options))
    distributed.destroy_process_group()


def compute_whole(_: int, options: Options) -> None:
    torch.save((compute_prompt(options, None), 0), file_of(WHOLE, options))


def check_sums(options: Options) -> None:
    run_processes(compute_whole, options, 1)
    run_processes(compute_as_rank, options, options.num_ranks)
    whole, *shards = (Found(*torch.load(file_of(each, options))) for each in (WHOLE, *range(options.num_ranks)))
    exact, likeliest = whole.logits.double(), whole.logits.argmax(dim=1)
    report(
        what="sums",
        ranks=options.num_ranks,
        tokens=options.num_tokens,
        sums=min(shard.num_sums for shard in shards),
        largest_error=max(float((shard.logits.double() - exact).norm() / exact.norm()) for shard in shards),
        same_tokens=min(int((shard.logits.argmax(dim=1) == likeliest).sum()) for shard in shards),
    )


# --- times -----------------------------------------------------------------------------------------------------------


def time_steps(_: int, options: Options, index: int) -> None:
    """Leave the milliseconds of each number of rows in a file."""
    place = place_of(index, options)
    runner = load(options, None if index == WHOLE else NoExchange(place), "auto")
    points = [Point(num_rows, options.context + NUM_STEPS) for num_rows in options.num_rows]
    if get_ready(runner, points) != points:
        raise SystemExit(f"there is no room for {max(options.num_rows)} rows of {options.context} tokens")
    found = []
    for point in points:
        step = shorten(Stopwatch(runner).prepare(point))
        times = [time_in_turn(runner, step) for _ in range(1 + options.rounds)]
        found.append(statistics.median(times[1:]))
    torch.save(found, file_of(index, options))


def time_in_turn(runner: ModelRunner, prepared: Prepared) -> float:
    """Return the milliseconds of a step, of `NUM_STEPS` that are like the prepared one, each a token longer."""
    runner.apply(prepared.begin)
    started_s = time.perf_counter()
    launched = runner.launch(prepared.plan, {})  # which brings the rows to the device
    assert launched.step.is_decode, "a step that graphs do not compute"
    runner.sample(launched)
    runner.collect(launched)
    found_s = time.perf_counter() - started_s
    if runner.graphs is not None:
        with torch.inference_mode(), on_stream(runner.stream):
            stopwatch = GpuStopwatch(runner.stream)
            for _ in range(NUM_STEPS):
                runner.graphs.replay(len(prepared.plan.rows))
            stopwatch.stop()
        found_s = stopwatch.seconds() / NUM_STEPS
        runner.device_rows.forget(np.arange(runner.device_rows.num_slots))
    runner.apply(prepared.end)
    return 1e3 * found_s


def shorten(prepared: Prepared) -> Prepared:
    """Return a step whose rows have `NUM_STEPS` tokens less than they have blocks for."""
    starts = {row.seq_id: row.start - NUM_STEPS for row in prepared.plan.rows}
    begun = tuple(cut_prompt(one, starts[one.seq_id]) for one in prepared.begin.begun)
    rows = tuple(row._replace(start=starts[row.seq_id]) for row in prepared.plan.rows)
    return Prepared(replace(prepared.begin, begun=begun), replace(prepared.plan, rows=rows), prepared.end)


def measure_steps(options: Options) -> None:
    for index in (WHOLE, 0):
        run_processes(time_steps, options, 1, index)
    whole, shard = (torch.load(file_of(each, options)) for each in (WHOLE, 0))
    for num_rows, whole_ms, shard_ms in zip(options.num_rows, whole, shard, strict=True):
        report(
            what="step",
            ranks=options.num_ranks,
            rows=num_rows,
            context=options.context,
            whole_ms=round(whole_ms, 4),
            shard_ms=round(shard_ms, 4),
            ratio=round(shard_ms / whole_ms, 4),
        )


def file_of(index: int, options: Options) -> Path:
    return options.folder / f"{index}.pt"


def run_processes(run: Callable[..., None], options: Options, number: int, *arguments: object) -> None:
    """Run `run` in so many new processes, each of which gets its number first."""
    spawn(run, args=(options, *arguments), nprocs=number)  # type: ignore[no-untyped-call]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", default="1,256", help="numbers of rows, with commas")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args(argv)
    num_rows = tuple(int(number) for number in args.rows.split(","))
    with tempfile.TemporaryDirectory() as folder:
        options = Options(args.model, args.ranks, num_rows, args.context, args.rounds, args.tokens, Path(folder))
        check_sums(options)
        measure_steps(options)


if __name__ == "__main__":
    main()
