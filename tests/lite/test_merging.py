"""An adapter that is merged into a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def write_ends(folder: Path, tensors: dict[str, torch.Tensor], **fields: object) -> Path:
    """Write an adapter of the ends, with weights of the names of PEFT's files and other fields of its configuration."""
    write_folder(folder, {f"base_model.model.{name}": tensor for name, tensor in tensors.items()})
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


def tie(path: Path, folder: Path) -> Path:
    """Write a checkpoint whose head is its table, in a file of its own, with an index."""
    shutil.copytree(path, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    weights = {name: weight for name, weight in read_weights(path).items() if name != "lm_head.weight"}
    files = {name: f"model-{1 + ('embed' in name)}.safetensors" for name in weights}
    for file in set(files.values()):
        save_file({n: w for n, w in weights.items() if files[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    return folder


def test_whole_weights_take_the_place_of_stored_ones(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Those of ends may have more tokens; what PEFT writes beside factors is below them."""
    path = tiny_checkpoint("llama")
    weights = read_weights(path)
    size, width = weights["lm_head.weight"].shape
    table, head = (torch.randn(size + 3, width) for _ in range(2))
    a, b = torch.randn(RANK, width), torch.randn(size + 3, RANK)
    tensors = {
        "model.embed_tokens.weight": table,
        "lm_head.base_layer.weight": head,
        "lm_head.lora_A.weight": a,
        "lm_head.lora_B.weight": b,
    }
    out = lite.merge(path, write_ends(tmp_path / "a", tensors, modules_to_save=["embed_tokens"]), tmp_path / "out")
    found, dtype = read_weights(out), weights["lm_head.weight"].dtype
    assert torch.equal(found["model.embed_tokens.weight"], table.to(dtype))
    torch.testing.assert_close(found["lm_head.weight"], (head + ALPHA / RANK * b @ a).to(dtype))
    assert json.loads((out / "config.json").read_text())["vocab_size"] == size + 3
    options = GenerationConfig(max_new_tokens=8, ignore_eos=True, do_sample=False)
    with pipeline(str(out), EngineConfig(device_type="cpu", session_len=256)) as pipe:
        assert len(pipe("what is it?", options).token_ids) == 8
    for wrong, message in {
        "model.embed_tokens.weight": "table and head would have different numbers of tokens",
        "model.layers.0.self_attn.q_proj.weight": r"q_proj' is for a weight \[\d+, \d+\]",
    }.items():
        write_ends(tmp_path / "a", {wrong: table})
        with pytest.raises(CheckpointError, match=message):
            lite.merge(path, tmp_path / "a", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("form", ["table", "table, tied", "head", "both"])
def test_a_head_that_was_the_table_becomes_one_of_its_own(
    form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """But where the adapter ties them, too. Answers are those with the adapter."""
    path = tie(tiny_checkpoint("llama"), tmp_path / "tied")
    size, width = read_weights(path)["model.embed_tokens.weight"].shape
    torch.manual_seed(1)
    table = {"lora_embedding_A": 2 * torch.randn(RANK, size), "lora_embedding_B": torch.randn(width, RANK)}
    head = {"lora_A.weight": torch.randn(RANK, width), "lora_B.weight": 2 * torch.randn(size, RANK)}
    tensors = {f"model.embed_tokens.{name}": tensor for name, tensor in table.items() if form != "head"}
    tensors |= {f"lm_head.{name}": tensor for name, tensor in head.items() if form in ("head", "both")}
    folder = write_ends(tmp_path / "a", tensors, ensure_weight_tying=form == "table, tied")
    out = lite.merge(path, folder, tmp_path / "out")
    is_tied = form == "table, tied"
    assert ("lm_head.weight" in read_weights(out)) != is_tied
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is is_tied
    options = GenerationConfig(max_new_tokens=8, ignore_eos=True, do_sample=False)
    config: dict[str, Any] = {"device_type": "cpu", "session_len": 256, "dtype": "float32"}
    with pipeline(str(path), EngineConfig(**config, adapters={"a": str(folder)})) as pipe:
        plain, expected = (pipe("what is it?", options, adapter_name=name).token_ids for name in (None, "a"))
    with pipeline(str(out), EngineConfig(**config)) as pipe:
        assert pipe("what is it?", options).token_ids == expected
    if is_tied:  # where the head is the table, a tiny model repeats the last token, whatever both are
        changed = read_weights(path)["model.embed_tokens.weight"].float()
        changed += ALPHA / RANK * (table["lora_embedding_B"] @ table["lora_embedding_A"]).t()
        torch.testing.assert_close(
            read_weights(out)["model.embed_tokens.weight"].float(), changed, rtol=1e-2, atol=1e-2
        )
    else:
        assert expected != plain
