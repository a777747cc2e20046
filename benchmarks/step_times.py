"""Records how long steps and calls of the vision tower take on this device: what policy.py needs.

    python benchmarks/step_times.py MODEL_DIR [--out FILE.json] [--rounds 3] [--max-rows 512] [--max-tokens 8192]
        [--max-context 4096] [--sides-px 224,448,672,1036] [--plot FILE.png]

Times a grid of steps: from 0 to `--max-rows` decode rows, contexts up to `--max-context`, up to `--max-tokens` tokens
with those of prompts; and calls of the tower for square pictures. Steps go through the real `ModelRunner`, with CUDA
graphs and padding as in the engine. On a GPU a time is that between two CUDA events, behind a step of 4,096 prompt
tokens: so the host is never waited for, and the GPU is as warm as under load. Each is the median of `--rounds`; on the
CPU it is that of a call. Takes about a minute with a 7B model on an H200.

Prints a line `RESULT {JSON}` for the recording and for each linear model that is fitted to it (see step_model.py), with
its largest and mean relative error, and for what the engine itself measures at start
(seesay/llm/running/step_timing.py): the seconds that this takes, and its errors for the recorded steps with prompts.
`--out` keeps the recording.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from h200 import report
from step_model import EncodeTime, Errors, Recording, StepShape, StepTime, compare

from seesay.bench.plotting import Lines, Panel, add_plot_option, save_plot
from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.device.query import measure_memory, synchronize
from seesay.device.streams import hold_stream, make_stream, on_stream, record_event
from seesay.engine.core.loading.encoder_loading import build_encoder
from seesay.engine.core.loading.resolved_config import resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.opened_model import open_model
from seesay.llm.memory.kv_cache import bytes_per_block
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, BegunSequence, Row, StepPlan
from seesay.llm.plans.step_times import StepCosts, StepTimes, StepWork
from seesay.llm.running.launched_step import LaunchedStep
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.scheduling.plan_deltas import make_begun
from seesay.llm.scheduling.sequence import Sequence as TokenSequence
from seesay.values import DecodedMedia, Modality, MultimodalInput
from seesay.vl.family import Family

if TYPE_CHECKING:
    from seesay.encoders.encoder import Encoder

DECODE_ROWS = (1, 4, 16, 64, 128, 256, 512)
MIXED_ROWS = (0, 4, 16, 128, 256)
CONTEXTS = (128, 1024, 4096)
STEP_TOKENS = (64, 128, 256, 384, 512, 768, 1024, 1152, 1536, 2048, 4096, 8192)
LONG_STEP_TOKENS = (256, 512, 1024, 2048)
"""Steps that compute the middle of a long prompt."""
PROMPT_TOKENS = 744
"""Steps of more prompt tokens have several prompts; some are timed with a single one, too."""
MAX_CONTEXT_TOKENS = 1 << 19
"""Of all rows of a step: about 30 GB of a 7B model's KV cache."""
BLOCK_SIZE = 64
CACHE_SHARE = 0.6
"""Of the free memory; the rest is for activations."""
WARM_TOKENS, NUM_WARM_STEPS = 4096, 8
NUM_FIRST_CALLS = 4
"""Calls of the tower after which a shape that comes again is a CUDA graph."""


class Point(NamedTuple):
    """A step of `num_rows` decode rows with `context` tokens each, and of `num_prompt_tokens` from position `start` of
    prompts of up to `max_chunk` tokens."""

    num_rows: int = 0
    context: int = 0
    num_prompt_tokens: int = 0
    start: int = 0
    max_chunk: int = PROMPT_TOKENS

    def chunks(self) -> list[int]:
        """Prompt tokens of each sequence."""
        whole, rest = divmod(self.num_prompt_tokens, self.max_chunk)
        return [self.max_chunk] * whole + [rest] * (rest > 0)

    def shape(self) -> StepShape:
        pairs = sum(chunk * (self.start + chunk / 2) for chunk in self.chunks())
        return StepShape(self.num_rows, self.context, self.num_prompt_tokens, pairs / max(1, self.num_prompt_tokens))

    def num_blocks(self) -> int:
        lengths = [self.context] * self.num_rows + [self.start + chunk for chunk in self.chunks()]
        return sum(-(-length // BLOCK_SIZE) for length in lengths)


def make_grid(*, max_rows: int, max_tokens: int, max_context: int) -> list[Point]:
    """The steps to time, in an order in which neighbours have little in common."""
    points = [Point(rows, context) for rows in DECODE_ROWS for context in CONTEXTS]
    for total in STEP_TOKENS:
        points += [
            Point(num_prompt_tokens=total, max_chunk=chunk) for chunk in {PROMPT_TOKENS, max(total, PROMPT_TOKENS)}
        ]
        for rows in MIXED_ROWS[1:]:
            contexts = CONTEXTS[:2] if rows >= 128 else CONTEXTS[:1]
            if rows + 64 <= total <= 4096:
                points += [Point(rows, context, total - rows) for context in contexts]
    points += [Point(num_prompt_tokens=total, start=CONTEXTS[-1], max_chunk=total) for total in LONG_STEP_TOKENS]
    points = [
        point
        for point in points
        if point.num_rows <= max_rows
        and point.num_rows + point.num_prompt_tokens <= max_tokens
        and max(point.context, point.start) <= max_context
        and point.num_rows * point.context <= MAX_CONTEXT_TOKENS
    ]
    order = np.random.default_rng(0).permutation(len(points))
    return [points[index] for index in order]


# --- the model -------------------------------------------------------------------------------------------------------


def load(model: str) -> tuple[Family, ModelRunner, Encoder | None]:
    config = EngineConfig()
    opened = open_model(resolve_checkpoint(model), config)
    resolved = resolve(config, opened.checkpoint, opened.backbone)
    encoder = build_encoder(opened, config, device=resolved.device, dtype=resolved.dtype)
    runner = load_runner(opened, resolved, max_step_tokens=WARM_TOKENS, block_size=BLOCK_SIZE)
    return opened.family, runner, encoder


def get_ready(runner: ModelRunner, points: Sequence[Point]) -> list[Point]:
    """Allocate the KV cache, load kernels and record graphs for those of `points` that it has room for."""
    block_bytes = bytes_per_block(runner.kv_layouts)
    most = int(CACHE_SHARE * measure_memory(runner.device).free_bytes / block_bytes)
    points = [point for point in points if point.num_blocks() <= most]
    max_rows = max(point.num_rows + len(point.chunks()) for point in points) + len(warm_point().chunks())
    session_len = max(max(point.context, point.start + point.max_chunk) for point in points)
    num_blocks = max(*(point.num_blocks() for point in points), NUM_WARM_STEPS * warm_point().num_blocks())
    runner.limits = RunnerLimits(
        max_batch_size=max_rows,
        max_step_tokens=max(WARM_TOKENS, *(point.num_rows + point.num_prompt_tokens for point in points)),
        session_len=session_len,
        block_size=BLOCK_SIZE,
    )
    runner.allocate_cache(num_blocks=min(num_blocks, most), share=1.0)
    if runner.device.type == "cuda":
        runner.warm_up()
        runner.record_graphs()
    return points


def warm_point() -> Point:
    return Point(num_prompt_tokens=WARM_TOKENS)


# --- timing ----------------------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A step that can be launched again and again: `begin` lets the runner know its sequences, `end` forget them."""

    begin: StepPlan
    plan: StepPlan
    end: StepPlan


def cut_prompt(begun: BegunSequence, num_tokens: int) -> BegunSequence:
    """Return the sequence with a prompt of so many tokens, behind which one more was generated."""
    return replace(
        begun,
        token_ids=begun.token_ids[: num_tokens + 1],
        positions=begun.positions[..., :num_tokens],
        num_prompt_tokens=num_tokens,
        next_position=num_tokens,
    )


class Stopwatch:
    """Times work on `runner`'s device. On a GPU all that is timed runs behind a step that keeps the GPU busy meanwhile;
    such steps write one part of the KV cache after another."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._is_gpu = runner.stream is not None
        self._rng = np.random.default_rng(1)
        self._vocab_size = runner.decoder.traits.vocab_size
        self._warm_steps: Iterator[Prepared] = iter(())
        self._seq_ids = count()

    def prepare(self, point: Point, first_block: int = 0) -> Prepared:
        """A step of this kind, whose sequences own the blocks from `first_block` on."""
        spans = [(point.context - 1, point.context)] * point.num_rows
        spans += [(point.start, point.start + chunk) for chunk in point.chunks()]
        rows, begun, blocks = list[Row](), list[BegunSequence](), list[AddedBlocks]()
        for seq_id, (start, stop) in zip(self._seq_ids, spans):
            end_block = first_block - (-stop // BLOCK_SIZE)
            blocks.append(AddedBlocks(seq_id, tuple(range(first_block, end_block))))
            first_block = end_block
            rows.append(Row(seq_id=seq_id, start=start, num_tokens=stop - start, samples=True))
            prompt = MultimodalInput(
                token_ids=self._rng.integers(0, self._vocab_size, stop), positions=np.arange(stop), next_position=stop
            )
            params = SamplingParams(max_new_tokens=1, ignore_eos=True)
            one = make_begun(TokenSequence(seq_id, prompt, params))
            begun.append(cut_prompt(one, start) if len(begun) < point.num_rows else one)
        return Prepared(
            begin=StepPlan(begun=tuple(begun), added_blocks=tuple(blocks)),
            plan=StepPlan(rows=tuple(rows)),
            end=StepPlan(ended_ids=tuple(row.seq_id for row in rows)),
        )

    def time_step(self, step: Prepared) -> tuple[float, float]:
        """Milliseconds of a step, and those in which the host launched it."""
        self._runner.apply(step.begin)
        if not self._is_gpu:
            started_s = time.perf_counter()
            launched = self._launch(step)
            launched_s = time.perf_counter()
            self._collect(launched)
            return 1e3 * (time.perf_counter() - started_s), 1e3 * (launched_s - started_s)
        warm = self._launch_warm_step()
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record(self._runner.stream)
        started_s = time.perf_counter()
        launched = self._launch(step)
        host_ms = 1e3 * (time.perf_counter() - started_s)
        ended.record(self._runner.stream)
        self._collect(warm)
        self._collect(launched)
        synchronize(self._runner.device)
        return began.elapsed_time(ended), host_ms

    def time_call(self, encode: Callable[[], object], stream: torch.Stream | None) -> float:
        """Milliseconds of a call of the tower on `stream`."""
        with torch.inference_mode(), on_stream(stream):
            if stream is None:
                started_s = time.perf_counter()
                encode()
                return 1e3 * (time.perf_counter() - started_s)
            assert self._runner.stream is not None
            warm = self._launch_warm_step()
            hold_stream(stream, record_event(self._runner.stream))
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began.record(stream)
            embeddings = encode()
            ended.record(stream)
            self._collect(warm)
            synchronize(self._runner.device)
            del embeddings
            return float(began.elapsed_time(ended))

    def _next_warm_step(self) -> Prepared:
        step = next(self._warm_steps, None)
        if step is None:
            num_blocks = warm_point().num_blocks()
            starts = range(0, self._runner.num_blocks - num_blocks + 1, num_blocks)
            self._warm_steps = (self.prepare(warm_point(), first_block) for first_block in starts)
            step = next(self._warm_steps)
        return step

    def _launch_warm_step(self) -> LaunchedStep:
        step = self._next_warm_step()
        self._runner.apply(step.begin)
        return self._launch(step)

    def _launch(self, step: Prepared) -> LaunchedStep:
        launched = self._runner.launch(step.plan, {})
        self._runner.sample(launched)
        self._runner.apply(step.end)
        return launched

    def _collect(self, launched: LaunchedStep) -> None:
        errors = launched.collect().errors
        if errors:
            raise RuntimeError(f"a step failed: {next(iter(errors.values()))}")


def time_steps(runner: ModelRunner, points: Sequence[Point], rounds: int) -> list[StepTime]:
    stopwatch = Stopwatch(runner)
    times = []
    for point in points:
        step = stopwatch.prepare(point)
        if runner.stream is None:
            stopwatch.time_step(step)
        found = [stopwatch.time_step(step) for _ in range(rounds)]
        ms, host_ms = (statistics.median(each) for each in zip(*found))
        times.append(StepTime(point.shape(), round(ms, 4), round(host_ms, 4)))
    return sorted(times)


def time_calls(
    family: Family, runner: ModelRunner, encoder: Encoder, sides_px: Sequence[int], rounds: int
) -> list[EncodeTime]:
    stopwatch, stream = Stopwatch(runner), make_stream(runner.device, is_urgent=False)
    rng = np.random.default_rng(2)
    times = []
    for side_px in sides_px:
        frames = rng.integers(0, 256, (1, side_px, side_px, 3), dtype=np.uint8)
        media = DecodedMedia(modality=Modality.IMAGE, frames=frames, digest=bytes(32))
        plan = family.plan_media(media.modality, media.size, {})
        features = family.preprocess(media, plan.measures)
        encode = partial(encoder.encode, [features])
        found = [stopwatch.time_call(encode, stream) for _ in range(NUM_FIRST_CALLS + rounds)]
        times.append(EncodeTime(plan.num_units, round(statistics.median(found[NUM_FIRST_CALLS:]), 4)))
    return sorted(times)


class StartCosts(NamedTuple):
    """What the engine measures at start, and the seconds that it takes for that."""

    costs: StepCosts
    seconds: float

    def find_errors(self, recording: Recording) -> Errors:
        """The relative errors of predictions for the recorded steps with prompts."""
        times = StepTimes(self.costs)
        return compare(
            (1e3 * times.predict(make_work(time.shape)), time.ms)
            for time in recording.steps
            if time.shape.num_prompt_tokens
        )


def make_work(shape: StepShape) -> StepWork:
    return StepWork(
        shape.num_decode_rows,
        round(shape.num_decode_rows * shape.decode_context),
        shape.num_prompt_tokens,
        shape.num_prompt_tokens * shape.prompt_context,
    )


def measure_at_start(runner: ModelRunner) -> StartCosts:
    started_s = time.perf_counter()
    costs = runner.measure_step_costs()
    return StartCosts(costs, time.perf_counter() - started_s)


def record(model: str, points: Sequence[Point], sides_px: Sequence[int], rounds: int) -> tuple[Recording, StartCosts]:
    family, runner, encoder = load(model)
    points = get_ready(runner, points)
    device = runner.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
    at_start = measure_at_start(runner)
    steps = time_steps(runner, points, rounds)
    encodes = [] if encoder is None else time_calls(family, runner, encoder, sides_px, rounds)
    recording = Recording(
        device=name,
        model=f"{Path(model).name}, {str(runner.dtype).removeprefix('torch.')}",
        source=f"step_times.py, torch {torch.__version__}, median of {rounds}",
        steps=tuple(steps),
        encodes=tuple(encodes),
    )
    return recording, at_start


def make_panels(recording: Recording) -> list[Panel]:
    series: dict[str, tuple[list[float], list[float]]] = {}
    for (num_rows, _, num_prompt_tokens, _), ms, _ in recording.steps:
        xs, ys = series.setdefault("with prompts" if num_prompt_tokens else "decode rows alone", ([], []))
        xs.append(num_rows + num_prompt_tokens)
        ys.append(ms)
    calls = [each.num_patches for each in recording.encodes], [each.ms for each in recording.encodes]
    return [
        Lines(title="a step, ms", x_title="tokens", series=series, is_scattered=True),
        Lines(title="a call of the tower, ms", x_title="patches", series={"tower": calls} if calls[0] else {}),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-rows", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=8192)
    parser.add_argument("--max-context", type=int, default=4096)
    parser.add_argument("--sides-px", default="224,448,672,1036", help="of square pictures, with commas")
    add_plot_option(parser)
    args = parser.parse_args(argv)
    started_s = time.perf_counter()
    points = make_grid(max_rows=args.max_rows, max_tokens=args.max_tokens, max_context=args.max_context)
    if not points or args.rounds < 1:
        parser.error("--rounds must be at least 1, and --max-rows, --max-tokens and --max-context must leave a step")
    recording, at_start = record(args.model, points, [int(side) for side in args.sides_px.split(",")], args.rounds)
    if args.out is not None:
        recording.save(args.out)
    seconds = round(time.perf_counter() - started_s, 1)
    counts = {"steps": len(recording.steps), "left_out": len(points) - len(recording.steps)}
    report(what="recording", device=recording.device, model=recording.model, seconds=seconds, **counts)
    times = recording.fit()
    for name, errors in recording.find_errors(times).items():
        coefficients = [float(f"{value:.4g}") for value in getattr(times, name)]
        report(what="fit", model=name, coefficients_ms=coefficients, **errors._asdict())
    report(what="at start", seconds=round(at_start.seconds, 3), **at_start.find_errors(recording)._asdict())
    if args.plot is not None:
        save_plot(args.plot, f"{recording.model} on {recording.device}", make_panels(recording))


if __name__ == "__main__":
    main()
