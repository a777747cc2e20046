"""AWQ and GPTQ checkpoints in their published layouts, against Transformers with the same weights multiplied out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from llm import backbones
from quantized_folders import PACKED_FORMS, Tensors, edit_tensors, set_config, write_quantized

from seesay.errors import CheckpointError
from seesay.llm.sampling_params import SamplingParams

TOLERANCE = 1e-3
ALL_LOGITS = SamplingParams(output_logits="all", max_new_tokens=1)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
DOWN = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], backbones.Backbone]:
    return backbones.make_saver(tmp_path_factory, **SIZES)


def load(path: Path) -> Any:
    return backbones.load_runner(backbones.Backbone(model=None, path=path))


@pytest.mark.parametrize("form", PACKED_FORMS)
@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3"])
def test_logits_are_those_of_the_weights_multiplied_out(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, name: str, form: str
) -> None:
    source = saved(name)
    quantized, plain = write_quantized(source.path, tmp_path, PACKED_FORMS[form])
    reference = backbones.Backbone(model=type(source.model).from_pretrained(plain).eval(), path=plain)
    prompt = backbones.make_prompt(source, 23, seed=3)
    expected = reference.logits(prompt.token_ids, prompt.positions)
    _, [found] = backbones.Driver(load(quantized)).generate([prompt], [ALL_LOGITS])
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    change = (expected - source.logits(prompt.token_ids, prompt.positions)).abs().max()
    assert change > 10 * TOLERANCE, "the weights were not quantized"


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("form", "edit", "message"),
    [
        (
            "awq, groups of 32",
            put(f"{DOWN}.scales", lambda t: t[:-1]),
            f"tensor '{DOWN}.scales' has shape [2, 64], the config says [3, 64]",
        ),
        (
            "awq, groups of 32",
            put(f"{DOWN}.qzeros", lambda t: t.to(torch.int64)),
            f"tensor '{DOWN}.qzeros' is stored as I64, it must be I32",
        ),
        (
            "awq, groups of 32",
            put(f"{DOWN}.scales", lambda t: t / 0),
            "tensor 'layers.1.mlp.down_proj.scales' has scales that are not finite",
        ),
        ("awq, groups of 32", lambda t: t.pop(f"{DOWN}.qzeros"), f"tensor '{DOWN}.qzeros' is missing"),
        (
            "gptq, symmetric",
            put(f"{DOWN}.g_idx", lambda t: t + 1),
            "tensor 'layers.1.mlp.down_proj.g_idx' has groups outside of 0 to 2",
        ),
        (
            "gptq, symmetric",
            put(f"{DOWN}.g_idx", lambda t: -t),
            "tensor 'layers.1.mlp.down_proj.g_idx' has groups outside of 0 to 2",
        ),
        (
            "gptq, symmetric",
            put(f"{DOWN}.qweight", lambda t: t[:, :-1]),
            f"tensor '{DOWN}.qweight' has shape [12, 63], the config says [12, 64]",
        ),
    ],
)
def test_tensors_that_make_no_sense_are_named(
    saved: Callable[[str], backbones.Backbone],
    tmp_path: Path,
    form: str,
    edit: Callable[[Any], Any],
    message: str,
) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, PACKED_FORMS[form])
    edit_tensors(quantized, edit)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(quantized)


def test_group_sizes_and_bits_that_lie_are_found(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, PACKED_FORMS["gptq, symmetric"])
    config = dict(PACKED_FORMS["gptq, symmetric"].config)
    for changes in ({"group_size": 16}, {"bits": 8}, {"group_size": -1}):
        set_config(quantized, quantization_config=config | changes)
        with pytest.raises(CheckpointError, match=r"tensor 'model.layers.* has shape .*, the config says"):
            load(quantized)


def test_layers_that_are_stored_plain_are_taken_so(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    """GPTQ has no list of what it left alone."""
    source = saved("llama")
    form = PACKED_FORMS["gptq, symmetric"]
    quantized, plain = write_quantized(source.path, tmp_path, form, lambda name: name.endswith("mlp.down_proj.weight"))
    prompt = backbones.make_prompt(source, 9, seed=1)
    logits = [backbones.Driver(load(path)).generate([prompt], [ALL_LOGITS])[1][0] for path in (quantized, plain)]
    torch.testing.assert_close(*logits)
