"""The linear layer of experts: each expert's weights are where the checkpoint has them, in every format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from quantized_folders import PACKED_FORMS
from torch import Tensor

from seesay.checkpoint.loading import load_weights
from seesay.checkpoint.parts import Source
from seesay.checkpoint.quantization import Quantization, read_quantization
from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.device.backends import has_triton
from seesay.device.linear.block_fp8 import BlockFp8
from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.linear import Unquantized
from seesay.device.linear.linear_method import Sizes
from seesay.device.linear.packed_integers import Awq, Gptq, PackQuantized
from seesay.errors import CheckpointError

PATH, NUM, SIZE, OUTPUTS = "mlp.experts.gate_up_proj", 3, 40, 24
CPU = torch.device("cpu")


def make_linear(*, bias: bool = False) -> ExpertLinear:
    halves = [Source(module=f"{part}_proj", num_outputs=OUTPUTS) for part in ("gate", "up")]
    with torch.device("meta"):
        return ExpertLinear(SIZE, NUM, sources=halves, bias=bias)


def make_tensors(seed: int, *names: str) -> dict[str, Tensor]:
    """Random tensors of all experts: weights [out, in], biases [out], and scales of FP8 blocks."""
    torch.manual_seed(seed)
    shapes = {"weight": (OUTPUTS, SIZE), "bias": (OUTPUTS,), "weight_scale": (2, 3)}
    modules = [f"mlp.experts.{expert}.{part}_proj" for expert in range(NUM) for part in ("gate", "up")]
    return {f"{module}.{name}": torch.randn(shapes[name]) for module in modules for name in names}


def load(linear: ExpertLinear, tensors: Mapping[str, Tensor], device: torch.device = CPU) -> None:
    source = HandedTensors({name: GivenTensor.of(name, tensor) for name, tensor in tensors.items()})
    load_weights([linear.make_group(PATH)], source, name_of=lambda name: name, device=device, dtype=torch.float32)


def of_expert(tensors: Mapping[str, Tensor], expert: int, name: str) -> Tensor:
    return torch.cat([tensors[f"mlp.experts.{expert}.{part}_proj.{name}"] for part in ("gate", "up")])


def test_each_expert_has_its_weights_and_biases_also_new_ones() -> None:
    linear, x = make_linear(bias=True), torch.randn(5, SIZE)
    for seed in (0, 1):
        tensors = make_tensors(seed, "weight", "bias")
        load(linear, tensors)
        for expert, kernel in enumerate(linear.kernels):
            exact = F.linear(x, of_expert(tensors, expert, "weight"), of_expert(tensors, expert, "bias"))
            torch.testing.assert_close(kernel(x), exact)


def test_each_expert_has_its_scales() -> None:
    linear, x = make_linear(), torch.randn(5, SIZE)
    linear.method = BlockFp8(Quantization(strategy="block", block_size=(16, 16)), torch.float32)
    tensors = make_tensors(0, "weight", "weight_scale")
    for name, tensor in tensors.items():
        tensors[name] = tensor.abs() if name.endswith("scale") else tensor.to(torch.float8_e4m3fn)
    load(linear, tensors)
    for expert, kernel in enumerate(linear.kernels):
        halves = []
        for part in ("gate", "up"):
            numbers, scale = (
                tensors[f"mlp.experts.{expert}.{part}_proj.{name}"] for name in ("weight", "weight_scale")
            )
            wide = scale.repeat_interleave(16, 0)[:OUTPUTS].repeat_interleave(16, 1)[:, :SIZE]
            halves.append(numbers.float() * wide)
        torch.testing.assert_close(kernel(x), F.linear(x, torch.cat(halves)))


def test_a_missing_expert_is_named() -> None:
    tensors = make_tensors(0, "weight")
    del tensors["mlp.experts.1.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"tensor 'mlp\.experts\.1\.up_proj\.weight' is missing"):
        load(make_linear(), tensors)


class NoMatrix(Unquantized):
    name, makes_matrix = "no matrix", False


@pytest.mark.skipif(not has_triton(), reason="needs Triton")
def test_formats_without_kernels_are_refused_by_name_on_a_gpu() -> None:
    """The meta device stands for a GPU."""
    linear = make_linear()
    linear.method = NoMatrix()
    assert linear.why_not(CPU) is None
    assert linear.why_not(torch.device("meta")) == "there are no kernels for experts in no matrix"


@pytest.mark.parametrize("form", PACKED_FORMS)
def test_packed_numbers_become_bytes_for_kernels(form: str) -> None:
    """Of all experts in one matrix; multiplied out where no kernel could scale bytes."""
    settings = PACKED_FORMS[form].config
    quantization = read_quantization(Path("config.json"), {"quantization_config": settings}, None)
    assert quantization is not None
    kinds: dict[str, type[Awq | Gptq | PackQuantized]] = {"awq": Awq, "gptq": Gptq, "pack-quantized": PackQuantized}
    method = kinds[quantization.format](quantization, torch.float32)
    torch.manual_seed(0)
    sources = [Source(module=f"{expert}.up_proj", num_outputs=32) for expert in range(NUM)]
    stored, exact = zip(*[PACKED_FORMS[form].quantize(torch.randn(32, 64)) for _ in sources], strict=True)
    weights = {name: layout.weight(sources, 64) for name, layout in method.layouts(64).items()}
    for name, layout in method.layouts(64).items():
        pieces = [tensors[layout.name] for tensors in stored]
        axis = weights[name].joined_axis
        weights[name].data = torch.stack(pieces) if axis is None else torch.cat(pieces, dim=axis)
    make_matrix = method.prepare(weights, None, Sizes(outputs=(32,) * NUM, inputs=64)).make_matrix
    assert make_matrix is not None
    numbers, scale, group_size = make_matrix()
    is_plain = "order" in form or form == "pack-quantized, 8 bits"
    assert numbers.dtype == (torch.float32 if is_plain else torch.int8)
    wide = numbers.float()
    if scale is not None:
        wide *= scale.view(len(numbers), -1).repeat_interleave(group_size or 64, dim=1)
    torch.testing.assert_close(wide, torch.cat(exact), atol=1e-6, rtol=1e-5)
