"""Quantized checkpoints in every published layout that is supported, against Transformers with the same weights
multiplied out; and what is wrong with one is named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from llm import backbones
from llm.quantized_cases import ALL_LOGITS, TOLERANCE, check_logits, check_refusal, load, logits_of
from pairs import parametrize_sweep
from quantized_folders import FORMS, PACKED_FORMS, Tensors, edit_tensors, set_config, write_quantized
from safetensors.torch import load_file

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.quantization import InFlight
from seesay.device.linear import block_fp8, fp8, int8, quantized_product
from seesay.device.linear.linear_method import Product
from seesay.device.linear.row_quantization import FP8_ROWS, INT8_ROWS, RowFormat, quantize_rows
from seesay.device.linear.scaled_weights import note_static_scales
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config

FORM = "compressed-tensors, channels"
PROJECTION = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], backbones.Backbone]:
    return backbones.make_saver(tmp_path_factory)


@parametrize_sweep(name=["llama", "qwen2", "qwen3", "phi3", "gemma3", "qwen2.5-vl"], form=FORMS)
def test_logits_are_those_of_the_weights_multiplied_out(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, name: str, form: str
) -> None:
    check_logits(saved(name), tmp_path, FORMS[form])


@pytest.mark.parametrize(("kind", "rows"), [("fp8", FP8_ROWS), ("int8", INT8_ROWS)])
@pytest.mark.parametrize("name", ["llama", "phi3", "qwen2.5-vl"])
def test_quantizing_in_flight_takes_a_scale_per_output(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, name: str, kind: InFlight, rows: RowFormat
) -> None:
    source = saved(name)
    tensors = load_file(source.path / "model.safetensors")
    _, plain = write_quantized(source.path, tmp_path, FORMS[FORM])

    def change(exact: Tensors) -> None:
        for tensor in exact:
            if tensor.endswith("_proj.weight") and "visual" not in tensor:
                numbers, scale = quantize_rows(tensors[tensor].float(), rows)
                exact[tensor] = numbers.float() * scale

    edit_tensors(plain, change)
    prompt = backbones.make_prompt(source, 23, seed=3)
    checkpoint = Checkpoint.load(source.path, quantization=kind)
    runner = backbones.load_runner(source, checkpoint=checkpoint)
    _, [found] = backbones.Driver(runner).generate([prompt], [ALL_LOGITS])
    torch.testing.assert_close(found, logits_of(plain, prompt))
    assert (found - source.logits(prompt.token_ids, prompt.positions)).abs().max() > 10 * TOLERANCE
    methods = {
        path.rpartition(".")[2]: linear.method.name for path, linear in backbones.composed(runner).linears.items()
    }
    assert methods.pop("lm_head") == "unquantized"
    assert set(methods.values()) == {f"{kind} in flight"}


@pytest.mark.parametrize("chunk", [1, 7, 1 << 30])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("kind", ["fp8", "int8", "fp8, blocks of 128"])
def test_products_of_quantized_matrices_are_near_the_exact_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, device: str, chunk: int
) -> None:
    """As a GPU computes them: by rows of one byte per number, and for a few tokens by such weights alone. The CPU's
    torch has these operations, too."""
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU that multiplies FP8")
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    source = backbones.make_backbone("llama", tmp_path / "source", **sizes)
    prompt = backbones.make_prompt(source, 45, seed=3)
    expected = source.logits(prompt.token_ids, prompt.positions)
    if kind in FORMS:
        checkpoint = Checkpoint.load(write_quantized(source.path, tmp_path / "written", FORMS[kind])[0])
    else:
        checkpoint = Checkpoint.load(source.path, quantization=kind)  # type: ignore[arg-type]

    def measure_error(dtype: torch.dtype) -> float:
        runner = backbones.load_runner(source, checkpoint=checkpoint, dtype=dtype, device=device)
        _, [found] = backbones.Driver(runner, chunk=chunk).generate([prompt], [ALL_LOGITS])
        return float((found.float().cpu() - expected).norm() / expected.norm())

    of_weights = measure_error(torch.float32 if kind != "int8" or device == "cpu" else torch.bfloat16)
    made: list[Product] = []
    for module in (fp8, int8, block_fp8):
        if device == "cpu":
            monkeypatch.setattr(module, "_why_not", lambda *_: None)

        def watch(*given: Any, **options: Any) -> Product:
            made.append(quantized_product.make_quantized_product(*given, **options))
            return made[-1]

        monkeypatch.setattr(module, "make_quantized_product", watch)
    error = measure_error(torch.bfloat16)
    assert len(made) == 4 * source.text_config.num_hidden_layers
    assert 0.003 < error < 2.5 * of_weights + 0.01, f"error {error:.3f}, of the weights alone {of_weights:.3f}"


def test_what_is_quantized_already_is_not_quantized_again(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path
) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, FORMS[FORM])
    with pytest.raises(ConfigError, match=r"quantization='fp8': .* is quantized already: leave it out"):
        Checkpoint.load(quantized, quantization="fp8")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (FORMS[FORM], r"unexpected tensor '.*weight_scale' .*: config\.json has no quantization_config for this layer"),
        (
            PACKED_FORMS["awq, groups of 32"],
            r"weight' is missing .*: it has '.*qweight', and config\.json has no quantization_config for this layer",
        ),
    ],
)
def test_quantized_weights_without_settings(
    form: Any, message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    quantized, _ = write_quantized(tiny_checkpoint("llama"), tmp_path, form)
    set_config(quantized, quantization_config=None)
    with pytest.raises(CheckpointError, match=message):
        load(quantized)


def drop(name: str) -> Callable[[Tensors], None]:
    def edit(tensors: Tensors) -> None:
        del tensors[name]

    return edit


def put(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


WEIGHT, SCALE = f"{PROJECTION}.weight", f"{PROJECTION}.weight_scale"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop(SCALE), f"tensor '{SCALE}' is missing"),
        (put(SCALE, lambda t: t[:-1]), f"tensor '{SCALE}' has shape [59, 1], the config says [60, 1]"),
        (put(SCALE, lambda t: t.flatten()), f"tensor '{SCALE}' has shape [60], the config says [60, 1]"),
        (
            put(SCALE, lambda t: t * 0),
            "tensor 'model.layers.1.mlp.down_proj.weight_scale' has scales that are not positive",
        ),
        (put(WEIGHT, lambda t: t.bfloat16()), f"tensor '{WEIGHT}' is stored as BF16, it must be F8_E4M3"),
        (
            put(WEIGHT, lambda t: (t.float() * float("nan")).to(t.dtype)),
            "tensor 'model.layers.1.mlp.down_proj.weight' has numbers that are NaN",
        ),
        (
            lambda t: t.update({f"{PROJECTION}.zeros": torch.ones(1)}),
            f"unexpected tensor '{PROJECTION}.zeros'",
        ),
    ],
)
def test_tensors_that_make_no_sense_are_named(
    saved: Callable[[str], backbones.Backbone],
    tmp_path: Path,
    edit: Callable[[Any], Any],
    message: str,
) -> None:
    check_refusal(saved("llama"), tmp_path, FORMS[FORM], edit, message)


INT8_FORM, STATIC_FORM = "compressed-tensors, int8 channels", "compressed-tensors, int8 static tensors"
INPUT_SCALE = f"{PROJECTION}.input_scale"


@pytest.mark.parametrize(
    ("form", "edit", "message"),
    [
        (INT8_FORM, drop(SCALE), f"tensor '{SCALE}' is missing"),
        (INT8_FORM, put(SCALE, lambda t: -t), "down_proj.weight_scale' has scales that are not positive numbers"),
        (INT8_FORM, put(WEIGHT, lambda t: t.to(torch.uint8)), f"'{WEIGHT}' is stored as U8, it must be I8"),
        (INT8_FORM, put(WEIGHT, lambda t: t[:, :-8]), f"'{WEIGHT}' has shape [60, 80], the config says [60, 88]"),
        (STATIC_FORM, drop(INPUT_SCALE), f"tensor '{INPUT_SCALE}' is missing"),
        (STATIC_FORM, put(SCALE, lambda t: t.expand(60, 1)), f"'{SCALE}' has shape [60, 1], the config says []"),
        ("smooth_quant, int8", drop(f"{PROJECTION}.scale"), f"'{WEIGHT}' is stored as I8, it must be BF16 or"),
        ("smooth_quant, int8", put(f"{PROJECTION}.scale", lambda t: t.flatten()), "the config says [60, 1]"),
        (
            "smooth_quant, fp8",
            put(WEIGHT, lambda t: t.to(torch.int8)),
            f"'{WEIGHT}' is stored as I8, it must be F8_E4M3",
        ),
        ("modelopt, tensors", put(SCALE, lambda t: t * 0), "down_proj.weight_scale' has scales that are not positive"),
        ("modelopt, tensors", drop(INPUT_SCALE), f"tensor '{INPUT_SCALE}' is missing"),
        ("modelopt, channels", put(SCALE, lambda t: t[:, None]), f"'{SCALE}' has shape [60, 1], the config says [60]"),
        ("modelopt, channels", drop(SCALE), f"'{WEIGHT}' is stored as F8_E4M3, it must be BF16 or"),
    ],
)
def test_bad_tensors_of_other_formats_are_named(
    saved: Callable[[str], backbones.Backbone],
    tmp_path: Path,
    form: str,
    edit: Callable[[Any], Any],
    message: str,
) -> None:
    check_refusal(saved("llama"), tmp_path, FORMS[form], edit, message)


@pytest.mark.parametrize(
    ("stored", "claimed"),
    [
        (INT8_FORM, FORM),
        (FORM, INT8_FORM),
        (INT8_FORM, STATIC_FORM),
        ("smooth_quant, int8", INT8_FORM),
        ("smooth_quant, int8", "smooth_quant, fp8"),
        ("modelopt, tensors", "modelopt, channels"),
        ("fp8, blocks of 128", "compressed-tensors, blocks"),
    ],
)
def test_configs_that_lie_are_found(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, stored: str, claimed: str
) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, FORMS[stored])
    set_config(quantized, quantization_config=dict(FORMS[claimed].config))
    with pytest.raises(CheckpointError, match=r"tensor '\S+_proj\.\S+' "):
        load(quantized)


def test_scales_of_a_kv_cache_are_left_aside(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    source = saved("llama")
    quantized, plain = write_quantized(source.path, tmp_path, FORMS["modelopt, tensors"])

    def add(tensors: Tensors) -> None:
        for layer in range(source.text_config.num_hidden_layers):
            for name in ("k", "v"):
                tensors[f"model.layers.{layer}.self_attn.{name}_proj.{name}_scale"] = torch.tensor(0.5)

    edit_tensors(quantized, add)
    prompt = backbones.make_prompt(source, 9, seed=1)
    with pytest.raises(CheckpointError, match=r"unexpected tensor '\S+\.k_proj\.k_scale'"):
        logits_of(quantized, prompt)
    config = dict(FORMS["modelopt, tensors"].config) | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    set_config(quantized, quantization_config=config)
    found = logits_of(quantized, prompt)
    torch.testing.assert_close(found, logits_of(plain, prompt))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [FORM, INT8_FORM, STATIC_FORM, "compressed-tensors, naive int8"])
def test_compressed_tensors_has_the_same_weights(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, form: str
) -> None:
    """Transformers reads the folder with that library, which then rounds activations, too; that is turned off."""
    library = pytest.importorskip("compressed_tensors.quantization", reason="needs compressed-tensors")
    source = saved("llama")
    quantized, _ = write_quantized(source.path, tmp_path, FORMS[form])
    theirs = backbones.Backbone(model=type(source.model).from_pretrained(quantized).eval(), path=quantized)
    prompt = backbones.make_prompt(source, 23, seed=3)
    theirs.logits(prompt.token_ids, prompt.positions)  # decompresses the weights
    theirs.model.apply(library.disable_quantization)
    expected = theirs.logits(prompt.token_ids, prompt.positions)
    torch.testing.assert_close(logits_of(quantized, prompt), expected, atol=TOLERANCE, rtol=0)


def test_block_sizes_that_lie_are_found(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, FORMS["fp8, small blocks"])
    set_config(quantized, quantization_config=dict(FORMS["fp8, blocks of 128"].config))
    with pytest.raises(CheckpointError, match=r"_proj.weight_scale_inv' has shape .* the config says \[1, 1\]"):
        load(quantized)


def test_blocks_may_be_larger_than_the_matrix(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    """A block of any size is one scale. Nothing is made as large as the config says."""
    quantized, _ = write_quantized(saved("llama").path, tmp_path, FORMS["fp8, blocks of 128"])
    prompt = backbones.make_prompt(saved("llama"), 9, seed=1)
    expected = logits_of(quantized, prompt)
    config = dict(FORMS["fp8, blocks of 128"].config) | {"weight_block_size": [1 << 60, 1 << 60]}
    set_config(quantized, quantization_config=config)
    edit_tensors(
        quantized, lambda tensors: tensors.update({k: v[:1, :1] for k, v in tensors.items() if k.endswith("_inv")})
    )
    assert logits_of(quantized, prompt).shape == expected.shape


def test_static_scales_of_activations_are_not_used_and_it_is_said(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note_static_scales.cache_clear()
    quantized, _ = write_quantized(saved("llama").path, tmp_path, FORMS["modelopt, tensors"])
    with caplog.at_level(logging.INFO, "seesay"):
        load(quantized)
    assert [record.message.partition(" are ")[0] for record in caplog.records] == [
        "the checkpoint's scales of activations (input_scale)"
    ]


def test_a_fused_layer_is_quantized_whole_or_not_at_all(
    saved: Callable[[str], backbones.Backbone], tmp_path: Path
) -> None:
    quantized, _ = write_quantized(saved("llama").path, tmp_path, FORMS[FORM])
    config = dict(FORMS[FORM].config) | {"ignore": ["lm_head", "model.layers.0.self_attn.k_proj"]}
    set_config(quantized, quantization_config=config)
    first, second = (f"'model.layers.0.self_attn.{name}_proj'" for name in "qk")
    message = f"{first} is quantized and {second} is not, but they are computed"
    with pytest.raises(CheckpointError, match=message):
        load(quantized)


def test_layers_of_one_model_have_their_own_methods(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    source = saved("llama")
    quantized, plain = write_quantized(source.path, tmp_path, FORMS[FORM])
    exact = load_file(plain / "model.safetensors")

    def restore(tensors: Tensors) -> None:
        for name in exact:
            if ".layers.1." in name or "o_proj" in name:
                tensors[name] = exact[name]
                tensors.pop(f"{name}_scale", None)

    edit_tensors(quantized, restore)
    config = dict(FORMS[FORM].config) | {"ignore": ["lm_head", "model.layers.1", r"re:.*\.o_proj$"]}
    set_config(quantized, quantization_config=config)
    checkpoint = Checkpoint.load(quantized)
    decoder = ComposedDecoder.load(
        checkpoint,
        read_decoder_config(checkpoint.text_config),
        decoder_name=backbones.decoder_name,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    methods = {path: linear.method.name for path, linear in decoder.linears.items()}
    assert methods["layers.0.self_attn.qkv_proj"] == methods["layers.2.mlp.down_proj"] == "fp8 channel"
    plain_ones = {path for path, method in methods.items() if method == "unquantized"}
    assert plain_ones == {path for path in methods if "layers.1." in path or "o_proj" in path or path == "lm_head"}
    prompt = backbones.make_prompt(source, 9, seed=1)
    found = logits_of(quantized, prompt)
    torch.testing.assert_close(found, logits_of(plain, prompt))
