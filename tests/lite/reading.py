"""Quantized folders multiplied out by code of their own, and logits of folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llm import backbones
from safetensors.torch import load_file, save_file

from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import MultimodalInput

AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def _fields(words: torch.Tensor, bits: int) -> list[torch.Tensor]:
    wide = words.to(torch.int64) & 0xFFFFFFFF
    return [(wide >> shift) & ((1 << bits) - 1) for shift in range(0, 32, bits)]


def _unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """[N, K] to [N, 8 K]."""
    numbers = torch.empty(len(words), words.shape[1], 8)
    for field, values in enumerate(_fields(words, 4)):
        numbers[:, :, AWQ_OUTPUTS[field]] = values.float()
    return numbers.flatten(1)


def _multiply_out(found: dict[str, torch.Tensor], settings: dict[str, Any]) -> torch.Tensor:
    if settings["quant_method"] == "awq":
        numbers, zeros, scales = _unpack_awq(found["qweight"]), _unpack_awq(found["qzeros"]), found["scales"].float()
        rows = torch.arange(len(numbers)) // (len(numbers) // len(scales))
        return ((numbers - zeros[rows]) * scales[rows]).t()
    if settings["quant_method"] == "gptq":
        bits, scales = settings["bits"], found["scales"].float()
        numbers = torch.stack(_fields(found["qweight"], bits), 1).flatten(0, 1).float()
        zeros = torch.stack(_fields(found["qzeros"], bits), 2).flatten(1).float() + 1
        rows = found["g_idx"].long()
        return ((numbers - zeros[rows]) * scales[rows]).t()
    return found["weight"].float() * found["weight_scale"].float()


def multiply_out(folder: Path, target: Path) -> Path:
    """Write the plain model that a quantized folder stands for."""
    shutil.copytree(folder, target)
    config = read_config(target)
    settings = config.pop("quantization_config")
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(target / "model.safetensors")
    suffix = ".weight_scale" if settings["quant_method"] == "compressed-tensors" else ".scales"
    modules = [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]
    assert modules, "nothing is quantized"
    for module in modules:
        names = [name for name in tensors if name.rpartition(".")[0] == module and not name.endswith(".bias")]
        found = {name.removeprefix(f"{module}."): tensors.pop(name) for name in names}
        tensors[f"{module}.weight"] = _multiply_out(found, settings).contiguous()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def make_prompt(length: int, *, has_three_axes: bool = False) -> MultimodalInput:
    positions = np.arange(length)
    if has_three_axes:
        positions = np.stack([positions] * 3)
    ids = np.random.default_rng(7).integers(3, 250, length)
    return MultimodalInput(token_ids=ids, positions=positions, next_position=length)


def logits_of(folder: Path, length: int = 40) -> torch.Tensor:
    """Our engine's logits of a random text."""
    from seesay.config import EngineConfig
    from seesay.engine.core.loading.resolved_config import resolve
    from seesay.engine.core.loading.runner_loading import load_runner
    from seesay.engine.opened_model import open_model

    config = EngineConfig(device_type="cpu")
    model = open_model(folder, config)
    text = model.backbone.text_config
    prompt = make_prompt(length, has_three_axes="mrope_section" in (getattr(text, "rope_parameters", None) or {}))
    runner = load_runner(model, resolve(config, model.checkpoint, model.backbone), max_step_tokens=64, block_size=16)
    runner.allocate_cache(num_blocks=16, share=0.5)
    params = SamplingParams(output_logits="all", max_new_tokens=1)
    _, [logits] = backbones.Driver(runner).generate([prompt], [params])
    return logits


def reference_logits(folder: Path, length: int = 40) -> torch.Tensor:
    """Those of Transformers."""
    import transformers

    kind = getattr(transformers, read_config(folder)["architectures"][0])
    model = kind.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(make_prompt(length).token_ids)[None]
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
        return logits


TEXT = "the game in the frame, the fame of the inn; " * 40
