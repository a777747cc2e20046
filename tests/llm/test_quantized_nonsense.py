"""Quantized checkpoints with faults. Bad scales, bad zero points and wrong group sizes are one error that names the
tensor, in every format. Random changes are refused with one error of ours, or leave the logits as they were."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from llm import backbones
from llm.quantized_cases import load, logits_of
from quantized_folders import FORMS, PACKED_FORMS, Form, Tensors, edit_tensors, gptq, set_config, write_quantized
from safetensors.torch import load_file, save_file

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


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> backbones.Backbone:
    """The model that is quantized. No test may write into its folder."""
    return backbones.make_backbone("llama", tmp_path_factory.mktemp("source") / "model", **SIZES)


@pytest.mark.parametrize("form", ALL_FORMS)
def test_nonsense_is_refused_or_changes_nothing(form: str, source: backbones.Backbone, tmp_path: Path) -> None:
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


FAULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "truncated": lambda t: t[:-1] if t.dim() else t.new_empty(0),
    "NaN": lambda t: t * float("nan"),
    "infinite": lambda t: torch.full_like(t, float("inf")),
    "too large": lambda t: torch.full_like(t, 3e38, dtype=torch.float32),
    "text": lambda t: torch.zeros_like(t, dtype=torch.uint8),
}
SCALES = ("scale", "scales", "weight_scale", "weight_scale_inv", "input_scale")
ZEROS = ("qzeros", "weight_zero_point")


@pytest.mark.parametrize("form", ALL_FORMS)
def test_bad_scales_and_zero_points_are_named(form: str, source: backbones.Backbone, tmp_path: Path) -> None:
    quantized, _ = write_quantized(source.path, tmp_path, ALL_FORMS[form])
    file, module = quantized / "model.safetensors", "model.layers.1.mlp.down_proj"
    stored = {name: tensor.clone() for name, tensor in load_file(file).items()}  # the file is replaced
    names = [name for part in (*SCALES, *ZEROS) if (name := f"{module}.{part}") in stored]
    assert names
    for name in names:
        of_zeros = name.endswith(ZEROS)
        for fault in ("truncated", "text") if of_zeros else FAULTS:
            save_file({**stored, name: FAULTS[fault](stored[name]).contiguous()}, file, metadata={"format": "pt"})
            with pytest.raises(CheckpointError, match=re.escape(f"tensor '{name}' ")):
                load(quantized)


@pytest.mark.parametrize(
    "form", ["fp8, blocks of 128", "compressed-tensors, int8 channels", "awq, groups of 32", "pack-quantized, channels"]
)
def test_scales_that_float16_cannot_have_are_named(form: str, source: backbones.Backbone, tmp_path: Path) -> None:
    quantized, _ = write_quantized(source.path, tmp_path, ALL_FORMS[form])
    names = [f"model.layers.1.mlp.down_proj.{part}" for part in SCALES]
    edit_tensors(quantized, lambda tensors: tensors.update(
        {name: torch.full_like(tensors[name], 1000, dtype=torch.float32) for name in names if name in tensors}
    ))  # fmt: skip
    load(quantized)
    with pytest.raises(CheckpointError, match=r"tensor 'model\.layers\.1\.mlp\.down_proj\.\w*scale\w*' .* too large"):
        load(quantized, torch.float16)


@pytest.mark.parametrize("form", ["gptq, symmetric", "gptq, in order of activations", "gptq, 8 bits"])
def test_zero_points_that_are_out_of_range_are_named(form: str, source: backbones.Backbone, tmp_path: Path) -> None:
    """Version 1 of GPTQ's format stores them less by one; other formats have no place for those that are too large."""
    quantized, _ = write_quantized(source.path, tmp_path, PACKED_FORMS[form])
    name = "model.layers.1.mlp.down_proj.qzeros"

    def change(tensors: Tensors) -> None:
        tensors[name][1, 2] = -1

    edit_tensors(quantized, change)
    most = 255 if "8 bits" in form else 15
    with pytest.raises(CheckpointError, match=re.escape(f"tensor '{name}' has zero points outside of 1 to {most}")):
        load(quantized)


@pytest.mark.parametrize(("claimed", "zero_offset"), [("gptq", 0), ("gptq_v2", 1)])
def test_the_other_version_of_gptq_is_found_by_its_zero_points(
    claimed: str, zero_offset: int, source: backbones.Backbone, tmp_path: Path
) -> None:
    """Both versions load, and with the wrong one each weight would be off by one step of its scale."""
    config = {**PACKED_FORMS["gptq, symmetric"].config, "checkpoint_format": claimed}
    quantized, _ = write_quantized(source.path, tmp_path, Form(config, gptq(32, zero_offset=zero_offset)))
    other = "gptq" if claimed == "gptq_v2" else "gptq_v2"
    message = f"sym=true means 8. checkpoint_format is '{claimed}', but the tensors are those of '{other}'"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(quantized)


@pytest.mark.parametrize("form", [name for name in ALL_FORMS if "block" in name or name in PACKED_FORMS])
def test_group_sizes_that_lie_are_found(form: str, source: backbones.Backbone, tmp_path: Path) -> None:
    quantized, _ = write_quantized(source.path, tmp_path, ALL_FORMS[form])
    config = copy.deepcopy(dict(ALL_FORMS[form].config))
    holder = config["config_groups"]["group_0"]["weights"] if "config_groups" in config else config
    if form in PACKED_FORMS:
        holder.update({"group_size": 16} | ({"strategy": "group"} if "strategy" in holder else {}))
    else:
        [field] = {"weight_block_size", "block_structure"} & holder.keys()
        holder[field] = [16, 16]
    set_config(quantized, quantization_config=config)
    with pytest.raises(
        CheckpointError, match=r"tensor 'model\.layers\.0\.\S+_proj\.\S+' has shape .*, the config says"
    ):
        load(quantized)
