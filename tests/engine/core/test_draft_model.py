"""A smaller model that proposes tokens."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import loop_of

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.core.speculation.draft_model import DraftModel
from seesay.errors import ConfigError

PROMPTS = ["say one two three", "red green blue", "a b c d e f g"]
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=40, ignore_eos=True),
    "drawn": GenerationConfig(max_new_tokens=40, ignore_eos=True, do_sample=True, temperature=0.8, random_seed=3),
    "penalized": GenerationConfig(max_new_tokens=30, ignore_eos=True, repetition_penalty=1.1, frequency_penalty=0.2),
    "scored": GenerationConfig(max_new_tokens=30, ignore_eos=True, logprobs=3),
}


def load(**options: Any) -> Pipeline:
    return pipeline(backend_config=EngineConfig(device_type="cpu", session_len=200, **options))


def ask(pipe: Pipeline, config: GenerationConfig) -> list[Any]:
    answers = pipe(PROMPTS, gen_config=config)
    return [(each.token_ids, [sorted(entry) for entry in each.logprobs or ()]) for each in answers]


def own_draft(**options: Any) -> dict[str, Any]:
    """The model proposes for itself."""
    return {"method": "draft", "model": "seesay-demo", **options}


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[str, list[Any]]]:
    with load() as pipe:
        yield {name: ask(pipe, config) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("ahead", [False, True])
def test_what_the_model_itself_would_choose_is_accepted(ahead: bool, expected: dict[str, list[Any]]) -> None:
    with load(speculative=own_draft(num_speculative_tokens=4), async_scheduling=ahead) as pipe:
        for name, config in CONFIGS.items():
            assert ask(pipe, config) == expected[name], name
        stats = pipe.engine.stats()
    assert stats.total_draft_tokens > 200
    assert stats.total_accepted_tokens >= 0.95 * stats.total_draft_tokens


def test_a_model_that_always_lies_changes_nothing(
    expected: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    propose, rng = DraftModel.propose, random.Random(1)

    def lie(self: DraftModel, sequences: Any, most: int) -> dict[int, tuple[int, ...]]:
        found = propose(self, sequences, most)
        return {seq_id: tuple(token_id ^ rng.choice((1, 2, 3)) for token_id in ids) for seq_id, ids in found.items()}

    monkeypatch.setattr(DraftModel, "propose", lie)
    with load(speculative=own_draft()) as pipe:
        for name, config in CONFIGS.items():
            assert ask(pipe, config) == expected[name], name
        stats = pipe.engine.stats()
    assert 0 < stats.total_draft_tokens < 40 * 7 * len(CONFIGS), "it went on proposing"
    assert stats.total_accepted_tokens < 10


def test_a_model_that_fails_is_asked_no_more(
    expected: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: DraftModel, sequences: Any, most: int) -> dict[int, tuple[int, ...]]:
        raise RuntimeError("no luck")

    monkeypatch.setattr(DraftModel, "propose", fail)
    with load(speculative=own_draft()) as pipe:
        assert ask(pipe, CONFIGS["greedy"]) == expected["greedy"]
        assert ask(pipe, CONFIGS["scored"]) == expected["scored"]
    assert caplog.text.count("the model that proposes tokens failed") == 1


def test_refused_tokens_are_computed_again_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the proposals spoilt, the next ones are right again: the draft follows what was accepted."""
    propose = DraftModel.propose

    def spoil(self: DraftModel, sequences: Any, most: int) -> dict[int, tuple[int, ...]]:
        found = propose(self, sequences, most)
        return {seq_id: (*ids[:2], ids[2] ^ 1, *ids[3:]) if len(ids) > 2 else ids for seq_id, ids in found.items()}

    monkeypatch.setattr(DraftModel, "propose", spoil)
    with load(speculative=own_draft(num_speculative_tokens=4)) as pipe:
        answer = pipe(PROMPTS[0], gen_config=CONFIGS["drawn"])
    assert answer.usage is not None
    assert answer.usage.accepted_prediction_tokens >= 0.9 * 2 / 3 * 36


def test_sequences_take_each_others_blocks_where_there_are_few(expected: dict[str, list[Any]]) -> None:
    with load(speculative=own_draft(num_speculative_tokens=3), block_size=16) as pipe:
        draft = pipe.engine.core.steps.speculation._draft  # type: ignore[attr-defined]
        draft._free = draft._free[:9]
        for name, config in CONFIGS.items():
            assert ask(pipe, config) == expected[name], name
        assert pipe.engine.stats().total_accepted_tokens > 0
        assert len(draft._free) == 9 and not draft._texts


def test_a_model_of_another_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seesay.engine.opened_model import OpenedModel

    tokens = OpenedModel.text_tokens
    calls = []

    def shifted(self: OpenedModel) -> list[bytes]:
        calls.append(self)
        return tokens(self)[len(calls) - 1 :]

    monkeypatch.setattr(OpenedModel, "text_tokens", shifted)
    with pytest.raises(ConfigError, match="'seesay-demo' has another vocabulary"):
        load(speculative=own_draft())


def test_closing_an_engine_frees_both_models_at_once() -> None:
    """Memory of a GPU that a collection of garbage frees later is given back to the driver by nobody: an engine that
    is opened meanwhile does not get it."""
    gc.collect()
    gc.disable()
    try:
        with load(speculative=own_draft()) as pipe:
            pipe("go on", gen_config=GenerationConfig(max_new_tokens=3))
            loop: Any = loop_of(pipe.engine)
            models = [weakref.ref(loop._runner), weakref.ref(loop.steps.speculation._draft)]
        assert [model() for model in models] == [None, None]
    finally:
        gc.enable()
