"""Quantized checkpoints whose settings and tensors were changed at random: each is refused with one error of ours, or
computes what it computed before."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from llm import backbones
from llm.quantized_cases import logits_of
from quantized_folders import FORMS, PACKED_FORMS, Tensors, edit_tensors, write_quantized

from seesay.errors import CheckpointError

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
ALL_FORMS = {**FORMS, **PACKED_FORMS}
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 4, 8, 16, 24, 64, 128, 1 << 40, 4.0, 1e308, "x", "", "fp8", "int", [], {}, [1], [1, 1],
    [64, 96], {"a": 1}, "re:.*", "tensor", "channel", "block", "group", "token", ["re:(a+)+$"], ["model"], ["re:"],
]  # fmt: skip
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8, torch.int64, torch.bool)
NUMBERS = (float("nan"), float("inf"), -1.0, 0.0, 1e38)


def change_settings(settings: dict[str, Any], chance: random.Random) -> None:
    """Drop a field at any depth, or give it another value."""
    inner, field = settings, chance.choice(list(settings))
    while isinstance(inner[field], dict) and inner[field] and chance.random() < 0.8:
        inner = inner[field]
        field = chance.choice(list(inner))
    inner[field] = copy.deepcopy(chance.choice(VALUES))
    if chance.random() < 0.15:
        del inner[field]


def change_tensor(tensors: Tensors, chance: random.Random) -> None:
    """Drop, cut, reshape, convert, fill or copy a tensor of a linear layer."""
    name = chance.choice(sorted(name for name in tensors if "_proj" in name))
    found = tensors.pop(name)
    changed = [
        None,
        found[:-1] if found.dim() else found.reshape(1),
        found.flatten(),
        found[None],
        found.to(chance.choice(TYPES)),
        torch.full_like(found.float(), chance.choice(NUMBERS)).to(found.dtype),
        found.new_empty((0, *found.shape[1:])),
    ][chance.randrange(7)]
    if changed is not None:
        tensors[name] = changed.contiguous()


@pytest.mark.parametrize("form", ALL_FORMS)
def test_nonsense_is_refused_or_changes_nothing(form: str, tmp_path: Path) -> None:
    source = backbones.make_backbone("llama", tmp_path / "source", **SIZES)
    quantized, _ = write_quantized(source.path, tmp_path, ALL_FORMS[form])
    prompt = backbones.make_prompt(source, 9, seed=1)
    expected = logits_of(quantized, prompt)
    num_refused = 0
    for seed in range(8):
        chance, folder = random.Random(seed), tmp_path / str(seed)
        shutil.copytree(quantized, folder)
        config = json.loads((folder / "config.json").read_text())
        if is_of_settings := chance.random() < 0.6:
            change_settings(config["quantization_config"], chance)
            (folder / "config.json").write_text(json.dumps(config))
        else:
            edit_tensors(folder, lambda tensors, chance=chance: change_tensor(tensors, chance))  # type: ignore[misc]
        try:
            found = logits_of(folder, prompt)
        except CheckpointError:
            num_refused += 1
            continue
        if is_of_settings:
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-4, msg=str(config["quantization_config"]))
    assert num_refused > 1
