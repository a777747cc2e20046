"""`seesay lite calibrate`: statistics of the inputs of every linear layer, for a look or for other tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from seesay.lite.dataset import LoadCalibrationSet
from seesay.lite.layers import Passage
from seesay.lite.opened import open_source
from seesay.lite.plain_layer import PlainLayer
from seesay.lite.progress import track_layers
from seesay.lite.run import make_prompts
from seesay.lite.settings import LiteSettings
from seesay.lite.statistics import InputStatistics
from seesay.lite.work_folder import check_usable, writing

STATISTICS_FILE, SUMMARY_FILE = "calibration.safetensors", "calibration.json"


@torch.inference_mode()
def write_statistics(settings: LiteSettings, load_calibration: LoadCalibrationSet) -> dict[str, Any]:
    """Write `MODULE.input_abs_max` and `MODULE.input_abs_mean` float32 [in] of every linear layer of the decoder, by
    the checkpoint's names, and return a summary, which is written, too. Raises `ConfigError` and `CheckpointError`."""
    work_dir = Path(settings.work_dir).expanduser()
    check_usable(work_dir)
    opened = open_source(settings)
    source = opened.source
    calibration = load_calibration()
    passage = Passage(source, make_prompts(opened, settings, calibration), (), settings.batch_size)
    tensors: dict[str, Tensor] = {}
    for index in track_layers("calibrate", source.config.num_layers):
        layer = PlainLayer(source, index)
        tensors |= _name_tensors(layer, passage.observe(layer))
        passage.advance(layer, None)
    summary = {
        "model": str(settings.model),
        "calibration": calibration.name,
        "tokens": passage.num_tokens,
        "modules": sorted({name.rpartition(".")[0] for name in tensors}),
    }
    with writing(work_dir):
        work_dir.mkdir(parents=True, exist_ok=True)
        new = work_dir / f"{STATISTICS_FILE}.new"
        save_file(tensors, new, metadata={"tokens": str(passage.num_tokens)})
        new.replace(work_dir / STATISTICS_FILE)
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        (work_dir / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")
        shutil.copymode(work_dir / SUMMARY_FILE, work_dir / STATISTICS_FILE)  # safetensors lets nobody else read
    return summary


def _name_tensors(layer: PlainLayer, statistics: Mapping[str, InputStatistics]) -> dict[str, Tensor]:
    found = {}
    for name, inputs in statistics.items():
        for module in layer.stored_modules(name):
            found[f"{module}.input_abs_max"] = inputs.abs_max.cpu().clone()
            found[f"{module}.input_abs_mean"] = inputs.abs_mean.cpu().clone()
    return found
