"""What an adapter's folder may hold, and what is refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seesay.checkpoint import adapter_folder
from seesay.checkpoint.adapter_folder import AdapterFolder
from seesay.checkpoint.tensors import is_finite
from seesay.errors import CheckpointError

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj"]}
Q = "base_model.model.model.layers.0.self_attn.q_proj"


def make_tensors(rank: int = 2, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{Q}.lora_A.weight": torch.randn(rank, 8, generator=generator),
        f"{Q}.lora_B.weight": torch.randn(6, rank, generator=generator),
    }


def write(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    save_file(make_tensors() if tensors is None else tensors, folder / "adapter_model.safetensors")
    return folder


def test_scales(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    patterns = {r"layers\.\d+\.self_attn\.q_proj": 4, "v_proj": 9}
    for expected, config in (
        (3.0, {}),
        (6 / 2**0.5, {"use_rslora": True}),
        (2.0, {"alpha_pattern": patterns}),
        (3.0, {"alpha_pattern": {"k_proj": 1}, "rank_pattern": {"q_proj": 2}, "r": 7}),
        (3.0, {"modules_to_save": None, "use_dora": False, "bias": "none", "exclude_modules": []}),
    ):
        folder = AdapterFolder.load(write(tmp_path / "a", **config))
        assert folder.modules.keys() == {name} and folder.modules[name].scale == expected, config


def test_ids_follow_the_content(tmp_path: Path) -> None:
    first = AdapterFolder.load(write(tmp_path / "a"))
    same = AdapterFolder.load(write(tmp_path / "b", inference_mode=True, base_model_name_or_path="x"))
    others = [
        AdapterFolder.load(write(tmp_path / "c", make_tensors(seed=1))),
        AdapterFolder.load(write(tmp_path / "d", lora_alpha=7)),
        AdapterFolder.load(write(tmp_path / "e", {k: v.bfloat16() for k, v in make_tensors().items()})),
    ]
    assert first.make_id() == same.make_id() > 0 and same.base == "x"
    assert len({first.make_id(), *(other.make_id() for other in others)}) == 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type must be 'LORA', got 'IA3'"),
        ({"use_dora": True}, "lora_magnitude_vector of .* is missing, and adapter_config.json has use_dora: true"),
        ({"use_dora": "no"}, "use_dora must be true or false, got 'no'"),
        ({"bias": "all"}, "bias must be 'none'"),
        ({"modules_to_save": "lm_head"}, "modules_to_save must be a list of names, got 'lm_head'"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices must be None"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "it has nothing for 'mlp.experts.down_proj'"),
        (
            {"target_parameters": ["mlp.experts.bias"]},
            "'mlp.experts.bias' is not supported, names may end in gate_up_proj",
        ),
        ({"target_parameters": "experts"}, "target_parameters must be a list of names, got 'experts'"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out must be False"),
        ({"r": 0}, "r must be an integer from 1 to 512, got '0'"),
        ({"r": 10**9}, "r must be an integer from 1 to 512"),
        ({"r": "2"}, "r must be an integer from 1 to 512"),
        ({"r": 3}, "'model.layers.0.self_attn.q_proj' has rank 2, the configuration says 3"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number above 0"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number above 0"),
        ({"lora_alpha": "x"}, "lora_alpha must be a number above 0"),
        ({"alpha_pattern": [1]}, "alpha_pattern must be an object"),
        ({"alpha_pattern": {"(": 1}}, r"the pattern '\(' cannot be used"),
        ({"rank_pattern": {"(a+|[a-z._]+)+!": 1}}, "has rank 2|cannot be used"),
        ({"alpha_pattern": {"q_proj": -1}}, "lora_alpha must be a number above 0"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    if "rank_pattern" in config:
        config = {**config, "r": 3}
    with pytest.raises(CheckpointError, match=message) as caught:
        AdapterFolder.load(write(tmp_path / "a", **config))
    assert str(caught.value).startswith(str(tmp_path))


def test_patterns_that_take_long_together(tmp_path: Path) -> None:
    scales = adapter_folder._Scales(tmp_path, CONFIG | {"alpha_pattern": {"x": 1}})
    assert scales.find("model.layers.0.self_attn.q_proj", 2) == 3.0
    scales._seconds_left = 0.0
    with pytest.raises(CheckpointError, match="its patterns take more than 10 s for all modules"):
        scales.find("model.layers.0.self_attn.q_proj", 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{Q}.lora_B.weight": None}, "lora_B of 'model.layers.0.self_attn.q_proj' is missing"),
        ({f"{Q}.lora_B.weight": torch.ones(6, 3)}, r"lora_A \[2, 8\] and lora_B \[6, 3\] .* do not fit"),
        ({f"{Q}.lora_B.weight": torch.full((6, 2), float("nan"))}, "numbers that are not finite"),
        ({f"{Q}.lora_A.weight": torch.ones(2, 8, 1)}, r"is F32 \[2, 8, 1\], it must be a matrix"),
        ({f"{Q}.lora_A.weight": torch.ones(2, 8, dtype=torch.int32)}, "is I32"),
        ({f"{Q}.lora_magnitude_vector": torch.ones(6)}, "is there, and adapter_config.json has use_dora: false"),
        ({"base_model.model.lm_head.weight": torch.ones(6, 6)}, r"the whole weight of 'lm_head' \(modules_to_save\)"),
        ({"base_model.model.lm_head.bias": torch.ones(6)}, "'base_model.model.lm_head.bias' is not supported"),
        ({"base_model.model.x.lora_C.weight": torch.ones(6, 6)}, "lora_C.weight' is not supported"),
        ({f"{Q}.lora_embedding_A": torch.ones(2, 8)}, "and .* are the same"),
        ({f"{Q}.lora_A.weight": None, f"{Q}.lora_B.weight": None}, "it has no tensors"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    tensors = {name: tensor for name, tensor in (make_tensors() | change).items() if tensor is not None}
    with pytest.raises(CheckpointError, match=message):
        AdapterFolder.load(write(tmp_path / "a", tensors))


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no adapter_config.json"):
        AdapterFolder.load(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match=r"there is no adapter_model.safetensors"):
        AdapterFolder.load(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickle \(adapter_model.bin\), which can run code"):
        AdapterFolder.load(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        AdapterFolder.load(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    os.mkfifo(tmp_path / "adapter_config.json")
    with pytest.raises(CheckpointError, match="not a regular file"):
        AdapterFolder.load(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "adapter_config.json").write_text("[" * 10**6)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        AdapterFolder.load(tmp_path)


def test_whole_weights_and_tables(tmp_path: Path) -> None:
    """An embedding table is like a linear layer whose weight it is; PEFT stores its factors the other way round."""
    a, b, whole = torch.rand(2, 9), torch.rand(8, 2), torch.rand(9, 8)
    table, head = "base_model.model.model.embed_tokens", "base_model.model.lm_head"
    tensors = {f"{table}.lora_embedding_A": a, f"{table}.lora_embedding_B": b, f"{table}.base_layer.weight": whole}
    write(tmp_path / "a", make_tensors() | tensors | {f"{head}.weight": whole + 1}, modules_to_save=["lm_head"])
    copies = {f"{head}.{name}.weight": whole.clone() for name in ("original_module", "modules_to_save")}
    write(tmp_path / "copies", copies)
    with pytest.raises(CheckpointError, match=r"lm_head\.\w+\.weight' is not supported"):
        AdapterFolder.load(tmp_path / "copies", takes_saved=True)
    write(tmp_path / "copies", copies | {f"{head}.weight": whole + 1})
    assert AdapterFolder.load(tmp_path / "copies", takes_saved=True).saved["lm_head"].equal(whole + 1)
    folder = AdapterFolder.load(tmp_path / "a", takes_saved=True)
    low_rank = folder.modules["model.embed_tokens"]
    assert low_rank.a.equal(b.t()) and low_rank.b.equal(a.t())
    assert folder.saved["model.embed_tokens"].equal(whole) and folder.saved["lm_head"].equal(whole + 1)
    assert folder.names == {"model.layers.0.self_attn.q_proj", "model.embed_tokens", "lm_head"}
    assert folder.pick({"lm_head"}).names == {"lm_head"}
    assert AdapterFolder.find_rank(tmp_path / "a") == 2
    ids = {folder.make_id(), folder.pick({"lm_head"}, others=True).make_id(), folder.pick({"lm_head"}).make_id()}
    assert len(ids) == 3
    write(tmp_path / "b", {f"{head}.weight": whole}, modules_to_save=["lm_head"])
    assert AdapterFolder.find_rank(tmp_path / "b") == 1
    assert not AdapterFolder.load(tmp_path / "b", takes_saved=True).modules


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_number_that_is_not_finite_is_found(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    numbers = torch.tensor([0.0, -largest, largest, 1.0]).to(dtype).repeat(9, 5)
    assert is_finite(numbers) and is_finite(numbers[:0])
    for wrong in (float("nan"), float("inf"), float("-inf")):
        for place in (0, 7, numbers.numel() - 1):
            changed = numbers.clone()
            changed.view(-1)[place] = wrong
            assert not is_finite(changed), (wrong, place)
