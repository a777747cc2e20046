"""`seesay lite calibrate`: statistics of the inputs of every linear layer, for a look or for other tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from seesay.lite.calibration.batches import Prompt
from seesay.lite.calibration.dataset import LoadCalibrationSet
from seesay.lite.layers import Passage
from seesay.lite.methods.plain_layer import PlainLayer, Source
from seesay.lite.methods.statistics import InputStatistics
from seesay.lite.methods.stored_layer import StoredLayer
from seesay.lite.opened import open_source
from seesay.lite.progress import Progress
from seesay.lite.run import make_prompts
from seesay.lite.run_options import LiteSettings
from seesay.lite.work_folder import WorkFolder, check_run, writing

STATISTICS_FILE, SUMMARY_FILE = "calibration.safetensors", "calibration.json"
_RUN = {"method": "calibrate"}
"""Settings of its runs in work folders. A run that was interrupted has no finished parts, and begins anew."""


@torch.inference_mode()
def write_statistics(settings: LiteSettings, load_calibration: LoadCalibrationSet) -> dict[str, Any]:
    """Write `MODULE.input_abs_max` and `MODULE.input_abs_mean` float32 [in] of every linear layer of the decoder, by
    the checkpoint's names, experts one by one without those that no token chose, and return a summary, which is
    written, too. Raises `ConfigError` and `CheckpointError`."""
    work_dir = Path(settings.work_dir).expanduser()
    check_run(work_dir, _RUN)
    opened = open_source(settings)
    calibration = load_calibration()
    prompts = make_prompts(opened, settings, calibration)
    with WorkFolder(work_dir, _RUN) as work:
        tensors, num_tokens = _collect(opened.source, prompts, settings.batch_size)
        summary = {
            "model": str(settings.model),
            "calibration": calibration.name,
            "tokens": num_tokens,
            "modules": sorted({name.rpartition(".")[0] for name in tensors}),
        }
        with writing(work_dir):
            staged = work.stage()
            save_file(tensors, staged / STATISTICS_FILE, metadata={"tokens": str(num_tokens)})
            text = json.dumps(summary, indent=2, ensure_ascii=False)
            (staged / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")
            shutil.copymode(
                staged / SUMMARY_FILE, staged / STATISTICS_FILE
            )  # safetensors makes files that only their owner can read
            work.publish()
    return summary


def _collect(source: Source, prompts: Sequence[Prompt], batch_size: int) -> tuple[dict[str, Tensor], int]:
    """Return the statistics by the checkpoint's names, and the number of tokens."""
    passage = Passage(source, prompts, (), batch_size)
    tensors: dict[str, Tensor] = {}
    with Progress("calibrate", source.config.num_layers, "layers") as progress:
        for index in range(source.config.num_layers):
            layer = PlainLayer(source, index)
            tensors |= _name_tensors(layer, passage.observe(layer))
            passage.advance(layer, None)
            progress.advance()
    return tensors, passage.num_tokens


def _name_tensors(layer: PlainLayer, statistics: Mapping[str, InputStatistics]) -> dict[str, Tensor]:
    found = {}
    stored = StoredLayer(layer)
    pieces = {piece: modules for name in layer.linears for piece, modules in stored.modules(name).items()}
    for name, inputs in statistics.items():
        for module in pieces[name]:
            found[f"{module}.input_abs_max"] = inputs.abs_max.cpu().clone()
            found[f"{module}.input_abs_mean"] = inputs.abs_mean.cpu().clone()
    return found
