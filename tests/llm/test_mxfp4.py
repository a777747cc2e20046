"""Experts in MXFP4: their numbers, and faults of checkpoints that have them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import mxfp4
import pytest
import torch
from quantized_folders import Tensors, edit_tensors, set_config

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.parts import Source, Stack
from seesay.device.linear.linear_method import Sizes
from seesay.device.linear.mxfp4 import Mxfp4, fold, unpack
from seesay.errors import CheckpointError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.vl.registry import find_family

BLOCKS, SCALES = (f"model.layers.1.mlp.experts.down_proj_{part}" for part in ("blocks", "scales"))


def load(path: Path, dtype: torch.dtype = torch.float32) -> ComposedDecoder:
    checkpoint = Checkpoint.load(path)
    config = read_decoder_config(checkpoint.text_config, session_len=128)
    name = find_family(checkpoint.architecture).weights.decoder_name
    return ComposedDecoder.load(checkpoint, config, decoder_name=name, device=torch.device("cpu"), dtype=dtype)


@pytest.fixture
def folder(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("gpt_oss_mxfp4"), tmp_path / "model"))


@pytest.mark.parametrize("smallest", [0, 100, 240])
def test_every_number_with_every_scale_is_exact(smallest: int) -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2, 1).flatten()
    blocks = (codes[::2] | codes[1::2] << 4).view(1, 1, 16).repeat(7, 1, 1)
    scales = torch.arange(smallest, smallest + 7, dtype=torch.uint8)[:, None]
    method, source = Mxfp4(torch.float32), Source(module="down_proj", num_outputs=7)
    weights = {name: layout.weight([source], 32) for name, layout in method.layouts(32).items()}
    weights["blocks"].data, weights["scales"].data = blocks, scales
    product = method.prepare(weights, None, Sizes(outputs=(7,), inputs=32))
    values = torch.cat((mxfp4.VALUES, -mxfp4.VALUES)).repeat(2).double()
    expected = values * 2.0 ** (scales.double() - 127)
    assert torch.equal(product.run(torch.eye(32)).t().double(), expected)


@pytest.mark.parametrize("smallest", [0, 1, 100, 233])
def test_scales_of_an_output_are_folded_into_its_numbers_exactly(smallest: int) -> None:
    """Every number with every difference of scales; in the second output the smallest comes first."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(2, 1).flatten()
    blocks = (codes[::2] | codes[1::2] << 4).view(1, 1, 16).repeat(2, 15, 1)
    scales = torch.arange(smallest, smallest + 15, dtype=torch.int32)
    exponents = torch.stack((scales.flip(0), scales))
    folded = fold(blocks, exponents)
    assert folded is not None
    numbers, scale = folded
    assert numbers.shape == (2, 480) and scale.shape == (2,)
    expected = unpack(blocks).double().view(2, 15, 32) * 2.0 ** (exponents.double() - 127)[..., None]
    assert torch.equal((numbers.double() * scale.double()[:, None]).view(2, 15, 32), expected)


def test_scales_that_differ_by_more_stay_unless_their_numbers_are_zeros() -> None:
    blocks = torch.full((2, 2, 16), 0x21, dtype=torch.uint8)
    exponents = torch.tensor([[120, 120], [120, 105]], dtype=torch.int32)
    assert fold(blocks, exponents) is None
    blocks[1, 1] = 0x80  # zeros of both signs
    folded = fold(blocks, exponents)
    assert folded is not None
    numbers, scale = folded
    expected = mxfp4.multiply_out(blocks, exponents)
    assert torch.equal(numbers.float() * scale[:, None], expected)
    blocks[:] = 0
    folded = fold(blocks, exponents)
    assert folded is not None and not (folded[0].float() * folded[1][:, None]).any()


def test_a_stack_is_read_matrix_by_matrix() -> None:
    layouts = Mxfp4(torch.float32).layouts(64)
    part = layouts["blocks"].weight([Source(module="m", num_outputs=6, stack=Stack(2, 5))], 64).parts[0]
    assert part.stored_shape == (5, 6, 2, 16) and part.shape == (6, 2, 16)


def _drop(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def _fill(name: str, number: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[name][1].fill_(number)


def _change(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (_drop(SCALES), f"tensor '{SCALES}' is missing"),
        (_drop(BLOCKS), f"tensor '{BLOCKS}' is missing"),
        (_fill(SCALES, 255), f"tensor '{SCALES}' has scales that are not numbers, or too large"),
        (_fill(SCALES, 254), f"tensor '{SCALES}' has scales that are not numbers, or too large"),
        (_change(SCALES, torch.Tensor.int), f"tensor '{SCALES}' is stored as I32, it must be U8"),
        (_change(BLOCKS, lambda t: t[:, :, :-1]), f"tensor '{BLOCKS}' has shape [4, 64, 2, 16], the config says"),
        (_change(BLOCKS, lambda t: t[:-1]), f"tensor '{BLOCKS}' has shape [3, 64, 3, 16], the config says"),
    ],
)
def test_faults_are_named(edit: Callable[[Tensors], object], told: str, folder: Path) -> None:
    edit_tensors(folder, edit)
    with pytest.raises(CheckpointError, match=re.escape(told)):
        load(folder)


def test_numbers_that_float16_cannot_have_are_named(folder: Path) -> None:
    edit_tensors(folder, _fill(SCALES, 127 + 14))
    load(folder)
    with pytest.raises(CheckpointError, match=f"tensor '{SCALES}' has scales"):
        load(folder, torch.float16)


def test_the_settings_are_checked(folder: Path) -> None:
    set_config(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": 3})
    with pytest.raises(CheckpointError, match="modules_to_not_convert must be a list of names"):
        load(folder)


def test_plain_experts_stay_plain_beside_such_settings(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As fine-tuned models are published, with the settings of the model that they were made of."""
    plain = tiny_checkpoint("gpt_oss")
    folder = Path(shutil.copytree(plain, tmp_path / "model"))
    set_config(folder, quantization_config={"quant_method": "mxfp4"})
    assert json.loads((folder / "config.json").read_text())["quantization_config"]
    methods = {path: linear.method.name for path, linear in load(folder).linears.items()}
    assert set(methods.values()) == {"unquantized"}


@pytest.mark.parametrize(("option", "value"), [("swiglu_alpha", 1.5), ("swiglu_limit", 8.0)])
def test_other_activations_are_refused_by_name(option: str, value: float, folder: Path) -> None:
    set_config(folder, **{option: value})
    with pytest.raises(CheckpointError, match=f"{option}={value} is not supported"):
        load(folder)
