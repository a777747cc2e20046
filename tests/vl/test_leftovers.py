"""Checkpoints as fine-tuning leaves them: tensors of other heads, buffers, names of the base model."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, make_picture, parse
from safetensors.torch import load_file, save_file

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
CPU = EngineConfig(device_type="cpu", block_size=16)


def change(source: Path, target: Path, edit: Callable[[Tensors], Tensors | None], **config: Any) -> Path:
    """A copy of the checkpoint `source` with other tensors, and config.json changed; None takes a key away."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    save_file(edit(tensors) or tensors, target / "model.safetensors", metadata={"format": "pt"})
    data = json.loads((target / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
    return target


def answer(path: Path) -> list[list[int]]:
    with AsyncEngine(str(path), backend_config=CPU) as engine:
        prompts: list[Any] = ["the game"]
        if engine.family.modalities:
            prompts.append(("the game", make_picture(20, 30, 1)))
        outputs = ask(engine, parse(prompts, max_new_tokens=8, ignore_eos=True))
    assert all(output.error is None for output in outputs)
    return [list(output.token_ids) for output in outputs]


def add_leftovers(tensors: Tensors) -> None:
    layers = sorted({name.partition(".self_attn.")[0] for name in tensors if ".self_attn.o_proj" in name})
    for layer in layers:
        tensors[f"{layer}.self_attn.masked_bias"] = torch.tensor(-1e4)
        tensors[f"{layer}.self_attn.bias"] = torch.ones(1, 1, 8, 8, dtype=torch.bool)
        tensors[f"{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    tensors["score.weight"] = torch.zeros(3, 64)
    tensors["v_head.summary.weight"] = torch.zeros(1, 64)
    tensors["v_head.summary.bias"] = torch.zeros(1)


@pytest.mark.parametrize("name", ("llama", "qwen2", "phi3", "llava", "internvl", "qwen2_vl", "qwen2_5_vl"))
def test_leftovers_are_named_once_and_change_nothing(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answer(tiny_checkpoint(name))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "seesay"):
        assert answer(change(tiny_checkpoint(name), tmp_path / "tuned", add_leftovers)) == expected
    told = [text for record in caplog.records if "no use for" in (text := record.getMessage())]
    assert len(told) == 1
    for leftover in ("score.weight", "v_head.summary.weight", "self_attn.masked_bias", "self_attn.bias"):
        assert told[0].count(leftover) == 1, told
    assert "inv_freq" not in told[0]


def rename(prefixes: dict[str, str]) -> Callable[[Tensors], Tensors]:
    """Other beginnings of names; a tensor whose new one is 'drop' is taken away."""

    def edit(tensors: Tensors) -> Tensors:
        renamed = {}
        for name, tensor in tensors.items():
            prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
            if prefixes.get(prefix) != "drop":
                renamed[prefixes.get(prefix, "") + name.removeprefix(prefix)] = tensor
        assert renamed.keys() != tensors.keys()
        return renamed

    return edit


@pytest.mark.parametrize("architectures", (["Qwen2Model"], None, []))
def test_a_text_model_saved_without_its_head(
    architectures: list[str] | None, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Qwen2 ties its head to its embeddings: nothing is missing."""
    source = tiny_checkpoint("qwen2")
    path = change(source, tmp_path / "base", rename({"model.": ""}), architectures=architectures)
    assert answer(path) == answer(source)


@pytest.mark.parametrize(
    ("name", "architecture", "prefixes"),
    [
        ("qwen2_vl", "Qwen2VLModel", {"model.": ""}),
        ("qwen2_vl", "Qwen2VLModel", {"model.": "language_model."}),
        ("qwen2_5_vl", None, {"model.": "language_model.", "lm_head.": "lm_head."}),
        ("llava", "LlavaModel", {"language_model.lm_head.": "lm_head.", "language_model.model.": "language_model."}),
        ("internvl", None, {"language_model.lm_head.": "lm_head.", "language_model.model.": "language_model."}),
    ],
)
def test_a_vision_model_with_the_names_of_its_base_model(
    name: str,
    architecture: str | None,
    prefixes: dict[str, str],
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    source = tiny_checkpoint(name)
    architectures = None if architecture is None else [architecture]
    assert answer(change(source, tmp_path / "base", rename(prefixes), architectures=architectures)) == answer(source)


@pytest.mark.parametrize(
    ("name", "edit", "missing"),
    [
        ("llama", rename({"model.": "", "lm_head.": "drop"}), "'lm_head.weight'"),
        ("qwen2", rename({"model.layers.1.mlp.up_proj.": "drop"}), "'model.layers.1.mlp.up_proj.weight'"),
    ],
)
def test_what_is_missing_is_an_error(
    name: str, edit: Any, missing: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = change(tiny_checkpoint(name), tmp_path / "base", edit, architectures=None)
    with pytest.raises(CheckpointError, match=f"{missing}.*is missing"):
        AsyncEngine(str(path), backend_config=CPU)


@pytest.mark.parametrize(
    "extra", ("model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.lora_A.weight")
)
def test_what_would_change_the_answers_is_an_error(
    extra: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Layers that are not merged, or of another model, are no leftovers."""

    def edit(tensors: Tensors) -> None:
        tensors[extra] = torch.ones(4)

    path = change(tiny_checkpoint("llama"), tmp_path / "other", edit)
    with pytest.raises(CheckpointError, match=f"unexpected tensor '{extra}'"):
        AsyncEngine(str(path), backend_config=CPU)


def test_su_is_longrope(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As the first Phi-3 checkpoints write it."""
    source = tiny_checkpoint("phi3_longrope")
    rotary = json.loads((source / "config.json").read_text())["rope_parameters"]
    old = {"type": "su", "short_factor": rotary["short_factor"], "long_factor": rotary["long_factor"]}
    path = change(source, tmp_path / "old", lambda tensors: None, rope_parameters=None, rope_scaling=old)
    assert answer(path) == answer(source)
