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
from counting_runner import VOCAB, CountingRunner, grow, make_counted

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.core.speculation.draft_model import DraftModel
from seesay.errors import ConfigError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.sequence import Sequence

PROMPTS = ["say one two three", "red green blue", "a b c d e f g"]
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=40, ignore_eos=True),
    "drawn": GenerationConfig(max_new_tokens=40, ignore_eos=True, do_sample=True, temperature=0.8, random_seed=3),
    "penalized": GenerationConfig(max_new_tokens=30, ignore_eos=True, repetition_penalty=1.1, frequency_penalty=0.2),
    "scored": GenerationConfig(max_new_tokens=30, ignore_eos=True, logprobs=3),
}


def make_draft(**sizes: Any) -> tuple[DraftModel, CountingRunner]:
    """Return what proposes by a model that counts, and its runner."""
    runner = CountingRunner(**sizes)
    as_runner: Any = runner
    return DraftModel(as_runner), runner


def make_sequence(seq_id: int, *token_ids: int, **params: Any) -> Sequence:
    return make_counted(seq_id, *token_ids, params=SamplingParams(**params))


def test_it_goes_on_behind_what_was_accepted() -> None:
    draft, runner = make_draft()
    seq = make_sequence(1, 10, 11, 12)
    assert draft.propose([seq], 3) == {1: (13, 14, 15)}
    assert runner.take_steps() == [[(1, 0, 3, True)], [(1, 3, 1, True)], [(1, 4, 1, True)]]
    grow(seq, 13, 14, 15, 16)
    assert draft.propose([seq], 2) == {1: (17, 18)}
    assert runner.take_steps() == [[(1, 5, 2, True)], [(1, 7, 1, True)]], "13 and 14 were computed, 15 was not"
    assert draft.propose([seq], 1) == {1: (17,)}
    assert runner.take_steps() == [[(1, 6, 1, True)]], "its last token is always computed"


def test_what_was_refused_is_computed_again() -> None:
    draft, runner = make_draft()
    seq = make_sequence(1, 10, 11, 12)
    draft.propose([seq], 4)
    runner.take_steps()
    grow(seq, 13, 30)
    assert draft.propose([seq], 2) == {1: (31, 32)}
    assert runner.take_steps() == [[(1, 4, 1, True)], [(1, 5, 1, True)]]
    grow(seq, 50)
    assert draft.propose([seq], 1) == {1: (51,)}
    assert runner.take_steps() == [[(1, 5, 1, True)]]
    row = runner.rows[1]
    assert row.counts is None and runner.device_rows.token_places[row.slot] == -1
    assert row.tokens == [10, 11, 12, 13, 30, 50], "what was proposed is none of its tokens"


def test_what_is_right_of_each_sequence_is_computed_once() -> None:
    draft, runner = make_draft()
    seqs = [make_sequence(1, 10, 11), make_sequence(2, 50, 51), make_sequence(3, 70)]
    draft.propose(seqs, 3)
    assert [row.tokens for row in runner.rows.values()] == [[10, 11], [50, 51], [70]], "what it proposes is not known"
    assert all(row.counts is None for row in runner.rows.values())
    runner.take_steps()
    for seq, token_ids in zip(seqs, ([12, 13, 14], [52, 53, 90], [90]), strict=True):
        grow(seq, *token_ids)
    draft.propose(seqs, 1)
    assert runner.take_steps() == [[(1, 4, 1, True), (2, 4, 1, True), (3, 1, 1, True)]]


def test_a_sequence_begins_with_all_tokens_that_it_has() -> None:
    draft, _ = make_draft()
    text = draft._take(make_sequence(1, 10, 11), 2)
    assert text is not None and text.learn(VOCAB) == (2, ())


def test_a_long_prompt_is_computed_in_steps_that_fit() -> None:
    draft, runner = make_draft(max_step_tokens=8)
    seq = make_sequence(1, *range(10, 30))
    for expected in ((1, 0, 8, False), (1, 8, 8, False)):
        assert draft.propose([seq], 2) == {} and runner.take_steps() == [[expected]]
    assert draft.propose([seq], 2) == {1: (30, 31)}
    assert runner.take_steps() == [[(1, 16, 4, True)], [(1, 20, 1, True)]]


def test_sequences_share_the_room_of_a_step() -> None:
    draft, runner = make_draft(max_step_tokens=8)
    seqs = [make_sequence(1, *range(5)), make_sequence(2, *range(50, 57)), make_sequence(3, 70)]
    assert draft.propose(seqs, 2) == {1: (5, 6)}
    assert runner.take_steps() == [[(1, 0, 5, True), (2, 0, 3, False)], [(1, 5, 1, True)]]
    grow(seqs[0], 5)
    assert draft.propose(seqs, 2) == {1: (6, 7), 2: (57, 58), 3: (71, 72)}
    assert runner.take_steps()[0] == [(1, 5, 1, True), (2, 3, 4, True), (3, 0, 1, True)]


@pytest.mark.parametrize(("length", "most", "fits"), [(17, 3, True), (17, 4, False), (20, 1, False), (18, 2, True)])
@pytest.mark.parametrize("limit", [{"session_len": 20}, {"num_blocks": 5}], ids=lambda each: next(iter(each)))
def test_a_text_must_fit_with_what_is_proposed(limit: dict[str, int], length: int, most: int, fits: bool) -> None:
    draft, runner = make_draft(**limit)
    seq = make_sequence(1, *range(length - 1))
    draft.propose([seq], 1)
    grow(seq, length - 1)
    found = draft.propose([seq], most)
    assert found == ({1: tuple(range(length, length + most))} if fits else {})
    assert (1 in draft._texts) == fits and (len(draft._free) == runner.num_blocks) == (not fits)


def test_blocks_are_those_of_the_one_that_was_asked_for_longest_ago() -> None:
    draft, runner = make_draft(num_blocks=6)
    one, two, three = (make_sequence(number, *range(10, 15)) for number in (1, 2, 3))
    for seq in (one, two, one):
        draft.propose([seq], 3)
    assert list(draft._texts) == [2, 1] and len(draft._free) == 2
    assert draft.propose([three], 4) == {3: (15, 16, 17, 18)}
    assert sorted(draft._texts) == [1, 3] and sorted(runner.rows) == [1, 3]
    assert draft.propose([two, three], 3) == {2: (15, 16, 17), 3: (15, 16, 17)}
    assert sorted(runner.rows) == [2, 3]


def test_of_too_many_at_once_the_last_ones_have_blocks() -> None:
    draft, runner = make_draft(num_blocks=4)
    seqs = [make_sequence(number, *range(10, 15)) for number in (1, 2, 3)]
    assert draft.propose(seqs, 3) == {2: (15, 16, 17), 3: (15, 16, 17)}
    assert sorted(runner.rows) == [2, 3] and len(draft._free) == 0


def test_one_that_grows_gives_its_own_blocks_up_where_no_other_has_any() -> None:
    draft, runner = make_draft(num_blocks=4)
    one, two = make_sequence(1, *range(10, 15)), make_sequence(2, *range(10, 15))
    draft.propose([one, two], 3)
    grow(two, *range(15, 19))
    assert draft.propose([two], 3) == {2: (19, 20, 21)} and sorted(runner.rows) == [2]


def test_no_more_sequences_than_a_step_has_rows() -> None:
    draft, runner = make_draft(max_batch_size=2)
    seqs = [make_sequence(number, 10, 11) for number in (1, 2, 3)]
    draft.propose(seqs[:2], 1)
    draft.propose(seqs[:1], 1)
    assert draft.propose(seqs[2:], 1) == {3: (12,)} and sorted(runner.rows) == [1, 3]


def test_one_that_ended_leaves_nothing() -> None:
    draft, runner = make_draft(num_blocks=4)
    seq = make_sequence(1, *range(10, 15))
    draft.propose([seq], 3)
    for seq_id in (1, 1, 9):
        draft.drop(seq_id)
    assert len(draft._free) == 4 and 1 in runner.rows, "the runner hears of it with the next plan"
    draft.propose([make_sequence(2, *range(10, 15))], 3)
    assert runner.plans[-1].ended_ids == (1,) and sorted(runner.rows) == [2]
    draft.propose([], 3)
    plan = runner.plans[-1]
    assert not (plan.ended_ids or plan.begun or plan.added_blocks)


def test_one_that_ends_before_it_was_computed_never_was() -> None:
    draft, runner = make_draft()
    draft._take(make_sequence(1, 10, 11), 2)
    draft._take(make_sequence(2, 20, 21), 2)
    draft.drop(1)
    draft.take_all([], 2)
    [plan] = runner.plans
    assert [begun.seq_id for begun in plan.begun] == [2] == [added.seq_id for added in plan.added_blocks]
    assert plan.ended_ids == () and len(draft._free) == 19


def test_first_tokens_that_it_does_not_take_count_nowhere() -> None:
    draft, runner = make_draft(session_len=8)
    draft.num_skipped = 2
    seq = make_sequence(1, 90, 90, 12, 13)
    assert draft.propose([seq], 3) == {1: (14, 15, 16)} and runner.rows[1].begun.num_prompt_tokens == 2
    assert runner.take_steps()[0] == [(1, 0, 2, True)] and runner.rows[1].tokens == [12, 13]
    grow(seq, 14, 30)
    assert draft.propose([seq], 4) == {1: (31, 32, 33, 34)}
    assert runner.take_steps()[0] == [(1, 3, 1, True)]
    assert draft.propose([seq], 5) == {} and not draft._texts, "four tokens and five more are too many"


def test_a_sequence_is_a_text_of_its_own_options_and_draws() -> None:
    def change(_ids: Any, logits: Any) -> Any:
        return logits

    draft, runner = make_draft()
    options: dict[str, Any] = {"temperature": 0.5, "frequency_penalty": 0.25, "greedy": False}
    others: dict[str, Any] = {"seed": 3, "logprobs": 2, "no_repeat_ngram_size": 4, "logits_processors": (change,)}
    seq = make_counted(1, 5, VOCAB, VOCAB + 7, VOCAB - 1, params=SamplingParams(**options, **others), next_position=9)
    grow(seq, 6)
    draft.propose([seq], 1)
    begun = runner.rows[1].begun
    assert begun.token_ids.tolist() == [5, 0, 0, VOCAB - 1, 6], "it has no tokens of media"
    assert (begun.num_prompt_tokens, begun.next_position, begun.positions.tolist()) == (4, 4, [0, 1, 2, 3])
    assert begun.seed == seq.seed and begun.params == SamplingParams(**options)


# --- models -----------------------------------------------------------------------------------------------------------


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
