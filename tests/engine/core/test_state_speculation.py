"""Models whose layers keep states of whole sequences: wrong tokens are taken back from them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import PICTURE
from eagle_heads import make_head
from predicting_layers import APART, add_layer

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.core.speculation.speculation import ModelSpeculation
from seesay.errors import ConfigError

PROMPTS = ["say one two three", "red green blue", "a b c d e f g a b c", "x y"]
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=60, ignore_eos=True),
    "drawn": GenerationConfig(max_new_tokens=40, ignore_eos=True, do_sample=True, temperature=0.8, random_seed=3),
    "penalized": GenerationConfig(max_new_tokens=30, ignore_eos=True, repetition_penalty=1.1, frequency_penalty=0.2),
    "scored": GenerationConfig(max_new_tokens=30, ignore_eos=True, logprobs=3),
}
SETUPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tight": {"max_prefill_token_num": 16, "num_gpu_blocks": 60, "max_batch_size": 3, "num_cpu_blocks": 60},
    "without cache": {"enable_prefix_caching": False, "async_scheduling": False},
}


def load(path: Path, **options: Any) -> Pipeline:
    return pipeline(str(path), EngineConfig(device_type="cpu", session_len=200, block_size=4, **options))


def ask(pipe: Pipeline, config: GenerationConfig, prompts: Sequence[Any] = PROMPTS) -> list[Any]:
    answers = pipe(list(prompts), gen_config=config)
    return [(list(each.token_ids), [sorted(entry) for entry in each.logprobs or ()]) for each in answers]


def guess(pipe: Pipeline, expected: Sequence[Sequence[int]]) -> None:
    """Have rows propose what the answers go on with, with mistakes. All answers begin with other tokens."""
    core: Any = pipe.engine.core
    rng = random.Random(1)

    def propose(num_rows: int) -> dict[int, tuple[int, ...]]:
        del num_rows
        found = {}
        for seq_id, seq in core._scheduler.sequences.items():
            known = seq.generated_ids.tolist()
            fitting = [answer for answer in expected if known and list(answer[: len(known)]) == known]
            if fitting and (right := fitting[0][len(known) :][: rng.randint(1, 5)]):
                found[seq_id] = tuple(token if rng.random() < 0.7 else token ^ 1 for token in right)
        return found

    core.steps.speculation.propose = core.steps.speculation.is_wanted = propose


@pytest.mark.parametrize("name", ["qwen3_5_text", "lfm2", "bamba", "jamba"])
def test_wrong_tokens_are_taken_back(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint(name)
    with load(path) as pipe:
        expected = {kind: ask(pipe, config) for kind, config in CONFIGS.items()}
    for setup, options in SETUPS.items():
        with load(path, speculative={"num_speculative_tokens": 5}, **options) as pipe:
            core: Any = pipe.engine.core
            for kind, config in CONFIGS.items():
                guess(pipe, [answer[0] for answer in expected[kind]])
                assert ask(pipe, config) == expected[kind], (setup, kind)
                core._scheduler.check_integrity()
            stats = pipe.engine.stats()
        assert stats.total_draft_tokens > 1.2 * stats.total_accepted_tokens > 200, setup


def test_ranks_take_wrong_tokens_back_alike(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("lfm2")
    repeated = ["a b c d " * 12, "one two one two one two one two one two"]
    with load(path) as pipe:
        expected = [ask(pipe, config, repeated) for config in CONFIGS.values()]
    with load(path, tp=2, speculative={"num_speculative_tokens": 5}) as pipe:
        assert [ask(pipe, config, repeated) for config in CONFIGS.values()] == expected
        stats = pipe.engine.stats()
    assert stats.total_draft_tokens > 5, stats


@pytest.mark.parametrize("method", ["ngram", "mtp", "eagle3"])
def test_answers_behind_cached_prefixes_are_the_same(
    method: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts and pictures, where the model's hidden states of the prefix are not computed again."""
    monkeypatch.setattr(ModelSpeculation, "pause_tokens", 0)
    path = add_layer(tiny_checkpoint("qwen3_5"), tmp_path / "model", is_apart="qwen3_5" in APART)
    speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "eagle3":
        places = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        head = make_head(tmp_path / "head", path, rope_scaling=None, eagle_config=places)
        speculative["model"] = str(head)
    long = "say one two three four five six seven eight nine ten eleven twelve "
    turns = [[long + end, ("what is there? " + long + end, PICTURE)] for end in ("thirteen", "red", "thirteen")]
    found = []
    for options in ({}, {"speculative": speculative}):
        with load(path, max_batch_size=8, **options) as pipe:
            short = [replace(config, max_new_tokens=16) for config in CONFIGS.values()]
            found.append([ask(pipe, config, turn) for config in short for turn in turns])
            stats = pipe.engine.stats()
    assert found[0] == found[1]
    assert stats.total_prefix_hit_tokens > 100 and (method == "ngram" or stats.total_draft_tokens > 100)


def test_a_smaller_model_with_states_is_refused(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("qwen3_5_text")
    with pytest.raises(ConfigError, match="keeps states of whole texts"):
        load(path, speculative={"method": "draft", "model": str(path)})
