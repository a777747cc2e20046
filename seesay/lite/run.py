"""Quantizes a model layer by layer: one layer's weights and the hidden states of the calibration set are in memory.

A layer is calibrated on the outputs of the quantized layers before it, written, and read back as the engine reads it,
so that what is measured is what will be served.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.lite.calibration.batches import Prompt
from seesay.lite.calibration.dataset import CalibrationSet, LoadCalibrationSet
from seesay.lite.calibration.prompts import PromptMaker
from seesay.lite.layers import Passage
from seesay.lite.methods.method import Method, PlainMatrix, make_loader, relative_error
from seesay.lite.methods.plain_layer import EXPERTS, PlainLayer, Source
from seesay.lite.methods.statistics import InputStatistics
from seesay.lite.methods.stored_layer import StoredLayer
from seesay.lite.opened import Opened, open_source
from seesay.lite.output import make_config, write_checkpoint
from seesay.lite.progress import Progress
from seesay.lite.report import Report
from seesay.lite.run_options import LiteSettings
from seesay.lite.tower import Tower
from seesay.lite.work_folder import WorkFolder, check_run, check_usable, writing
from seesay.system.hashing import digest
from seesay.version import __version__

logger = logging.getLogger("seesay")

_HELD_OUT_SHARE, _MAX_HELD_OUT = 8, 16
"""One prompt of so many is held out of calibration, and at most so many are."""

Score = Callable[[Path], dict[str, float]]


@torch.inference_mode()
def quantize(
    settings: LiteSettings,
    method: Method,
    options: Mapping[str, object],
    load_calibration: LoadCalibrationSet | None,
    score: Score | None = None,
) -> Report:
    """Write the quantized model to `settings.work_dir`, and return the report, which is there, too.

    options: those of the method, for the report, and to tell runs apart. load_calibration: None where the method needs
    no calibration set; then neither outputs nor perplexity are measured. score: measures a folder's scores by task.
    Raises `ConfigError` and `CheckpointError`, what is found out fast before what takes loading or computing.
    """
    work_dir = Path(settings.work_dir).expanduser()
    check_usable(work_dir)
    opened = open_source(settings)
    check_sizes(opened.source, method)
    described = _describe(opened, settings, method, options)
    check_run(work_dir, described)
    tower = Tower(opened, method) if settings.vision else None
    prompts = [] if load_calibration is None else make_prompts(opened, settings, load_calibration())
    with WorkFolder(work_dir, {**described, "calibration": digest_prompts(prompts)}) as work:
        return _write(settings, method, options, work, opened, tower, prompts, score)


def _write(
    settings: LiteSettings,
    method: Method,
    options: Mapping[str, object],
    work: WorkFolder,
    opened: Opened,
    tower: Tower | None,
    prompts: Sequence[Prompt],
    score: Score | None,
) -> Report:
    """Quantize what is not finished yet, and write the result."""
    report = Report(model=str(settings.model), method=method.name, settings=dict(options))
    excluded = opened.tower_names if tower is None else tower.plain_modules
    excluded += opened.source.renamed_head + opened.source.plain_modules
    config = make_config(opened.model.checkpoint, method.config(excluded))
    try:
        parts = _quantize_layers(opened.source, settings, method, work, config, prompts, report)
    except KeyboardInterrupt:
        logger.warning("%s: %d layers are done; the same command goes on with them", work.path, work.num_finished)
        raise
    replaced = [stored for name, stored in opened.source.stored_as.items() if name.startswith("layers.")]
    if tower is not None:
        parts.append(_quantize_tower(tower, work, config, prompts, report))
        replaced += tower.replaced
    with writing(work.path):
        staged = work.stage()
        write_checkpoint(staged, opened.model.checkpoint, parts, config, replaced)
    if score is not None:
        with Progress("scores", 2, "models") as progress:
            before = score(opened.folder)
            progress.advance()
            report.scores = before, score(staged)
            progress.advance()
    with writing(work.path):
        report.write(staged)
        work.publish()
    return report


def make_prompts(opened: Opened, settings: LiteSettings, calibration: CalibrationSet) -> list[Prompt]:
    """Return the prompts of the calibration set. Raises `ConfigError` if there are none."""
    encoder = opened.build_encoder() if calibration.conversations else None
    maker = PromptMaker(settings.model, opened.model, encoder, max_tokens=opened.max_tokens)
    return maker.make(calibration, settings.calib_samples)


def check_sizes(source: Source, method: Method) -> None:
    """Raise `ConfigError` for the first linear layer that the method's format cannot have."""
    for path, linear in source.make_quantized_decoder().linears.items():
        if path.startswith("layers.") and linear.is_quantizable:
            for part in linear.list_weights(path)[0]["weight"].parts:
                num_outputs, num_inputs = part.stored_shape
                method.check_sizes(source.stored_module(part.tensor.removesuffix(".weight")), num_outputs, num_inputs)


def digest_prompts(prompts: Sequence[Prompt]) -> str:
    """Return what tells calibration prompts apart: tokens, and hashes of media."""
    pieces = [b"calibration"]
    for prompt in prompts:
        pieces += [prompt.input.token_ids.tobytes(), *(item.hash for item in prompt.input.items)]
    return digest(*pieces).hex()


def _describe(
    opened: Opened, settings: LiteSettings, method: Method, options: Mapping[str, object]
) -> dict[str, object]:
    """Return the settings that determine the result, without the calibration set, to tell runs apart."""
    return {
        **options,
        "method": method.name,
        "version": __version__,
        "model": opened.model.checkpoint.revision_digest.hex(),
        "batch_size": settings.batch_size,
        "device": opened.device.type,
        "dtype": str(opened.resolved.dtype),
        "vision": settings.vision,
    }


def _quantize_tower(
    tower: Tower, work: WorkFolder, config: Mapping[str, object], prompts: Sequence[Prompt], report: Report
) -> Checkpoint:
    """Quantize the tower if it is not finished yet, and return it."""
    part = work.find("tower")
    if part is None:
        tensors, errors = tower.quantize(prompts)
        part = work.finish("tower", tensors, config, {"weights": errors})
    report.tower = work.read_notes("tower")["weights"]
    return part


def _quantize_layers(
    source: Source,
    settings: LiteSettings,
    method: Method,
    work: WorkFolder,
    config: Mapping[str, object],
    prompts: Sequence[Prompt],
    report: Report,
) -> list[Checkpoint]:
    """Quantize all layers that are not finished yet. Returns all of them."""
    passage = None
    if prompts:
        calibrating, held_out = hold_out(prompts)
        passage = Passage(source, calibrating, held_out, settings.batch_size)
        report.num_calibration_tokens = passage.num_tokens
    if work.num_finished:
        logger.warning("%s: going on with an interrupted run, %d layers are done", work.path, work.num_finished)
    parts = []
    with Progress(method.name, source.config.num_layers, "layers") as progress:
        for index in range(source.config.num_layers):
            name = f"layer-{index:03d}"
            part = work.find(name)
            if part is None:
                tensors, notes = _quantize_layer(PlainLayer(source, index), method, passage)
                part = work.finish(name, tensors, config, notes)
            notes = work.read_notes(name)
            if passage is not None:
                notes["output"] = passage.advance(PlainLayer(source, index), part)
            report.layers.append({"layer": index, **notes})
            parts.append(part)
            progress.advance()
    if passage is not None:
        report.num_held_out, *both = passage.perplexities()
        if report.num_held_out:
            report.perplexity = both[0], both[1]
    return parts


def _quantize_layer(
    layer: PlainLayer, method: Method, passage: Passage | None
) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return the tensors of the quantized layer by their names in the checkpoint, and notes for the report."""
    statistics: Mapping[str, InputStatistics] = {}
    notes: dict[str, object] = {}
    if passage is not None and method.needs_inputs:
        calibrated, notes = method.prepare(layer, passage.calibrate(layer, method))
        statistics = calibrated.statistics
        notes |= _note_unseen(layer, statistics)
    loader = make_loader(method, layer.source.checkpoint, layer.source.dtype)
    stored = StoredLayer(layer)
    tensors, errors = {}, {}
    for name, linear in layer.linears.items():
        if linear.is_quantizable:
            inputs = [statistics.get(piece) for piece in layer.name_pieces(name)]
            pieces, errors[name] = _quantize_pieces(stored, name, method, inputs)
            tensors[name] = loader, pieces
    return stored.export(tensors), {"weights": errors, **notes}


def _quantize_pieces(
    stored: StoredLayer, name: str, method: Method, inputs: Sequence[InputStatistics | None]
) -> tuple[list[Mapping[str, Tensor]], float]:
    """Return the tensors of each piece of a linear layer, and the size of the error of all relative to their own.
    inputs: what is known of those of each piece."""
    found, squares = [], []
    for rows, seen in zip(stored.pieces(name), inputs, strict=True):
        plain = PlainMatrix(name=name, data=rows, stored_type=stored.weight_type(name), inputs=seen)
        quantized = method.quantize(plain)
        found.append(quantized.tensors)
        squares.append((relative_error(quantized, plain), float(rows.norm())))
    off = math.hypot(*(error * size for error, size in squares))
    return found, off / max(math.hypot(*(size for _, size in squares)), 1e-30)


def _note_unseen(layer: PlainLayer, statistics: Mapping[str, InputStatistics]) -> dict[str, object]:
    """Return the numbers of experts that no token of the calibration set chose, for the report."""
    experts = layer.name_pieces(EXPERTS) if EXPERTS in layer.linears else []
    unseen = [number for number, piece in enumerate(experts) if piece not in statistics]
    return {"unseen_experts": unseen} if unseen else {}


def hold_out(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts to calibrate with, and those that are held out, which are spread evenly. Of one prompt none is
    held out."""
    count = min(_MAX_HELD_OUT, max(1, len(prompts) // _HELD_OUT_SHARE)) if len(prompts) > 1 else 0
    chosen = {i * len(prompts) // count for i in range(count)} if count else set()
    calibrating = [prompt for i, prompt in enumerate(prompts) if i not in chosen]
    return calibrating, [prompts[i] for i in sorted(chosen)]
