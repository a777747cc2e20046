"""Latent attention in the formats that are published: against Transformers with the same weights multiplied out. The
matrix that expands latent rows is a plain one here, however it is stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pairs
import pytest
import torch
from adapter_folders import write_adapter
from asking import ask, parse
from decoder_steps import Steps, compute_steps
from expert_folders import copy_edited, stack, unstack
from lite.reading import logits_of, reference_logits
from llm import backbones
from llm.test_divided_decoders import load
from other_weights import copy_with_other_weights, read_weights
from predicting_layers import add_layer
from quantized_folders import FORMS, PACKED_FORMS, edit_tensors, is_quantized, set_config, write_quantized
from thread_ranks import run_ranks

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.config import EngineConfig
from seesay.config.speculative import SpeculativeConfig
from seesay.device.linear.matrix_linear import MatrixLinear
from seesay.device.ranks import Place, Ranks, Unconnected
from seesay.engine.capacity import Capacity
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError, ConfigError

ALL = {**FORMS, **PACKED_FORMS}
FORMATS = (
    "fp8, small blocks",
    "awq, groups of 32",
    "gptq, symmetric",
    "gptq, in order of activations",
    "pack-quantized, zero points",
    "compressed-tensors, channels",
    "compressed-tensors, int8 static tensors",
    "fp8, blocks of 128",
)
SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64, "v_head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 256,
}  # fmt: skip
"""Of which two ranks have whole blocks of 128."""


def quantize(source: Path, folder: Path, form: str) -> tuple[Path, Path]:
    """Write the matrix that expands latent rows, and what lies behind attention, in a format, and plain."""
    found = write_quantized(source, folder, ALL[form], _is_quantized)
    key = "ignore" if "ignore" in ALL[form].config else "modules_to_not_convert"
    others = [name.removesuffix(".weight") for name in read_weights(source) if not _is_quantized(name)]
    set_config(found[0], quantization_config={**ALL[form].config, key: others})
    return found


def _is_quantized(name: str) -> bool:
    return name.endswith((".kv_b_proj.weight", ".o_proj.weight"))


@pairs.parametrize_sweep(model=["deepseek_v2", "deepseek_v3", "kimi_linear"], form=FORMATS)
def test_the_expansion_is_multiplied_out(
    model: str, form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    quantized, plain = quantize(tiny_checkpoint(model), tmp_path, form)
    expected = reference_logits(plain)
    torch.testing.assert_close(logits_of(quantized), expected, atol=1e-3, rtol=0)
    assert (expected - logits_of(tiny_checkpoint(model))).abs().max() > 1e-2, "the weights were not quantized"


@pytest.mark.parametrize("model", ["deepseek_v2", "deepseek_v3"])
def test_all_of_a_model_in_blocks_as_published(
    model: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """DeepSeek-V3's quantization_config names no layer that is plain: the routers are, and the head."""
    source = copy_edited(tiny_checkpoint(model), tmp_path / "numbered", unstack)
    form = ALL["fp8, small blocks"]
    quantized, plain = write_quantized(source, tmp_path, form)
    assert form.config.keys() == {"quant_method", "activation_scheme", "weight_block_size"}
    edit_tensors(plain, stack)
    torch.testing.assert_close(logits_of(quantized), reference_logits(plain), atol=1e-3, rtol=0)


def test_a_predicting_layer_whose_first_product_is_plain(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As DeepSeek-V3 has it, without saying so."""
    source = add_layer(tiny_checkpoint("deepseek_v3"), tmp_path / "predicting")
    path, _ = write_quantized(
        copy_edited(source, tmp_path / "numbered", unstack),
        tmp_path,
        ALL["fp8, small blocks"],
        lambda name: is_quantized(name) and "eh_proj" not in name,
    )
    answers = []
    for method in ("none", "mtp"):
        speculative = SpeculativeConfig(method=method)
        with AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu", speculative=speculative)) as engine:
            [output] = ask(engine, parse(["the game"], max_new_tokens=12, ignore_eos=True))
            assert output.error is None
            answers.append(output.token_ids)
            assert (engine.stats().total_draft_tokens > 0) == (method == "mtp")
    assert answers[0] == answers[1]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return backbones.make_backbone("deepseek-v2", tmp_path_factory.mktemp("wide"), **SIZES).path


@pytest.mark.parametrize("form", [form for form in FORMATS if "order" not in form])
def test_ranks_have_some_heads_of_it(form: str, wide: Path, tmp_path: Path) -> None:
    path, _ = quantize(wide, tmp_path, form)
    expected = compute_steps(load(path))
    assert (expected.prompt - compute_steps(load(wide)).prompt).abs().max() > 0.01
    for found in run_ranks(2, lambda ranks: compute_steps(load(path, ranks))):
        torch.testing.assert_close(found, expected, atol=3e-4 * float(expected.prompt.std()), rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("form", FORMATS)
def test_the_matrix_is_that_of_the_checkpoint(form: str, device: str, wide: Path, tmp_path: Path) -> None:
    """Also as the kernels of a GPU multiply it out."""
    matrices = [
        [
            part.matrix.float()
            for part in load(path, device=torch.device(device)).linears.values()
            if isinstance(part, MatrixLinear)
        ]
        for path in quantize(wide, tmp_path, form)
    ]
    assert len(matrices[0]) > 1
    for found, expected in zip(*matrices, strict=True):
        torch.testing.assert_close(found, expected, atol=2**-7 * float(expected.abs().max()), rtol=0)


def test_heads_that_cut_blocks_apart_are_refused(tmp_path: Path) -> None:
    source = backbones.make_backbone("deepseek-v2", tmp_path / "narrow", **SIZES | {"qk_nope_head_dim": 40}).path
    path, _ = quantize(source, tmp_path, "fp8, blocks of 128")
    with pytest.raises(ConfigError, match="stored in groups of 128, cannot be divided: use tp=1 or pp=2"):
        load(path, Unconnected(Place(0, 2)))


@pytest.mark.parametrize("form", [None, "awq, groups of 32", "fp8, blocks of 128"])
def test_new_weights_are_multiplied_out_in_its_place(form: str | None, wide: Path, tmp_path: Path) -> None:
    first, second = wide, copy_with_other_weights(wide, tmp_path / "other")
    if form is not None:
        first, second = (quantize(path, tmp_path / str(i), form)[0] for i, path in enumerate((first, second)))
    expected = compute_steps(load(second))
    tensors = {name: GivenTensor.of(name, tensor) for name, tensor in read_weights(second).items()}

    def replace_weights(ranks: Ranks) -> list[Steps]:
        decoder = load(first, ranks)
        matrices = [linear for linear in decoder.linears.values() if isinstance(linear, MatrixLinear)]
        places = [linear.matrix.data_ptr() for linear in matrices]
        decoder.weights.check(Checkpoint.load(second), is_partial=False)
        decoder.weights.replace(HandedTensors(tensors), is_partial=False)
        assert [linear.matrix.data_ptr() for linear in matrices] == places
        found = [compute_steps(decoder)]
        decoder.weights.drop()
        decoder.weights.replace(HandedTensors(tensors), is_partial=False)
        return [*found, compute_steps(decoder)]

    for found in (steps for rank in run_ranks(2, replace_weights) for steps in rank):
        torch.testing.assert_close(found, expected, atol=3e-4 * float(expected.prompt.std()), rtol=1e-4)


def test_quantizing_in_flight_leaves_it_plain(wide: Path) -> None:
    expected = compute_steps(load(wide)).prompt
    decoder = load(wide, quantization="int8")
    [name] = {linear.method.name for linear in decoder.linears.values() if isinstance(linear, MatrixLinear)}
    assert name == "unquantized"
    assert 0 < (compute_steps(decoder).prompt - expected).abs().max() < float(expected.std())


def test_numbers_that_make_no_sense_are_named(wide: Path, tmp_path: Path) -> None:
    path, _ = quantize(wide, tmp_path, "fp8, blocks of 128")
    name = "model.layers.1.self_attn.kv_b_proj.weight_scale_inv"
    edit_tensors(path, lambda tensors: tensors[name].fill_(torch.nan))
    with pytest.raises(CheckpointError, match=f"{name}' has scales that are not positive numbers"):
        load(path)
    edit_tensors(path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"{name}' is missing"):
        load(path)


def test_an_adapter_of_it_is_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Its product is not computed, so that nothing could be added to it."""
    path = tiny_checkpoint("deepseek_v2")
    folder = write_adapter(path, tmp_path / "adapter", r".*\.kv_b_proj")
    config = EngineConfig(device_type="cpu", adapters={"own": str(folder)})
    with (
        pytest.raises(CheckpointError, match=r"self_attn\.kv_b_proj' cannot have an adapter here"),
        AsyncEngine(str(path), backend_config=config),
    ):
        pass


@pytest.mark.parametrize(("form", "growth"), [("awq, groups of 32", 4), ("fp8, blocks of 128", 2)])
def test_it_is_planned_for_as_a_plain_matrix(
    form: str, growth: int, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of other layers, the numbers are counted as they are stored."""
    path, _ = quantize(tiny_checkpoint("deepseek_v2"), tmp_path, form)
    config = EngineConfig(dtype="bfloat16")
    model = open_model(path, config)
    expected = 0
    for name, stored in model.checkpoint.stored.items():
        is_number = stored.dtype in ("I32", "F8_E4M3")
        is_matrix = ".kv_b_proj." in name and name.endswith("weight")
        factor = growth if is_matrix else 1
        expected += stored.num_bytes * factor if is_number else math.prod(stored.shape) * 2
    assert Capacity(model, config).measure(1).weight_bytes == expected
