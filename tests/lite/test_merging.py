"""An adapter that is merged into a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from adapter_folders import ALPHA, RANK, read_weights, write_adapter, write_folder
from pairs import mark_after
from quantized_folders import FORMS, PACKED_FORMS, Form, edit_tensors, write_quantized
from safetensors.torch import load_file, save_file

from seesay import EngineConfig, GenerationConfig, cli, lite, pipeline
from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ConfigError
from seesay.lite.methods.requantizing import list_parts, requantize

MODULES = r".*(q_proj|down_proj|fc1|mlp\.up_proj)"


@pytest.mark.parametrize("name", ["llama", "qwen2_5_vl"])
def test_weights_are_the_sums(name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Also those of a vision tower."""
    path = tiny_checkpoint(name)
    write_adapter(path, tmp_path / "adapter", MODULES, merged=tmp_path / "expected")
    assert cli.main(["lite", "merge", str(path), str(tmp_path / "adapter"), "--work-dir", str(tmp_path / "out")]) == 0
    found, expected, plain = map(read_weights, (tmp_path / "out", tmp_path / "expected", path))
    assert found.keys() == expected.keys()
    changed = {name for name in plain if not torch.equal(plain[name], found[name])}
    assert changed == {name for name in plain if not torch.equal(plain[name], expected[name])} and changed
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor)
    assert {file.name for file in path.iterdir()} == {file.name for file in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("suffix", ["", ".weight"])
def test_magnitudes_are_the_lengths_of_the_rows(
    suffix: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As PEFT has them in its files, or names them itself."""
    path = tiny_checkpoint("llama")
    write_adapter(path, tmp_path / "adapter", MODULES, merged=tmp_path / "sums")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    sums, lengths = read_weights(tmp_path / "sums"), dict[str, torch.Tensor]()
    for name in [name for name in tensors if name.endswith("lora_B.weight")]:
        module = name.removesuffix(".lora_B.weight")
        lengths[module.removeprefix("base_model.model.")] = magnitude = torch.rand(len(tensors[name])) + 0.5
        tensors[f"{module}.lora_magnitude_vector{suffix}"] = magnitude
    write_folder(tmp_path / "dora", tensors, use_dora=True)
    found = read_weights(lite.merge(path, tmp_path / "dora", tmp_path / "out"))
    for module, magnitude in lengths.items():
        total = sums[f"{module}.weight"].float()
        expected = magnitude[:, None] * total / total.norm(dim=1, keepdim=True)
        torch.testing.assert_close(found[f"{module}.weight"].float(), expected, atol=2e-3, rtol=1e-2)
    some = {name: tensor for name, tensor in tensors.items() if "layers.0" in name or "magnitude" not in name}
    write_folder(tmp_path / "some", some, use_dora=True)
    with pytest.raises(CheckpointError, match=r"lora_magnitude_vector of '.*' is missing, and adapter_config.json has"):
        lite.merge(path, tmp_path / "some", tmp_path / "none")
    write_folder(tmp_path / "plain", tensors)
    with pytest.raises(CheckpointError, match=r"is there, and adapter_config.json has use_dora: false"):
        lite.merge(path, tmp_path / "plain", tmp_path / "none")


def test_what_cannot_be_merged(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_checkpoint("llama")
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    write_folder(
        tmp_path / "a", {f"{name}.lora_A.weight": torch.ones(4, 3), f"{name}.lora_B.weight": torch.ones(64, 4)}
    )
    with pytest.raises(
        CheckpointError,
        match=r"is for a weight \[64, 3\], 'model.layers.0.self_attn.q_proj' of .* has weight \[64, 64\]",
    ):
        lite.merge(path, tmp_path / "a", tmp_path / "out")
    other = name.replace("layers.0", "layers.7")
    write_folder(
        tmp_path / "a", {f"{other}.lora_A.weight": torch.ones(4, 3), f"{other}.lora_B.weight": torch.ones(4, 4)}
    )
    with pytest.raises(CheckpointError, match=r"has no weight of 'model.layers.7.self_attn.q_proj'"):
        lite.merge(path, tmp_path / "a", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    large = {f"{name}.lora_A.weight": torch.full((4, 64), 1e30), f"{name}.lora_B.weight": torch.full((64, 4), 1e30)}
    write_folder(tmp_path / "a", large)
    with pytest.raises(CheckpointError, match=r"q_proj' makes numbers that torch\.\w+ does not have"):
        lite.merge(path, tmp_path / "a", tmp_path / "other")
    with pytest.raises(ConfigError, match="work_dir must be a new or an empty folder"):
        lite.merge(path, tmp_path / "a", tmp_path / "a")


ALL_FORMS = FORMS | PACKED_FORMS
QUANTIZED = r".*(q_proj|v_proj|down_proj)"


def multiply_out(folder: Path) -> dict[str, torch.Tensor]:
    """Return the quantized weights of a checkpoint in float32, by the names of their modules."""
    quantization = Checkpoint.load(folder).quantization
    assert quantization is not None
    tensors, found = read_weights(folder), dict[str, torch.Tensor]()
    first, *others = list_parts(quantization)
    for name in [name for name in tensors if name.endswith(f".{first}")]:
        module = name.removesuffix(f".{first}")
        parts = {part: tensors[f"{module}.{part}"] for part in (first, *others) if f"{module}.{part}" in tensors}
        shape = find_shape(parts)

        def keep(weight: torch.Tensor, module: str = module) -> torch.Tensor:
            found[module] = weight.clone()
            return weight

        requantize(parts, quantization, shape, keep)
    return found


def find_shape(parts: dict[str, torch.Tensor]) -> tuple[int, int]:
    if "weight_shape" in parts:
        num_outputs, num_inputs = parts["weight_shape"].tolist()
        return num_outputs, num_inputs
    if "g_idx" in parts:
        return parts["scales"].shape[1], len(parts["g_idx"])
    if "qweight" in parts:
        return parts["scales"].shape[1], len(parts["qweight"])
    return parts["weight"].shape[0], parts["weight"].shape[1]


@pytest.mark.parametrize("form", ALL_FORMS)
def test_quantized_weights_are_rounded_again(form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As near to the sums as the plain merged model's are once they are quantized, and within a step of these."""
    chosen = ALL_FORMS[form]
    quantized, plain = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, chosen)
    write_adapter(plain, tmp_path / "adapter", rf"model\.layers{QUANTIZED}")
    before, exact = multiply_out(quantized), read_weights(plain)
    assert before and all(torch.equal(weight, exact[f"{module}.weight"]) for module, weight in before.items())
    out = lite.merge(quantized, tmp_path / "adapter", tmp_path / "out")
    found, factors = multiply_out(out), load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    num_changed = 0
    for module, weight in found.items():
        b = factors.get(f"base_model.model.{module}.lora_B.weight")
        if b is None:
            assert torch.equal(weight, before[module]), module
            continue
        num_changed += 1
        total = before[module] + ALPHA / RANK * b @ factors[f"base_model.model.{module}.lora_A.weight"]
        expected = chosen.quantize(total)[1]
        step = 2.05 * (expected - total).abs().max()
        assert (weight - total).norm() <= 1.1 * (expected - total).norm(), module
        assert (weight - expected).abs().max() <= step < 0.3 * total.abs().max(), module
    assert num_changed == 2 * 3
    stored, kept = read_weights(quantized), read_weights(out)
    assert {name: (t.dtype, t.shape) for name, t in stored.items()} == {n: (t.dtype, t.shape) for n, t in kept.items()}
    assert (out / "config.json").read_text() == (quantized / "config.json").read_text()


@pytest.mark.parametrize(
    "form",
    mark_after(
        2, ["awq, groups of 32", "gptq, in order of activations", "pack-quantized, zero points", "gptq, 8 bits"]
    ),
)
def test_engines_read_weights_that_were_rounded_again(
    form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    quantized, plain = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, PACKED_FORMS[form])
    write_adapter(plain, tmp_path / "adapter", rf"model\.layers{QUANTIZED}")
    out = lite.merge(quantized, tmp_path / "adapter", tmp_path / "out")
    tensors = read_weights(plain) | {
        f"{module}.weight": weight.contiguous() for module, weight in multiply_out(out).items()
    }
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    answers = {}
    for folder in (quantized, plain, out):
        options = GenerationConfig(max_new_tokens=8, ignore_eos=True, do_sample=False)
        with pipeline(str(folder), EngineConfig(device_type="cpu", session_len=256, dtype="float32")) as pipe:
            answers[folder] = pipe("what is it? the thing of the other", options).token_ids
    assert answers[out] == answers[plain] != answers[quantized]


def test_modules_whose_tensors_lie_in_several_files(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    form: Form = PACKED_FORMS["gptq, symmetric"]
    quantized, plain = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, form)
    write_adapter(plain, tmp_path / "adapter", rf"model\.layers{QUANTIZED}")
    whole = read_weights(lite.merge(quantized, tmp_path / "adapter", tmp_path / "whole"))
    tensors = read_weights(quantized)
    (quantized / "model.safetensors").unlink()
    files = {"a": "scales", "b": ""}
    for file, ending in files.items():
        own = {name: t for name, t in tensors.items() if name.endswith(".scales") == (ending == "scales")}
        save_file(own, quantized / f"model-{file}.safetensors", metadata={"format": "pt"})
    index = {name: f"model-{'a' if name.endswith('.scales') else 'b'}.safetensors" for name in tensors}
    (quantized / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    found = read_weights(lite.merge(quantized, tmp_path / "adapter", tmp_path / "out"))
    assert found.keys() == whole.keys() and all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    "form", ["awq, groups of 32", "gptq, symmetric", "pack-quantized, channels", "fp8, small blocks"]
)
def test_quantized_weights_of_another_shape(form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, _ = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, ALL_FORMS[form])
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    factors = {f"{name}.lora_A.weight": torch.ones(4, 32), f"{name}.lora_B.weight": torch.ones(64, 4)}
    write_folder(tmp_path / "adapter", factors)
    with pytest.raises(CheckpointError, match=r"q_proj' is for a weight \[64, 32\], .* "):
        lite.merge(quantized, tmp_path / "adapter", tmp_path / "out")
    assert not (tmp_path / "out").exists()

    def cut(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if "layers.0.self_attn.q_proj" in key and tensors[key].dim() == 2]:
            tensors[key] = tensors[key][:, :1].contiguous()

    write_folder(tmp_path / "adapter", {**factors, f"{name}.lora_A.weight": torch.ones(4, 64)})
    edit_tensors(quantized, cut)
    with pytest.raises(CheckpointError, match="q_proj' is for a weight"):
        lite.merge(quantized, tmp_path / "adapter", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_of_groups_that_are_not_there(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    quantized, plain = write_quantized(tiny_checkpoint("qwen2_5_vl"), tmp_path, PACKED_FORMS["gptq, symmetric"])
    write_adapter(plain, tmp_path / "adapter", r"model\.layers\.0\.self_attn\.q_proj")

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.q_proj.g_idx"].fill_(-(10**6))

    edit_tensors(quantized, spoil)
    with pytest.raises(CheckpointError, match="q_proj' has inputs of other groups than 0 to 1"):
        lite.merge(quantized, tmp_path / "adapter", tmp_path / "out")
