"""Towers and decoders of the families on the GPU: published sizes, random weights, nothing to download.

    python benchmarks/families.py [--only FAMILY ...] [--limit-s 150] [--skip-towers] [--skip-decoders] [--plot FILE]

*Pictures*: pictures per second from decoded pixels to embeddings on the device, beside Transformers: the family's image
processor (of its default backend), then its own tower (with its default attention) of the same weights. Here 8 pictures
are preprocessed and encoded at once, there 1 or 8, whichever is faster. `ratio` is how many times as many pictures we
encode; it is never to be below 3.

*Towers*: the same without preprocessing: both begin with what that returns on the host, uint8 pixels or patches here
and normalized float32 there. `ratio` is never to be below 1; `tflops` are the operations of Transformers' products and
attention per second. `error` is the largest difference of the rows, relative to the largest number, where both have
them in the same order. Models that are code beside their weights are compared with the plain ones of `tests/reference`.

*Decoders*: milliseconds of a decode step of one row, one step ahead, as the engine computes it, and how long it takes
per gigabyte of weights that it reads. `ratio` is that beside Qwen2.5-VL's decoder, which is measured first; it is never
to be above 1.05.

Prints a JSON line for each, and for what --limit-s left out and the architectures of which no model is there
(`not_measured`). Ends with status 1 if a ratio is missed.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from decode_host import BLOCK_SIZE, begin
from PIL import Image
from preprocess import draw_pixels
from published import MadeCheckpoint, Published, build_theirs, make_family, make_files, make_processor
from published_models import MODELS, list_others
from torch.utils.flop_counter import FlopCounterMode

from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.device.query import synchronize
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, Row, StepPlan
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.values import DecodedMedia, Modality
from seesay.vl.family import Features

LEAST_PICTURES_RATIO, LEAST_TOWER_RATIO, MOST_DECODE_RATIO = 3.0, 1.0, 1.05
NUM_PICTURES, PICTURE = 8, (1024, 1024)
ROUNDS, TOWER_LAYERS = 3, 4
"""Timed calls, and layers of a decoder that is only there for its tower."""
NUM_UNTIMED, NUM_STEPS = 20, 100
BASELINE = "qwen2_5_vl"

Json = dict[str, Any]


def report(**figures: Any) -> Json:
    print(json.dumps(figures), flush=True)
    return figures


def seconds_of(run: Callable[[], object], device: torch.device, *, rounds: int = ROUNDS, untimed: int = 3) -> float:
    """Median seconds of a call until its result is there. The first calls compile kernels and record graphs."""
    spent = []
    for index in range(untimed + rounds):
        synchronize(device)
        started = time.perf_counter()
        run()
        synchronize(device)
        if index >= untimed:
            spent.append(time.perf_counter() - started)
    return median(spent)


# --- towers -----------------------------------------------------------------------------------------------------------


def put(inputs: Json, device: torch.device, dtype: torch.dtype) -> Json:
    """Return a processor's tensors on the device."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    return {name: value.to(device, dtype if value.is_floating_point() else None) for name, value in tensors.items()}


def encode_there(tower: Any, inputs: Json, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the rows that Transformers' tower, or the plain one, makes of what its processor returned."""
    if hasattr(tower, "make_rows"):
        rows: torch.Tensor = tower.make_rows(**put(inputs, device, dtype))
        return rows
    known = inspect.signature(tower.get_image_features).parameters
    found = tower.get_image_features(**put({name: inputs[name] for name in inputs if name in known}, device, dtype))
    found = getattr(found, "pooler_output", found)
    return (
        torch.cat([rows.flatten(0, -2) for rows in found]) if isinstance(found, list | tuple) else found.flatten(0, -2)
    )


def count_operations(run: Callable[[], object]) -> int:
    """Return the operations of matrix products and attention in a call."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def measure_tower(name: str, model: Published, device: torch.device, dtype: torch.dtype) -> list[Json]:
    """The figures of a tower, with preprocessing and without."""
    theirs = build_theirs(model, device, dtype, num_layers=TOWER_LAYERS)
    given = dict(theirs.state_dict())
    shapes = {key: tuple(tensor.shape) for key, tensor in given.items()}
    config = model.make_config(num_layers=TOWER_LAYERS)
    family = make_family(MadeCheckpoint.make(config, make_files(model), shapes, given))
    encoder = family.build_encoder(device, dtype)
    process, pixels = make_processor(model), [draw_pixels(model.picture or PICTURE, i) for i in range(NUM_PICTURES)]
    media = [DecodedMedia(modality=Modality.IMAGE, frames=each[None], digest=bytes(32)) for each in pixels]
    images = [Image.fromarray(each) for each in pixels]

    def prepare() -> list[Features]:
        return [family.preprocess(each, family.plan_media(Modality.IMAGE, each.size, {}).measures) for each in media]

    features, together, alone = prepare(), process(images), process(images[:1])
    error = compare(torch.cat(encoder.encode(features[:1])), encode_there(theirs, alone, device, dtype))
    operations = count_operations(lambda: encode_there(theirs, alone, device, dtype))
    ours = NUM_PICTURES / seconds_of(lambda: encoder.encode(features), device)
    batched = NUM_PICTURES / seconds_of(lambda: encode_there(theirs, together, device, dtype), device, untimed=1)
    single = 1 / seconds_of(lambda: encode_there(theirs, alone, device, dtype), device, untimed=1)
    family.resizes_on_device = device.type == "cuda"
    whole = NUM_PICTURES / seconds_of(lambda: encoder.encode(prepare()), device)

    def process_there(count: int) -> float:
        run = lambda: encode_there(theirs, process(images[:count]), device, dtype)  # noqa: E731
        return count / seconds_of(run, device, untimed=1, rounds=2)

    whole_there = max(process_there(1), process_there(NUM_PICTURES))
    there = max(batched, single)
    pictures = report(
        pictures=name,
        ours_per_s=round(whole, 1),
        transformers_per_s=round(whole_there, 1),
        ratio=round(whole / whole_there, 2),
    )
    tower = report(
        tower=name,
        patches=family.num_units(features[0]),
        ours_per_s=round(ours, 1),
        transformers_per_s=round(there, 1),
        ratio=round(ours / there, 2),
        tflops=round(ours * operations / 1e12, 1),
        transformers_tflops=round(there * operations / 1e12, 1),
        error=error,
    )
    return [pictures, tower]


def compare(rows: torch.Tensor, expected: torch.Tensor) -> float | None:
    """Return the largest difference relative to the largest number; None where the family puts the rows of tiles in
    another order, and so has not as many. Columns behind those of Transformers' are for the decoder's inner layers."""
    rows = rows[:, : expected.shape[1]]
    if rows.shape != expected.shape:
        return None
    return round(float((rows - expected).abs().max() / expected.abs().max()), 4)


# --- decoders ---------------------------------------------------------------------------------------------------------


def make_shapes(model: Published) -> dict[str, tuple[int, ...]]:
    """Return the tensors that Transformers' model has, by their names."""
    theirs = build_theirs(model, torch.device("meta"), torch.bfloat16)
    return {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}


def load_decoder(model: Published, device: torch.device, dtype: torch.dtype) -> ModelRunner:
    """Return the decoder of a model, ready for steps of one row."""
    family = make_family(MadeCheckpoint.make(model.make_config(), make_files(model), make_shapes(model)))
    backbone, session_len = family.backbone(), 1024
    decoder = ComposedDecoder.load(
        family.checkpoint,
        backbone.decoder_config(session_len=session_len),
        decoder_name=backbone.decoder_name,
        device=device,
        dtype=dtype,
    )
    limits = RunnerLimits(max_batch_size=1, max_step_tokens=16, session_len=session_len, block_size=BLOCK_SIZE)
    runner = ModelRunner(decoder, limits)
    runner.allocate_cache(num_blocks=-(-session_len // BLOCK_SIZE), share=0.5)
    if device.type == "cuda":
        runner.warm_up()
        runner.record_graphs()
    return runner


def count_bytes(runner: ModelRunner) -> int:
    """Bytes of weights that a decode step reads: all but the embedding table, unless that is the head, too."""
    total = sum(tensor.nbytes for tensor in runner.decoder.weights.tensors())
    assert isinstance(runner.decoder, ComposedDecoder)
    config = runner.decoder.config
    if config.tied_embeddings:
        return total
    return total - config.vocab_size * config.hidden_size * torch.empty((), dtype=runner.dtype).element_size()


def time_steps(runner: ModelRunner, num_steps: int = NUM_STEPS) -> float:
    """Median seconds of a decode step of one row, over runs of steps that are launched one ahead."""
    starts = begin(runner, SamplingParams(), 1)
    before, times = None, []
    for index in range(NUM_UNTIMED + num_steps):
        started = time.perf_counter()
        full = np.flatnonzero(starts % BLOCK_SIZE == 0).tolist()
        plan = StepPlan(
            rows=tuple(Row(seq_id, start, 1, True) for seq_id, start in enumerate(starts.tolist())),
            added_blocks=tuple(AddedBlocks(seq_id, (1,)) for seq_id in full),
        )
        runner.apply(plan)
        launched = runner.launch(plan, {})
        runner.sample(launched)
        if before is not None:
            before.collect()
        if index >= NUM_UNTIMED:
            times.append(time.perf_counter() - started)
        before, starts = launched, starts + 1
    assert before is not None
    before.collect()
    return median(times)


def measure_decoder(
    name: str, model: Published, device: torch.device, dtype: torch.dtype, baseline: float | None
) -> Json:
    """The figures of a decoder; `baseline` are the milliseconds per gigabyte of Qwen2.5-VL's."""
    runner = load_decoder(model, device, dtype)
    seconds, num_bytes = time_steps(runner), count_bytes(runner)
    ms_per_gb = 1e3 * seconds / (num_bytes / 1e9)
    return report(
        decoder=name,
        gigabytes=round(num_bytes / 1e9, 3),
        ms=round(1e3 * seconds, 3),
        ms_per_gb=round(ms_per_gb, 4),
        ratio=None if baseline is None else round(ms_per_gb / baseline, 3),
    )


def list_decoders(only: Sequence[str]) -> dict[str, Published]:
    """Return a model of each decoder that the chosen families have, Qwen2.5-VL's first."""
    models = {name: model for name, model in MODELS.items() if name in (BASELINE, *only)}
    chosen = {model.decoder: model for model in models.values() if model.reference is None}
    if "llava" in only or "llava_next" in only:  # the other decoders that these have
        chosen |= {name: MODELS["llava_next"].with_decoder(name) for name in ("llama3", "qwen2")}
    return {BASELINE: chosen.pop(BASELINE), **chosen}


# --- all --------------------------------------------------------------------------------------------------------------


@contextmanager
def freed(device: torch.device) -> Iterator[None]:
    """Free the device's memory behind the block."""
    try:
        yield
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def find_missed(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what has not the ratio that it must have."""
    missed = []
    for record in records:
        ratio = record["ratio"]
        if "pictures" in record and ratio < LEAST_PICTURES_RATIO:
            missed.append(f"pictures of {record['pictures']}: {ratio} times Transformers' per second")
        if "tower" in record and ratio < LEAST_TOWER_RATIO:
            missed.append(f"tower of {record['tower']}: {ratio} times Transformers' pictures per second")
        if "decoder" in record and ratio is not None and ratio > MOST_DECODE_RATIO:
            missed.append(f"decoder {record['decoder']}: {ratio} times Qwen2.5's time per byte")
    return missed


@torch.inference_mode()
def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="FAMILY")
    parser.add_argument("--limit-s", type=float, default=150.0, help="begin nothing more after so many seconds")
    parser.add_argument("--skip-towers", action="store_true")
    parser.add_argument("--skip-decoders", action="store_true")
    parser.add_argument("--device", default="cuda")
    add_plot_option(parser)
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    until, records, left_out = time.perf_counter() + options.limit_s, [], []
    for name in () if options.skip_towers else options.only:
        if time.perf_counter() > until:
            left_out.append(f"tower of {name}")
            continue
        with freed(device):
            records += measure_tower(name, MODELS[name], device, dtype)
    baseline = None
    for name, model in ({} if options.skip_decoders else list_decoders(options.only)).items():
        if time.perf_counter() > until:
            left_out.append(f"decoder {name}")
            continue
        with freed(device):
            records.append(measure_decoder(name, model, device, dtype, baseline))
            baseline = baseline or records[-1]["ms_per_gb"]
    missed = find_missed(records)
    report(missed=missed, left_out=left_out, not_measured=list_others())
    if options.plot is not None:
        series = {"ours_per_s": "seesay", "transformers_per_s": "Transformers"}
        plots = [
            make_bars(f"pictures per second, {label}", [record for record in records if key in record], key, series)
            for key, label in (("pictures", "preprocessed and encoded"), ("tower", "encoded"))
        ]
        save_plot(options.plot, "Pictures to embeddings", plots)
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
