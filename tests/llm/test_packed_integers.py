"""AWQ, GPTQ and pack-quantized checkpoints in their published layouts, against Transformers with the same weights
multiplied out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from llm import backbones
from llm.quantized_cases import TOLERANCE, check_logits, check_refusal, load, logits_of
from pairs import parametrize_sweep
from quantized_folders import PACKED_FORMS, Form, Tensors, pack_quantized, set_config, write_quantized

from seesay.checkpoint.parts import Source
from seesay.checkpoint.quantization import Quantization
from seesay.device.linear.linear import Linear
from seesay.device.linear.linear_method import Sizes
from seesay.device.linear.packed_integers import Awq, Gptq
from seesay.errors import CheckpointError

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
DOWN = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], backbones.Backbone]:
    @cache
    def get(name: str) -> backbones.Backbone:
        sizes = SIZES | ({"rope_parameters": MROPE} if name == "qwen2.5-vl" else {})
        return backbones.make_backbone(name, tmp_path_factory.mktemp(name), **sizes)

    return get


@parametrize_sweep(name=["llama", "qwen3", "phi3", "qwen2.5-vl", "cohere", "glm4"], form=PACKED_FORMS)
def test_logits_are_those_of_the_weights_multiplied_out(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, name: str, form: str
) -> None:
    check_logits(saved(name), tmp_path, PACKED_FORMS[form])


def linears_of(path: Path) -> dict[str, Linear]:
    return backbones.composed(load(path)).linears


@pytest.mark.parametrize("form", ["awq, groups of 32", "gptq, in order of activations", "pack-quantized, zero points"])
def test_four_bits_stay_four_bits_in_memory(tmp_path: Path, form: str) -> None:
    source = backbones.make_backbone("phi3", tmp_path / "source", **SIZES | {"hidden_size": 128})
    quantized, plain = write_quantized(source.path, tmp_path, PACKED_FORMS[form])
    sizes = {path: sum(tensor.nbytes for tensor in linear.tensors) for path, linear in linears_of(quantized).items()}
    for path, linear in linears_of(plain).items():
        num_elements = linear.in_features * linear.out_features
        if path == "lm_head":
            assert sizes[path] >= 4 * num_elements
        else:  # 1/2 for a number, 3/32 for a scale and a zero point; 96 inputs take blocks for 128
            num_stored = num_elements // 96 * 128 if linear.in_features == 96 else num_elements
            orders = 4 * linear.in_features if "order" in form else 0
            assert sizes[path] <= 0.5 * num_stored + 3 / 32 * num_elements + orders, path


def test_fused_layers_are_one_matrix_unless_their_inputs_are_in_different_orders(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path
) -> None:
    ordered, _ = write_quantized(saved("llama").path, tmp_path / "1", PACKED_FORMS["gptq, in order of activations"])
    plain, _ = write_quantized(saved("llama").path, tmp_path / "2", PACKED_FORMS["gptq, symmetric"])
    words = {
        folder: {path: [t.shape[0] for t in linear.tensors if t.dtype == torch.int16] for path, linear in found.items()}
        for folder, found in (("ordered", linears_of(ordered)), ("plain", linears_of(plain)))
    }
    for path, expected in words["plain"].items():
        # In the ordered form, an order depends on the number of outputs.
        parts = [64, 32, 32] if path.endswith("qkv_proj") else expected
        assert words["ordered"][path] == parts and len(expected) == (path != "lm_head")


def test_eight_inputs_are_one_word() -> None:
    """Of a small layer of a tower."""
    generator = torch.Generator().manual_seed(0)
    tensors, exact = PACKED_FORMS["gptq, one group"].quantize(torch.randn(32, 8, generator=generator))
    method = Gptq(
        Quantization(format="gptq", strategy="group", bits=4, group_size=None, zero_offset=1),
        torch.float32,
        torch.float32,
    )
    source = [Source(module="fc1", num_outputs=32)]
    weights = {name: layout.weight(source, 8) for name, layout in method.layouts(8).items()}
    for name, weight in weights.items():
        weight.data = tensors[name].contiguous().view(weight.shape)
    product = method.prepare(weights, None, Sizes(outputs=(32,), inputs=8))
    x = torch.randn(3, 8, generator=generator)
    torch.testing.assert_close(product.run(x), F.linear(x, exact), atol=1e-3, rtol=1e-4)


def test_29568_inputs_are_231_groups() -> None:
    """The down projection of Qwen2-72B: the last block of inputs is a part of one."""
    num_inputs, num_outputs = 29_568, 16
    generator = torch.Generator().manual_seed(0)
    tensors, exact = PACKED_FORMS["awq, groups larger than layers"].quantize(  # of 128
        torch.randn(num_outputs, num_inputs, generator=generator)
    )
    assert tensors["scales"].shape == (231, num_outputs)
    quantization = Quantization(format="awq", strategy="group", bits=4, group_size=128)
    method = Awq(quantization, torch.float32, torch.float16)
    source = [Source(module="down", num_outputs=num_outputs)]
    weights = {name: layout.weight(source, num_inputs) for name, layout in method.layouts(num_inputs).items()}
    for name, weight in weights.items():
        weight.data = tensors[name]
        assert weight.shape == tensors[name].shape
    product = method.prepare(weights, None, Sizes(outputs=(num_outputs,), inputs=num_inputs))
    x = torch.randn(3, num_inputs, generator=generator)
    torch.testing.assert_close(product.run(x), F.linear(x, exact), atol=1e-3, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("pack-quantized, groups of 32", {}),
        ("pack-quantized, zero points", {"is_symmetric": False}),
        ("pack-quantized, 8 bits", {"bits": 8, "is_symmetric": False}),
    ],
)
def test_compressed_tensors_unpacks_the_same(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, form: str, options: Any
) -> None:
    """The package that defines the format packs the same, and Transformers loads the folder with it. It multiplies out
    in the type of the scales, here float32."""
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    config = PACKED_FORMS[form].config
    precise = Form(config, pack_quantized(32, dtype=torch.float32, **options))
    bits = config["config_groups"]["group_0"]["weights"]["num_bits"]
    tensors, _ = precise.quantize(torch.randn(24, 96, generator=torch.Generator().manual_seed(0)))
    packed = tensors["weight_packed"].contiguous()
    numbers = helpers.unpack_from_int32(packed, bits, torch.Size((24, 96)))
    assert torch.equal(helpers.pack_to_int32(numbers, bits), packed)
    if "weight_zero_point" in tensors:
        words = tensors["weight_zero_point"].contiguous()
        zeros = helpers.unpack_from_int32(words, bits, torch.Size((24, 3)), packed_dim=0)
        assert torch.equal(helpers.pack_to_int32(zeros, bits, packed_dim=0), words)
    source = saved("llama")
    quantized, _ = write_quantized(source.path, tmp_path, precise)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        quantized,
        quantization_config=transformers.CompressedTensorsConfig(run_compressed=False),
        dtype=torch.float32,
    ).eval()
    prompt = backbones.make_prompt(source, 23, seed=3)
    expected = backbones.Backbone(model=model, path=quantized).logits(prompt.token_ids, prompt.positions)
    found = logits_of(quantized, prompt)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


@pytest.mark.parametrize(
    ("form", "edit", "message"),
    [
        ("awq, groups of 32", lambda t: t.pop(f"{DOWN}.qzeros"), f"tensor '{DOWN}.qzeros' is missing"),
        (
            "gptq, symmetric",
            put(f"{DOWN}.g_idx", lambda t: t + 1),
            "tensor 'model.layers.1.mlp.down_proj.g_idx' has groups outside of 0 to 2",
        ),
        (
            "gptq, symmetric",
            put(f"{DOWN}.g_idx", lambda t: -t),
            "tensor 'model.layers.1.mlp.down_proj.g_idx' has groups outside of 0 to 2",
        ),
        (
            "gptq, symmetric",
            put(f"{DOWN}.qweight", lambda t: t[:, :-1]),
            f"tensor '{DOWN}.qweight' has shape [12, 63], the config says [12, 64]",
        ),
        (
            "gptq, symmetric",
            put(f"{DOWN}.g_idx", lambda t: t.clamp(max=1)),
            "tensor 'model.layers.1.mlp.down_proj.g_idx' has groups that are not of 32 inputs each",
        ),
        (
            "pack-quantized, zero points",
            put(f"{DOWN}.weight_scale", lambda t: t.bfloat16() * 0 + 3e38),
            "tensor 'model.layers.1.mlp.down_proj.weight_scale' has scales that are not finite, or too large",
        ),
        (
            "pack-quantized, zero points",
            put(f"{DOWN}.weight_scale", lambda t: t[:, :2]),
            f"tensor '{DOWN}.weight_scale' has shape [64, 2], the config says [64, 3]",
        ),
        (
            "pack-quantized, groups of 32",
            put(f"{DOWN}.weight_shape", lambda t: t + 32),
            "tensor 'model.layers.1.mlp.down_proj.weight_shape' is [96, 128], the config says [64, 96]",
        ),
        (
            "pack-quantized, in order of activations",
            put(f"{DOWN}.weight_g_idx", lambda t: t.clamp(max=1)),
            "tensor 'model.layers.1.mlp.down_proj.weight_g_idx' has groups that are not of 32 inputs each",
        ),
        (
            "pack-quantized, in order of activations",
            put(f"{DOWN}.weight_g_idx", lambda t: t - 1),
            "tensor 'model.layers.1.mlp.down_proj.weight_g_idx' has groups outside of 0 to 2",
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
    check_refusal(saved("llama"), tmp_path, PACKED_FORMS[form], edit, message)


def test_group_sizes_and_bits_that_lie_are_found(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, PACKED_FORMS["gptq, symmetric"])
    config = dict(PACKED_FORMS["gptq, symmetric"].config)
    for changes in ({"group_size": 16}, {"bits": 8}, {"group_size": -1}):
        set_config(quantized, quantization_config=config | changes)
        with pytest.raises(CheckpointError, match=r"tensor 'model.layers.* has shape .*, the config says"):
            load(quantized)


def test_packed_settings_that_lie_are_found(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, PACKED_FORMS["pack-quantized, groups of 32"])
    settings = PACKED_FORMS["pack-quantized, groups of 32"].config
    for changes, message in (
        ({"group_size": 16}, r"_proj.weight_scale' has shape .*, the config says"),
        ({"num_bits": 8}, r"_proj.weight_packed' has shape .*, the config says"),
        ({"symmetric": False}, r"_proj.weight_zero_point' is missing"),
        ({"actorder": "group"}, r"_proj.weight_g_idx' is missing"),
    ):
        config = copy.deepcopy(dict(settings))
        config["config_groups"]["group_0"]["weights"].update(changes)
        set_config(quantized, quantization_config=config)
        with pytest.raises(CheckpointError, match=message):
            load(quantized)


def test_layers_that_are_stored_plain_are_taken_so(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    """GPTQ has no list of what it left alone."""
    source = saved("llama")
    form = PACKED_FORMS["gptq, symmetric"]
    quantized, plain = write_quantized(source.path, tmp_path, form, lambda name: name.endswith("mlp.down_proj.weight"))
    prompt = backbones.make_prompt(source, 9, seed=1)
    logits = [logits_of(path, prompt) for path in (quantized, plain)]
    torch.testing.assert_close(*logits)
