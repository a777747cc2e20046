"""Adapters that PEFT writes answer as they do in PEFT, and merge as by its `merge_and_unload`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import read_weights
from peft_answers import answer, randomize
from transformers import AutoModelForCausalLM, AutoTokenizer

from seesay import EngineConfig, GenerationConfig, lite, pipeline

peft = pytest.importorskip("peft", reason="PEFT is not here")

TEXTS = ["the game is in the frame", "what is it? the thing of the other", "go on"]
NUM_TOKENS = 12
TARGETS: dict[str, dict[str, Any]] = {
    "rank 1": {"r": 1, "lora_alpha": 3, "target_modules": "all-linear"},
    "rank 256": {"r": 256, "lora_alpha": 64, "target_modules": ["q_proj", "down_proj"]},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": "all-linear",
        "rank_pattern": {"q_proj": 9, r".*layers\.1\.mlp\.up_proj": 2},
        "alpha_pattern": {"down_proj": 16},
    },
    "rslora": {"r": 16, "lora_alpha": 4, "target_modules": "all-linear", "use_rslora": True},
    "regex": {"r": 4, "lora_alpha": 8, "target_modules": r".*layers\.[01]\.(self_attn\.v_proj|mlp\.gate_proj)"},
    "dora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "use_dora": True},
    "ends": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "table": {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens"]},
    "whole ends": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["v_proj"],
        "modules_to_save": ["lm_head", "embed_tokens"],
    },
    "whole head": {"r": 4, "lora_alpha": 8, "target_modules": ["v_proj"], "modules_to_save": ["lm_head"]},
}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning")
def test_answers_and_weights_are_those_of_peft(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_checkpoint("llama")
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    expected: dict[str, list[list[int]]] = {}
    for name, options in TARGETS.items():
        base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        model: Any = peft.get_peft_model(base, peft.LoraConfig(**options)).eval()
        randomize(model, 0.2 / options["r"] ** 0.5, seed=len(expected))
        model.save_pretrained(tmp_path / name)
        expected[name] = [answer(model, prompt, NUM_TOKENS) for prompt in prompts]
        merged = model.merge_and_unload().state_dict()
        lite.merge(str(path), str(tmp_path / name), str(tmp_path / f"{name} merged"))
        for own, weight in read_weights(tmp_path / f"{name} merged").items():
            torch.testing.assert_close(weight.float(), merged[own].float(), rtol=1e-5, atol=1e-6, msg=f"{name}: {own}")
    sampling = GenerationConfig(max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.0)
    config = EngineConfig(
        device_type="cpu",
        dtype="float32",
        block_size=4,
        adapters={name: str(tmp_path / name) for name in TARGETS},
        max_adapters=3,
        max_cpu_adapters=4,
    )
    with pipeline(str(path), config) as pipe:
        names = [name for name in TARGETS for _ in TEXTS]
        answers = pipe(TEXTS * len(TARGETS), sampling, adapter_name=names, do_preprocess=False)
    found = {name: [each.token_ids for each in answers[3 * i : 3 * i + 3]] for i, name in enumerate(TARGETS)}
    assert found == expected
