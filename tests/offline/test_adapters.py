"""LoRA adapters: answers are those of PEFT, in a batch of many, whatever is cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.errors import CheckpointError, ConfigError

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it

PROMPTS = ["the game is in the frame", "what is it? the thing of the other", "go on"]
OPTIONS: Mapping[str, Any] = {"max_new_tokens": 8, "ignore_eos": True, "temperature": 0.0}


def make_adapter(checkpoint: Path, folder: Path, seed: int, **options: Any) -> list[list[int]]:
    """Write an adapter of PEFT, and return its greedy answers to `PROMPTS`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**{"r": 4, "lora_alpha": 16, **options}))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.3)
    adapted.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        found = adapted.generate(input_ids=ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        answers.append(found[0, ids.shape[1] :].tolist())
    return answers


def ask(pipe: Pipeline, names: Any, prompts: list[str] = PROMPTS) -> list[list[int]]:
    answers = pipe(prompts, GenerationConfig(**OPTIONS), do_preprocess=False, adapter_name=names)
    assert all(answer.finish_reason == "length" for answer in answers), answers
    return [answer.token_ids for answer in answers]


VARIANTS: Mapping[str, dict[str, Any]] = {
    "all": {"target_modules": "all-linear"},
    "query": {"target_modules": ["q_proj"], "r": 8, "use_rslora": True},
    "patterns": {
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "rank_pattern": {"layers.0.self_attn.q_proj": 2, "down_proj": 7},
        "alpha_pattern": {"v_proj": 3},
    },
}


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[list[int]]]]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: (folder / name, make_adapter(checkpoint, folder / name, seed, **options))
        for seed, (name, options) in enumerate(VARIANTS.items())
    }


@pytest.fixture(scope="module", params=[False, True], ids=["here", "process"])
def pipe(
    request: pytest.FixtureRequest, checkpoint: Path, expected: dict[str, tuple[Path, list[list[int]]]]
) -> Iterator[Pipeline]:
    adapters = {name: str(folder) for name, (folder, _) in expected.items()}
    config = EngineConfig(
        device_type="cpu", block_size=4, adapters=adapters, engine_process=request.param, max_prefill_token_num=8
    )
    with pipeline(str(checkpoint), config) as pipe:
        yield pipe


@pytest.mark.parametrize("name", VARIANTS)
def test_answers_are_those_of_peft(
    pipe: Pipeline, expected: dict[str, tuple[Path, list[list[int]]]], name: str
) -> None:
    plain = ask(pipe, None)
    assert ask(pipe, name) == expected[name][1] != plain
    assert ask(pipe, name) == expected[name][1], "from the cache"
    assert ask(pipe, None) == plain


def test_one_batch_has_all_of_them(pipe: Pipeline, expected: dict[str, tuple[Path, list[list[int]]]]) -> None:
    alone = {None: ask(pipe, None)} | {name: answers for name, (_, answers) in expected.items()}
    names = [name for name in alone for _ in PROMPTS]
    found = ask(pipe, names, PROMPTS * len(alone))
    assert found == [answer for name in alone for answer in alone[name]]


def test_an_unknown_name_is_refused(pipe: Pipeline) -> None:
    answer = pipe(PROMPTS[0], adapter_name="nobody")
    assert answer.finish_reason == "error" and "adapter_name='nobody' is not loaded: 'all', " in answer.text


def test_names_for_another_number_of_prompts(pipe: Pipeline) -> None:
    with pytest.raises(ValueError, match="adapter_name: 2 for 3 prompts"):
        pipe(PROMPTS, adapter_name=["all", None])
