"""Mixtures of experts are quantized expert by expert, each by its own inputs, in the layout that other tools read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pairs
import pytest
import torch
from expert_folders import copy_edited, stack
from lite.reading import TEXT, logits_of, make_prompt, multiply_out, read_config, reference_logits
from lite.test_methods import METHODS, SMALL
from quantized_folders import edit_tensors, set_config
from safetensors.torch import load_file

from seesay import lite
from seesay.lite.calibrating import STATISTICS_FILE
from seesay.lite.calibration.batches import Prompt, make_batches, make_cache
from seesay.lite.methods.plain_layer import EXPERTS, ROUTER, PlainLayer
from seesay.lite.methods.rounding import round_groups
from seesay.lite.methods.statistics import observe_layer
from seesay.lite.opened import open_source
from seesay.lite.report import REPORT_FILE
from seesay.lite.run_options import LiteSettings

Tensors = dict[str, torch.Tensor]
ROUTERS = re.compile(r".*\.(mlp|block_sparse_moe)\.(gate|shared_expert_gate)")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("calibration") / "text.txt"
    file.write_text(TEXT)
    return str(file)


def run(method: str, source: Path, target: Path, text: str) -> Path:
    quantize, options = METHODS[method]
    quantize(source, target, calib_dataset=text, **SMALL, **options)
    return target


@pairs.parametrize_sweep(
    model=["mixtral", "qwen3_moe", "qwen3_vl_moe", "qwen2_moe"],
    method=["gptq, by activation, zero points", "smooth, int8", "awq", "fp8"],
)
def test_what_is_written_is_read(
    model: str, method: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str
) -> None:
    """By us and by Transformers, multiplied out."""
    source = tiny_checkpoint(model)
    folder = run(method, source, tmp_path / "out", text)
    plain = multiply_out(folder, tmp_path / "plain")
    found = logits_of(folder)
    if model == "qwen3_vl_moe":
        edit_tensors(plain, stack)
    expected = reference_logits(plain)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    change = (expected - reference_logits(source)).norm() / expected.norm()
    assert 1e-3 < change < 0.6, f"the logits changed by {change:.4f}"
    check_layout(folder, source)


def check_layout(folder: Path, source: Path) -> None:
    """Experts are modules of their own, with the names that they have elsewhere; routers are plain, and listed."""
    stored = load_file(folder / "model.safetensors")
    own = {name.rpartition(".")[0] for name in stored if ".experts." in name}
    assert own and all(re.fullmatch(r".*\.experts\.\d+\.(gate_proj|up_proj|down_proj|w[123])", name) for name in own)
    routers = {name.removesuffix(".weight") for name in stored if ROUTERS.fullmatch(name.removesuffix(".weight"))}
    before = load_file(source / "model.safetensors")
    assert routers and all(stored[f"{name}.weight"].dtype == before[f"{name}.weight"].dtype for name in routers)
    settings = read_config(folder)["quantization_config"]
    if settings["quant_method"] == "compressed-tensors":
        patterns = [entry.removeprefix("re:") for entry in settings["ignore"] if entry.startswith("re:")]
        assert all(any(re.match(pattern, name) for pattern in patterns) for name in routers)
    else:
        assert routers <= set(settings["modules_to_not_convert"])
    if settings["quant_method"] == "gptq":
        patterns = [entry.removeprefix("-:") for entry in settings["dynamic"]]
        assert all(any(re.match(pattern, name) for pattern in patterns) for name in routers)
        assert not any(re.match(pattern, name) for pattern in patterns for name in own)


def test_an_expert_that_gets_no_token_is_rounded_to_the_nearest(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str
) -> None:
    """One of two opposite logits is never below that of the last expert, which is 0."""

    def edit(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith(".gate.weight"):
                tensors[name][1] = -tensors[name][0]
                tensors[name][3] = 0

    source = copy_edited(tiny_checkpoint("mixtral"), tmp_path / "source", edit)
    set_config(source, num_experts_per_tok=1)
    folder = run("gptq", source, tmp_path / "out", text)
    report = json.loads((folder / REPORT_FILE).read_text())
    assert all(layer["unseen_experts"][-1] == 3 for layer in report["layers"])
    plain = load_file(multiply_out(folder, tmp_path / "plain") / "model.safetensors")
    before = load_file(source / "model.safetensors")
    is_nearest = {}
    for expert in range(4):
        name = f"model.layers.0.block_sparse_moe.experts.{expert}.w1.weight"
        nearest = round_groups(before[name].float(), bits=4, group_size=32, is_symmetric=True)
        is_nearest[expert] = torch.allclose(plain[name].float(), nearest, atol=1e-6)
    assert is_nearest[3] and not all(is_nearest.values())


def test_each_expert_sees_the_tokens_that_chose_it(tiny_checkpoint: Callable[[str], Path]) -> None:
    source = open_source(
        LiteSettings(model=tiny_checkpoint("mixtral"), work_dir="unused", device="cpu", calib_seqlen=64)
    ).source
    [batch] = make_batches([Prompt(input=make_prompt(30))], source.config, 1)
    cache = make_cache([batch], source.config, device=source.device, dtype=source.dtype)
    with torch.inference_mode():
        batch.hidden = source.load_ends(embeds=True).embed(batch.make_input(source.device))
        layer = PlainLayer(source, 0)
        found = observe_layer(layer, [batch], cache, lambda size: size)
    of_all = found[ROUTER]
    of_experts = [found[piece] for piece in layer.name_pieces(EXPERTS) if piece in found]
    assert of_all.num_tokens == 30 and sum(each.num_tokens for each in of_experts) == 2 * 30
    largest = torch.stack([each.abs_max for each in of_experts]).amax(0)
    torch.testing.assert_close(largest, of_all.abs_max)
    total = sum(each.abs_mean * each.num_tokens for each in of_experts)
    torch.testing.assert_close(total, 2 * 30 * of_all.abs_mean)


def test_statistics_of_experts(tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    summary: dict[str, Any] = lite.calibrate(
        tiny_checkpoint("qwen3_vl_moe"), tmp_path / "out", **SMALL, calib_dataset=Path(text)
    )
    tensors = load_file(tmp_path / "out" / STATISTICS_FILE)
    name = "model.language_model.layers.0.mlp.experts.1"
    gate, up = (tensors[f"{name}.{half}_proj.input_abs_max"] for half in ("gate", "up"))
    assert torch.equal(gate, up) and gate.shape == (64,)
    assert f"{name}.down_proj" in summary["modules"]


def test_settings_of_single_modules_that_stay_plain(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As GPTQModel writes what it leaves alone."""
    from quantized_folders import PACKED_FORMS, is_quantized, write_quantized

    form = PACKED_FORMS["gptq, symmetric"]
    quantized, plain = write_quantized(tiny_checkpoint("mixtral"), tmp_path, form, is_quantized)
    set_config(quantized, quantization_config={**form.config, "dynamic": {r"-:.*\.gate$": {}}})
    assert torch.equal(logits_of(quantized), logits_of(plain))
