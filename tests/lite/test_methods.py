"""Every method on tiny models of several families, and on layers whose inputs have outliers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from enrolment import SIBLING
from lite.reading import TEXT, logits_of, multiply_out, read_config, reference_logits
from pairs import parametrize_sweep
from quantized_folders import PACKED_FORMS, edit_tensors, write_quantized
from safetensors.torch import load_file

from seesay import EngineConfig, GenerationConfig, lite, pipeline
from seesay.lite.methods.awq import AwqMethod
from seesay.lite.methods.gptq import GptqMethod
from seesay.lite.methods.method import PlainMatrix
from seesay.lite.methods.rounding import round_groups
from seesay.lite.methods.statistics import InputObserver, InputStatistics
from seesay.lite.report import REPORT_FILE

Quantize = Callable[..., Any]
SMALL = {"calib_samples": 4, "calib_seqlen": 64, "batch_size": 2, "device": "cpu"}
FAMILIES = ("llama", "qwen3", "phi3", "mistral", "gemma3", "qwen2_5_vl", "llava", "internvl")
LAYERS = (*FAMILIES, "starcoder2", "olmo", "olmo2", "cohere", "falcon_groups", "glm4")
"""With feed-forwards and norms of all kinds."""
ALIKE = ("llama", "mistral", "llava", "olmo")
"""Their layers have nothing that those of others have not."""
METHODS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "awq": (lite.auto_awq, {"w_group_size": 32}),
    "awq, symmetric, one group": (lite.auto_awq, {"w_group_size": -1, "w_sym": True, "search_scale": False}),
    "gptq": (lite.auto_gptq, {"w_group_size": 32}),
    "gptq, by activation, zero points": (lite.auto_gptq, {"w_group_size": 32, "desc_act": True, "w_sym": False}),
    "gptq, static groups": (lite.auto_gptq, {"w_group_size": 32, "desc_act": True, "static_groups": True}),
    "gptq, 8 bits": (lite.auto_gptq, {"w_group_size": -1, "w_bits": 8}),
    "smooth, int8": (lite.smooth_quant, {}),
    "smooth, fp8": (lite.smooth_quant, {"quant_dtype": "fp8"}),
    "fp8": (lite.fp8, {}),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("calibration") / "text.txt"
    file.write_text(TEXT)
    return str(file)


def run(method: str, source: Path, target: Path, text: str, **changes: Any) -> Path:
    quantize, options = METHODS[method]
    quantize(source, target, calib_dataset=text, **{**SMALL, **options, **changes})
    return target


def check(source: Path, folder: Path, tmp_path: Path) -> None:
    """The engine loads what was written, as its independently multiplied out weights say."""
    plain = multiply_out(folder, tmp_path / "plain")
    expected = reference_logits(plain)
    torch.testing.assert_close(logits_of(folder), expected, atol=1e-3, rtol=0)
    change = (expected - reference_logits(source)).norm() / expected.norm()
    assert 1e-3 < change < 0.6, f"the logits changed by {change:.4f}"


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    source = tiny_checkpoint("qwen2_5_vl")
    folder = run(method, source, tmp_path / "out", text)
    check(source, folder, tmp_path)
    assert not list(folder.glob(".*")), "nothing of the run is left"
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1, "all files may be read by the same users"
    kept = {file.name for file in source.iterdir()} | {REPORT_FILE}
    assert {file.name for file in folder.iterdir()} == kept
    stored = load_file(folder / "model.safetensors")
    for name, tensor in load_file(source / "model.safetensors").items():
        if "layers." not in name:
            torch.testing.assert_close(stored[name], tensor, rtol=0, atol=0)


OF_EVERY_FAMILY = ("awq", "gptq, by activation, zero points", "smooth, int8")


@parametrize_sweep(name=[name for name in LAYERS if name not in ("qwen2_5_vl", *ALIKE)], method=OF_EVERY_FAMILY)
def test_every_family(
    name: str, method: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str
) -> None:
    source = tiny_checkpoint(name)
    check(source, run(method, source, tmp_path / "out", text), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("method", OF_EVERY_FAMILY)
def test_families_alike(
    name: str, method: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str
) -> None:
    test_every_family(name, method, tiny_checkpoint, tmp_path, text)


@pytest.mark.parametrize(
    "method", ["awq", None, *(pytest.param(method, marks=pytest.mark.slow) for method in OF_EVERY_FAMILY[1:])]
)
def test_queries_keys_and_values_of_groups_of_heads(
    method: str | None, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str
) -> None:
    """InternLM2 stores them together, and its head under another name. It is quantized as the same model is that is
    stored as a Llama; without a method, while it is loaded."""
    source = tiny_checkpoint("internlm2")
    logits = []
    for number, folder in enumerate((source, source / SIBLING)):
        config = EngineConfig(device_type="cpu", quantization=None if method else "fp8")
        path = run(method, folder, tmp_path / str(number), text) if method else folder
        with pipeline(str(path), backend_config=config) as pipe:
            answer = pipe("the game", gen_config=GenerationConfig(max_new_tokens=1, output_logits="all"))
        assert answer.error is None
        logits.append(answer.logits)
    torch.testing.assert_close(*logits, rtol=0, atol=1e-4)
    if method:
        stored = load_file(tmp_path / "0" / "model.safetensors")
        assert torch.equal(stored["output.weight"], load_file(source / "model.safetensors")["output.weight"])
        assert "output" in str(read_config(tmp_path / "0")["quantization_config"])


def test_the_report(tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    folder = run("gptq", tiny_checkpoint("llama"), tmp_path / "out", text)
    report = json.loads((folder / REPORT_FILE).read_text())
    assert [layer["layer"] for layer in report["layers"]] == [0, 1]
    for layer in report["layers"]:
        assert set(layer["weights"]) == {
            "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"
        }  # fmt: skip
        assert all(0.01 < error < 0.3 for error in layer["weights"].values())
        assert 0 < layer["output"] < 0.3
    before, after = report["perplexity"]["before"], report["perplexity"]["after"]
    assert report["held_out_tokens"] > 20 and 1 < before < 1e5 and 0.5 < after / before < 2 and after != before


def test_perplexity_is_that_of_transformers(tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    """Before, on the pieces that are held out."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    source = tiny_checkpoint("llama")
    folder = run("fp8", source, tmp_path / "out", text, calib_samples=8)
    report = json.loads((folder / REPORT_FILE).read_text())
    tokenizer, model = AutoTokenizer.from_pretrained(source), LlamaForCausalLM.from_pretrained(source).eval()
    piece = TEXT[: len(TEXT) // (len(TEXT) // (4 * 64))]
    ids = torch.tensor([[*tokenizer("").input_ids, *tokenizer(piece, add_special_tokens=False).input_ids][:64]])
    with torch.inference_mode():
        loss = model(input_ids=ids, labels=ids).loss
    assert report["perplexity"]["before"] == pytest.approx(float(loss.exp()), rel=1e-3)


@pytest.mark.parametrize(("method", "patterns"), [("awq", False), ("gptq", False), ("fp8", True)])
def test_the_tower_on_request(
    method: str, patterns: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    from family_contract import draw_image, load_family, preprocess
    from PIL import Image

    source = tiny_checkpoint("qwen2_5_vl")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(4):
        Image.fromarray(draw_image(40 + 8 * i, 56).frames[0]).save(pictures / f"{i}.png")
        (pictures / f"{i}.txt").write_text("a game in the frame")
    folder = run(method, source, tmp_path / "out", str(pictures), vision=True, calib_seqlen=256)
    plain = multiply_out(folder, tmp_path / "plain")
    rows = []
    for path in (folder, plain, source):
        family, _ = load_family(path)
        encoder = family.build_encoder(torch.device("cpu"), torch.float32)
        rows.append(encoder.encode([preprocess(family, draw_image(40, 56))])[0])
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-3)
    change = (rows[1] - rows[2]).norm() / rows[2].norm()
    assert 1e-3 < change < 0.6, f"the tower's rows changed by {change:.4f}"
    settings = read_config(folder)["quantization_config"]
    excluded = settings["ignore"] if patterns else settings["modules_to_not_convert"]
    assert any("patch_embed" in entry for entry in excluded)


def test_large_checkpoints_are_written_in_shards(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    source = tiny_checkpoint("llama")
    whole = load_file(run("fp8", source, tmp_path / "whole", text) / "model.safetensors")
    monkeypatch.setattr("seesay.lite.output.MAX_SHARD_BYTES", 60_000)
    folder = run("fp8", source, tmp_path / "out", text)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(folder.glob("model-*.safetensors"))
    assert len(files) > 2 and {file.name for file in files} == set(index["weight_map"].values())
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert found.keys() == whole.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in found.values())
    torch.testing.assert_close(logits_of(folder), logits_of(tmp_path / "whole"), rtol=0, atol=0)


# --- better than rounding to the nearest ------------------------------------------------------------------------------


def make_inputs(num_inputs: int) -> tuple[torch.Tensor, InputStatistics]:
    """Correlated inputs [T, in], some of them much larger than others."""
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(num_inputs, num_inputs, generator=generator) / num_inputs**0.5
    x = torch.randn(600, num_inputs, generator=generator) @ mix
    x[:, ::17] *= 12
    observer = InputObserver(num_inputs, num_inputs)
    observer(x[:250])
    observer(x[250:])
    return x, observer.finish("layer")


def make_plain(inputs: InputStatistics, num_outputs: int, num_inputs: int) -> PlainMatrix:
    weight = torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(2)) * 0.05
    return PlainMatrix(name="layer", data=weight, stored_type=torch.float32, inputs=inputs)


def test_statistics_of_inputs() -> None:
    x, found = make_inputs(64)
    torch.testing.assert_close(found.abs_max, x.abs().amax(0))
    torch.testing.assert_close(found.abs_mean, x.abs().mean(0))
    torch.testing.assert_close(found.need_gram()[0], x.t() @ x / len(x), rtol=1e-4, atol=1e-4)
    scales = torch.rand(64) + 0.5
    divided = found.divide(scales)
    torch.testing.assert_close(divided.abs_max, (x / scales).abs().amax(0))
    torch.testing.assert_close(divided.need_gram()[0], (x / scales).t() @ (x / scales) / len(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group_size", [32, -1])
@pytest.mark.parametrize(("by_activation", "has_static_groups"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_gptq_errs_less_than_rounding_to_the_nearest(
    by_activation: bool, has_static_groups: bool, is_symmetric: bool, group_size: int
) -> None:
    x, inputs = make_inputs(160)
    plain = make_plain(inputs, 48, 160)
    method = GptqMethod(
        bits=4,
        group_size=group_size,
        is_symmetric=is_symmetric,
        orders_by_activation=by_activation,
        has_static_groups=has_static_groups,
        damping=0.01,
    )
    size = 160 if group_size == -1 else group_size
    nearest = round_groups(plain.data, bits=4, group_size=size, is_symmetric=is_symmetric)
    quantized = method.quantize(plain)
    found = quantized.matrix
    in_order = (torch.arange(160) // size).equal(quantized.tensors["g_idx"].long())
    assert in_order != (by_activation and not has_static_groups and group_size == 32)
    assert method.config([])["desc_act"] == (by_activation and not has_static_groups)

    def error(matrix: torch.Tensor) -> float:
        return float((x @ (matrix - plain.data).t()).norm() / (x @ plain.data.t()).norm())

    assert error(found) < 0.8 * error(nearest), f"{error(found):.4f} and {error(nearest):.4f}"
    assert error(nearest) < 0.3


def test_clipping_lowers_the_error_of_outputs() -> None:
    x, _ = make_inputs(64)
    observer = InputObserver(64, 32)
    observer(x)
    plain = make_plain(observer.finish("layer"), 48, 64)
    plain.data[:, 5] *= 6  # outliers of weights
    method = AwqMethod(group_size=32, is_symmetric=False, searches=False)
    blind = PlainMatrix(name=plain.name, data=plain.data, stored_type=plain.stored_type, inputs=None)

    def error(matrix: torch.Tensor) -> float:
        off = (matrix - plain.data).unflatten(1, (2, 32))  # type: ignore[no-untyped-call]
        return sum(float((x[:, 32 * g : 32 * g + 32] @ off[:, g].t()).square().sum()) for g in range(2))

    assert error(method.quantize(plain).matrix) < 0.95 * error(method.quantize(blind).matrix)


@pytest.fixture(scope="module")
def with_outliers(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model some of whose channels are much larger behind its norms."""
    folder = tmp_path_factory.mktemp("outliers") / "model"
    shutil.copytree(tiny_checkpoint("qwen2_5_vl"), folder)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if "layers" in name and name.endswith("layernorm.weight"):
                tensor[::11] *= 15

    edit_tensors(folder, change)
    return folder


@pytest.mark.parametrize("search_scale", [True, False])
def test_awq_errs_less_than_rounding_to_the_nearest(
    search_scale: bool, with_outliers: Path, tmp_path: Path, text: str
) -> None:
    folder = run("awq", with_outliers, tmp_path / "out", text, search_scale=search_scale)
    nearest, _ = write_quantized(with_outliers, tmp_path / "nearest", PACKED_FORMS["awq, groups of 32"])
    exact = logits_of(with_outliers)
    ours, theirs = ((logits_of(path) - exact).norm() / exact.norm() for path in (folder, nearest))
    assert ours < 0.8 * theirs, f"{ours:.4f} and {theirs:.4f}"


def test_folding_changes_nothing_but_rounding(tiny_checkpoint: Callable[[str], Path]) -> None:
    from lite.reading import make_prompt

    from seesay.lite.calibration.batches import Prompt, make_batches, make_cache
    from seesay.lite.methods.folding import all_pairs, fold
    from seesay.lite.methods.plain_layer import PlainLayer
    from seesay.lite.opened import open_source
    from seesay.lite.run_options import LiteSettings

    for name in (*LAYERS, "mixtral", "qwen2_moe"):
        opened = open_source(
            LiteSettings(model=tiny_checkpoint(name), work_dir="unused", device="cpu", calib_seqlen=64)
        )
        source = opened.source
        axes = name == "qwen2_5_vl"
        [batch] = make_batches([Prompt(input=make_prompt(30, has_three_axes=axes))], source.config, 1)
        cache = make_cache([batch], source.config, device=source.device, dtype=source.dtype)
        with torch.inference_mode():
            batch.hidden = source.load_ends(embeds=True).embed(batch.make_input(source.device))
            layer = PlainLayer(source, 0)
            before = layer.run(batch, batch.hidden, cache)
            for pair in all_pairs(layer):
                matrix = layer.matrices[pair.target].clone()
                fold(layer, pair, torch.rand(pair.heads * pair.size) + 0.5)
                assert (layer.matrices[pair.target] - matrix).abs().max() > 0.01
            layer.use()
            after = layer.run(batch, batch.hidden, cache)
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_rows_of_a_picture_see_each_other_in_calibration(tiny_checkpoint: Callable[[str], Path]) -> None:
    from lite.reading import make_prompt

    from seesay.lite.calibration.batches import Prompt, make_batches
    from seesay.lite.opened import open_source
    from seesay.lite.run_options import LiteSettings
    from seesay.llm.ops import RowLayout
    from seesay.values import MediaItem, Modality

    text = make_prompt(12)
    item = MediaItem(
        modality=Modality.IMAGE, span=(2, 8), slots=np.arange(3, 7), hash=bytes(32), features={}, num_units=4
    )
    prompts = [Prompt(input=text), Prompt(input=replace(text, items=(item,)), embeddings=(torch.zeros(4, 64),))]
    for name, expected in (
        ("gemma3_vision", [*range(12), 0, 1, 2, 6, 6, 6, 6, *range(7, 12)]),
        ("paligemma2", [*range(12), *[7] * 8, *range(8, 12)]),
        ("llava", None),
    ):
        settings = LiteSettings(model=tiny_checkpoint(name), work_dir="unused", device="cpu", calib_seqlen=64)
        [batch] = make_batches(prompts, open_source(settings).source.config, 2)
        layout = batch.make_input(torch.device("cpu")).layout
        assert isinstance(layout, RowLayout)
        assert (None if layout.runs is None else layout.runs[1].tolist()) == expected


@pytest.mark.parametrize("method", ["fp8", "smooth, int8"])
@pytest.mark.parametrize("name", ["llama", "qwen2_5_vl"])
def test_transformers_loads_compressed_tensors(
    name: str, method: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str
) -> None:
    """With the package compressed-tensors, and computes what the weights multiplied out give, up to the rounding of
    activations."""
    pytest.importorskip("compressed_tensors")
    folder = run(method, tiny_checkpoint(name), tmp_path / "out", text)
    expected = reference_logits(multiply_out(folder, tmp_path / "plain"))
    error = (reference_logits(folder) - expected).norm() / expected.norm()
    assert error < 0.15, f"{error:.4f}"
