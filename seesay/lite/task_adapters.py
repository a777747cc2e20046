"""The adapters that InternLM-XComposer2.5 (arXiv 2407.03320) has beside its weights, for web pages and for articles, as
folders like those that PEFT writes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.adapter_folder import CONFIG_FILE, WEIGHTS_FILE
from seesay.checkpoint.model_path import resolve_checkpoint
from seesay.config.checks import require
from seesay.errors import CheckpointError
from seesay.lite.work_folder import writing

_TASKS = {"web": ("web",), "write": ("sft", "dpo")}
"""The products that the published code adds for a task, each by a factor of 1."""
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<product>\w+)_(?P<factor>[AB])\.weight")


def extract_tasks(model: str | os.PathLike[str], work_dir: str | os.PathLike[str] = "./work_dir") -> tuple[Path, ...]:
    """Write the adapter of each task of a checkpoint of InternLM-XComposer2.5 to `work_dir`, a new or an empty folder,
    and return their folders there. Raises `CheckpointError` for a checkpoint without them."""
    target = Path(work_dir)
    has_files = target.exists() and (not target.is_dir() or any(target.iterdir()))
    require(not has_files, "work_dir", str(target), "must be a new or an empty folder")
    checkpoint = Checkpoint.load(resolve_checkpoint(model))
    found = _find_products(checkpoint)
    with writing(target):
        for task, products in _TASKS.items():
            _write(checkpoint, target / task, [found[product] for product in products])
    return tuple(target / task for task in _TASKS)


def _find_products(checkpoint: Checkpoint) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return the tensors' names by product, module and factor."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name in checkpoint.stored:
        if match := _NAME.fullmatch(name):
            found.setdefault(match["product"], {}).setdefault(match["module"], {})[match["factor"]] = name
    for product in (product for products in _TASKS.values() for product in products):
        factors = found.get(product, {})
        if not factors or any(names.keys() != {"A", "B"} for names in factors.values()):
            raise CheckpointError(
                f"{checkpoint.path}: it has no whole adapter lora_{product}: give a checkpoint of "
                "InternLM-XComposer2.5, such as internlm/internlm-xcomposer2d5-7b"
            )
    return found


def _write(checkpoint: Checkpoint, folder: Path, products: list[Mapping[str, Mapping[str, str]]]) -> None:
    """Write one adapter: the sum of products is the product of their factors side by side."""
    tensors, ranks = dict[str, Tensor](), dict[str, int]()
    for module in products[0]:
        try:
            a = torch.cat([_read(checkpoint, product[module]["A"]) for product in products])
            b = torch.cat([_read(checkpoint, product[module]["B"]) for product in products], dim=1)
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"{checkpoint.path}: the adapters of {module!r} do not fit: {error}") from None
        ranks[module] = len(a)
        tensors |= {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}
    rank = max(ranks.values())
    patterns = {re.escape(module): other for module, other in ranks.items() if other != rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": patterns,
        "alpha_pattern": patterns,
        "bias": "none",
        "target_modules": sorted({".".join(module.split(".")[-2:]) for module in ranks}),
    }
    folder.mkdir(parents=True)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    (folder / WEIGHTS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)


def _read(checkpoint: Checkpoint, name: str) -> Tensor:
    return {
        stored: slices.read(tuple(map(range, checkpoint.stored[stored].shape))).clone()
        for stored, slices in checkpoint.slices([name], torch.device("cpu"))
    }[name]
