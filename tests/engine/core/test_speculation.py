"""Speculation: who proposes tokens, and that answers are the same with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from adapter_folders import write_adapter
from llm.backbones import VOCAB
from scripted_drafts import Draft, LayerOf, TextRoundsOf

from seesay import EngineConfig, GenerationConfig, Pipeline, Response, SpeculativeConfig, pipeline
from seesay.demo import CHECKPOINT
from seesay.engine.core.speculation.speculation import (
    ModelSpeculation,
    SpeculationRule,
    TextSpeculation,
    can_propose,
    cut,
    takes_plainly,
)
from seesay.errors import ConfigError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus
from seesay.values import MultimodalInput

PROMPTS = ["say one two three four one two three four one two", "red green blue", "a b c d e f g a b c"]
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=70, ignore_eos=True),
    "drawn": GenerationConfig(max_new_tokens=60, ignore_eos=True, do_sample=True, temperature=0.8, random_seed=3),
    "penalized": GenerationConfig(max_new_tokens=50, ignore_eos=True, repetition_penalty=1.02, frequency_penalty=0.1),
    "drawn and penalized": GenerationConfig(
        max_new_tokens=50, do_sample=True, random_seed=8, top_p=0.8, presence_penalty=0.2, min_new_tokens=30
    ),
    "scored": GenerationConfig(max_new_tokens=40, ignore_eos=True, logprobs=3),
    "stopped": GenerationConfig(max_new_tokens=60, ignore_eos=True, stop_words=["small model"]),
    "n": GenerationConfig(max_new_tokens=40, ignore_eos=True, n=3, do_sample=True, random_seed=1, temperature=0.7),
    "ruled": GenerationConfig(max_new_tokens=40, bad_words=["drawings"], no_repeat_ngram_size=7),
    "without repeats": GenerationConfig(max_new_tokens=40, ignore_eos=True, no_repeat_ngram_size=3, ngram_window=30),
    "processed": GenerationConfig(max_new_tokens=30, ignore_eos=True, logits_processors=[lambda ids, logits: logits]),
    "with logits": GenerationConfig(max_new_tokens=20, ignore_eos=True, output_logits="generation"),
}
SURE = ("greedy", "scored", "stopped")
"""Where the last bit of a key decides how it is rounded, a draw may fall to the other side, as with other chunks."""
TOLD = ("greedy", "drawn and penalized", "scored", "ruled", "n")
"""Asked of other processes, which compute alike: one of each kind of what they are told."""
SETUPS: dict[str, dict[str, Any]] = {
    "at once": {"async_scheduling": False},
    "ahead": {"async_scheduling": True},
    "tight": {"async_scheduling": True, "num_gpu_blocks": 14, "block_size": 16, "max_prefill_token_num": 16},
    "int8": {"kv_cache_dtype": "int8"},
    "without cache": {"enable_prefix_caching": False, "block_size": 7},
    "process": {"engine_process": True},
    "two ranks": {"tp": 2},
}


# --- who proposes -----------------------------------------------------------------------------------------------------


def make_sequence(seq_id: int, token_ids: list[int], **options: Any) -> Sequence:
    count = len(token_ids)
    prompt = MultimodalInput(token_ids=np.array(token_ids), positions=np.arange(count), next_position=count, items=())
    return Sequence(seq_id, prompt, SamplingParams(**options))


def make_speculation(
    most: int = 7, most_tokens: int = 64, least_saved: float = 0.25, rounds: Any = None
) -> TextSpeculation:
    rule = SpeculationRule(most=most, most_tokens=most_tokens, least_saved=least_saved)
    return TextSpeculation(rule, vocab_size=VOCAB, rounds=rounds)


REPEATED = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]


def test_a_model_proposes_nothing_while_no_row_runs() -> None:
    """All sequences may have given their blocks away."""
    rule = SpeculationRule(most=3, most_tokens=64, least_saved=0.25)
    speculation = ModelSpeculation(rule, cast(Any, Draft()), vocab_size=VOCAB)
    seq = make_sequence(0, REPEATED)
    speculation.begin(seq)
    seq.append(1)
    speculation.follow(0, [1])
    assert speculation.is_wanted(1) and speculation.propose(1) == {0: (1, 2, 3)}
    assert not speculation.is_wanted(0) and speculation.propose(0) == {}


class Tries:
    """A sequence for which a model proposes three tokens a step. Counts the tokens between tries."""

    def __init__(self) -> None:
        rule = SpeculationRule(most=3, most_tokens=64, least_saved=0.25)
        self._speculation = ModelSpeculation(rule, cast(Any, Draft()), vocab_size=VOCAB)
        self._seq = make_sequence(0, REPEATED)
        self._speculation.begin(self._seq)
        self._grow(1)

    def _grow(self, count: int) -> None:
        for _ in range(count):
            self._seq.append(1)
        self._speculation.follow(0, [1] * count)

    def step(self, num_accepted: int, num_drafted: int = 3) -> int:
        """Accept some of the next proposed tokens; returns how many tokens came without any before."""
        alone = 0
        while not self._speculation.is_wanted(1):
            self._grow(1)
            alone += 1
        assert self._speculation.propose(1)
        self._seq.num_drafted += num_drafted
        self._seq.num_accepted += num_accepted
        self._grow(1 + num_accepted)
        return alone


def test_a_model_that_is_always_wrong_is_asked_ever_more_rarely() -> None:
    tries = Tries()
    alone = [tries.step(0) for _ in range(60)]
    assert [count for count in alone if count] == [63, 127, 255, 511, 1023, 1023, 1023]
    assert alone.index(63) == 8, "the first steps may be wrong by chance"


def test_a_model_that_becomes_right_is_asked_at_once_after_the_next_pause() -> None:
    tries = Tries()
    alone = [tries.step(0) for _ in range(17)] + [tries.step(2) for _ in range(30)] + [tries.step(0) for _ in range(60)]
    assert [count for count in alone if count][:3] == [63, 127, 63]


def test_a_model_that_becomes_wrong_is_asked_for_some_steps_more() -> None:
    """The average is of about the last sixteen: 2 · (15/16)^25 is less than 0.4."""
    tries = Tries()
    assert not any(tries.step(2) for _ in range(100))
    assert [bool(tries.step(0)) for _ in range(26)] == [False] * 25 + [True]


@pytest.mark.parametrize(
    ("num_drafted", "accepted", "rests"), [(9, [1], True), (9, [2], False), (1, [1, 0, 0, 0], True), (1, [1, 0], False)]
)
def test_what_is_accepted_is_counted_by_rounds(num_drafted: int, accepted: list[int], rests: bool) -> None:
    """A step of three rounds counts as three, one with fewer tokens as one."""
    tries = Tries()
    assert any(tries.step(accepted[i % len(accepted)], num_drafted) for i in range(9)) is rests


def test_a_model_that_is_right_seven_times_of_ten_is_always_asked() -> None:
    """Several steps in a row are wrong by chance."""
    tries, rng = Tries(), random.Random(3)
    steps = [next((i for i in range(3) if rng.random() >= 0.7), 3) for _ in range(3000)]
    assert not sum(tries.step(count) for count in steps)


def grow(speculation: TextSpeculation, seq: Sequence, token_ids: list[int]) -> None:
    for token_id in token_ids:
        seq.append(token_id)
    speculation.follow(seq.seq_id, token_ids)


def begin(speculation: TextSpeculation, seq_id: int, token_ids: list[int], first: int) -> Sequence:
    """A sequence of which the first token came."""
    seq = make_sequence(seq_id, token_ids)
    speculation.begin(seq)
    grow(speculation, seq, [first])
    return seq


def test_few_rows_propose_and_many_do_not() -> None:
    speculation = make_speculation()
    seq = begin(speculation, 1, REPEATED, 3)
    grow(speculation, seq, [4, 5])
    [proposed] = speculation.propose(1).values()
    assert proposed == (6, 7, 8)[: len(proposed)] and proposed
    assert speculation.propose(2) and not speculation.propose(8), "too few steps are saved for eight rows"
    speculation.drop(1)
    assert not speculation.propose(1)


def test_as_many_tokens_are_proposed_as_a_step_takes() -> None:
    speculation = make_speculation(most=15, most_tokens=12)
    for seq_id in (1, 2, 3):
        seq = begin(speculation, seq_id, REPEATED * 3, 3)
        grow(speculation, seq, [4, 5, 6, 7, 8, 9, 10])
    assert {seq_id: len(proposed) for seq_id, proposed in speculation.propose(3).items()} == {1: 3, 2: 3, 3: 3}
    assert not speculation.propose(7)
    speculation = make_speculation(most=15, most_tokens=4)
    grow(speculation, begin(speculation, 1, REPEATED * 3, 3), [4, 5, 6, 7, 8, 9, 10])
    assert len(speculation.propose(1)[1]) == 3 and len(speculation.propose(2)[1]) == 1


def test_texts_are_not_followed_while_there_are_too_many_rows() -> None:
    speculation = make_speculation()
    seq = begin(speculation, 1, REPEATED, 3)
    assert speculation.propose(33) == {}
    grow(speculation, seq, [50, 51, 1])
    assert speculation.propose(1) == {}, "it is behind its sequence"
    grow(speculation, seq, [2, 3])
    [proposed] = speculation.propose(1).values()
    assert proposed[0] == 50, "the last place of 1, 2, 3 is in the answer"


def test_placeholders_are_not_proposed() -> None:
    speculation = make_speculation()
    begin(speculation, 1, [1, 2, 3, VOCAB, 5, 6, 0, 1, 2], 3)
    assert speculation._sure and speculation.propose(1) == {}


@pytest.mark.parametrize(
    ("options", "can"),
    [
        ({}, True),
        ({"logprobs": 3, "repetition_penalty": 1.2}, True),
        ({"output_logits": "generation"}, False),
        ({"output_last_hidden_state": "all"}, False),
        ({"logits_processors": ("a:b",)}, False),
        ({"pooling": "last"}, False),
        ({"max_new_tokens": 2}, True),
        ({"max_new_tokens": 1}, False),
        ({"max_new_tokens": 0}, False),
    ],
)
def test_requests_that_need_each_step_propose_nothing(options: dict[str, Any], can: bool) -> None:
    assert can_propose(SamplingParams(**options)) is can


@pytest.mark.parametrize(
    ("options", "is_ruled", "adapter_id", "is_plain"),
    [
        ({"greedy": True}, False, 0, True),
        ({"greedy": False}, False, 0, True),
        ({"greedy": True, "frequency_penalty": 0.5}, False, 0, False),
        ({"greedy": False, "logprobs": 2}, False, 0, False),
        ({"greedy": True, "bad_words": ("no",)}, False, 0, False),
        ({"greedy": True}, True, 0, False),
        ({"greedy": False}, False, 3, False),
    ],
)
def test_what_takes_the_likeliest_or_a_drawn_token(
    options: dict[str, Any], is_ruled: bool, adapter_id: int, is_plain: bool
) -> None:
    seq = make_sequence(1, REPEATED, **options)
    seq.adapter_id = adapter_id
    assert takes_plainly(seq, is_ruled=is_ruled) is is_plain


@pytest.mark.parametrize(("stop", "kept"), [(VOCAB, (1, 2)), (VOCAB + 1, (1, 2)), (VOCAB - 1, (1, 2, VOCAB - 1, 3))])
def test_tokens_behind_a_placeholder_are_not_proposed_either(stop: int, kept: tuple[int, ...]) -> None:
    assert cut((1, 2, stop, 3), VOCAB) == kept and cut((), VOCAB) == ()


@pytest.mark.parametrize(("num_rows", "proposes"), [(1, True), (2, True), (3, False)])
def test_texts_propose_where_enough_is_expected_of_all_rows(num_rows: int, proposes: bool) -> None:
    """Half of a token is, of a text that was not observed yet."""
    speculation = make_speculation(most=1)
    begin(speculation, 1, REPEATED, 3)
    assert speculation.is_wanted(num_rows) is bool(speculation.propose(num_rows)) is proposes


@pytest.mark.parametrize(("num_rows", "proposes"), [(6, True), (7, False)])
def test_half_of_a_steps_tokens_are_known_ones_at_most(num_rows: int, proposes: bool) -> None:
    speculation = make_speculation(most_tokens=12, least_saved=0.0)
    seq = begin(speculation, 1, REPEATED, 3)
    assert bool(speculation.propose(num_rows)) is proposes
    grow(speculation, seq, [4])
    assert speculation._texts[1].num_tokens == seq.num_tokens - (not proposes)


def test_a_step_proposes_by_itself_where_all_of_its_rows_are_plain() -> None:
    rounds: Any = TextRoundsOf()
    speculation = make_speculation(rounds=rounds, least_saved=0.0)
    one, two = (begin(speculation, seq_id, REPEATED, 3) for seq_id in (1, 2))
    assert 9 not in speculation.propose(1)[1], "the row of a sequence alone, where two have begun"
    for seq in (one, two):
        seq.status = SequenceStatus.RUNNING
    assert speculation.propose(2) == {1: (9,), 2: (9,)} and sorted(rounds.texts) == [1, 2]
    assert 9 not in speculation.propose(3)[1], "a row more is that of a prompt"
    rounds.has_room = False
    assert speculation.propose(2)[1][0] == 4
    rounds.has_room = True
    ruled = make_sequence(3, REPEATED)
    speculation.begin(ruled, is_ruled=True)
    ruled.status = SequenceStatus.RUNNING
    assert speculation.propose(2) == {1: (9,), 2: (9,)}, "it has no token yet"
    ruled.append(3)
    assert 9 not in speculation.propose(3)[1]
    speculation.drop(3)
    two.append(7)
    assert speculation.propose(2) == {1: (9,), 2: (9,)} and list(rounds.texts) == [1], "the other text is behind"
    speculation.clear()
    assert rounds.noted == [3, 1, 2] and speculation.propose(2) == {}
    assert not (speculation._texts or speculation._free or speculation._live), "nothing is left of those that ended"
    speculation.forget()
    assert rounds.noted[3:] == ["forget"]


def test_a_text_that_expects_nothing_any_more_proposes_nothing_in_rounds() -> None:
    rounds: Any = TextRoundsOf()
    speculation = make_speculation(rounds=rounds, least_saved=0.0)
    one, two = (begin(speculation, seq_id, REPEATED, 3) for seq_id in (1, 2))
    for seq in (one, two):
        seq.status = SequenceStatus.RUNNING
    grow(speculation, two, [50, 51])
    assert speculation.propose(2) == {1: (9,), 2: (9,)} and list(rounds.texts) == [1]
    grow(speculation, one, [50, 51])
    assert speculation.propose(2) == {} and not speculation.is_wanted(2)


def test_without_rounds_texts_propose_for_rows_that_run_too() -> None:
    speculation = make_speculation()
    seq = begin(speculation, 1, REPEATED, 3)
    seq.status = SequenceStatus.RUNNING
    assert speculation.propose(1)[1][0] == 4
    speculation.drop(1)
    speculation.forget()


def make_model_speculation(draft: Any, most_tokens: int = 64) -> ModelSpeculation:
    rule = SpeculationRule(most=3, most_tokens=most_tokens, least_saved=1.5)
    return ModelSpeculation(rule, draft, vocab_size=3)


def begin_all(speculation: ModelSpeculation, *seqs: Sequence) -> None:
    for seq in seqs:
        speculation.begin(seq)
        seq.append(1)
        speculation.follow(seq.seq_id, [1])


def test_a_model_is_told_of_sequences_that_may_propose() -> None:
    draft = LayerOf()
    speculation = make_model_speculation(draft)
    begin_all(speculation, make_sequence(1, REPEATED), make_sequence(2, REPEATED, max_new_tokens=1))
    speculation.forget()
    for seq_id in (1, 1, 2):
        speculation.drop(seq_id)
    assert draft.done == ["begin 1", "forget", "drop 1", "drop states 1"]
    begin_all(speculation, make_sequence(3, REPEATED), make_sequence(4, REPEATED))
    speculation.clear()
    assert draft.done[-4:] == ["drop 3", "drop states 3", "drop 4", "drop states 4"]
    assert not speculation.is_wanted(1)
    make_model_speculation(LayerOf(has_rounds=False)).forget()


@pytest.mark.parametrize(("num_rows", "most"), [(2, 2), (3, 1), (4, 1), (5, None)])
def test_a_model_proposes_as_much_as_a_step_has_room_for(num_rows: int, most: int | None) -> None:
    """Tokens from 3 on have no logit; for five rows six tokens are too few."""
    speculation = make_model_speculation(LayerOf(has_rounds=False), most_tokens=8)
    begin_all(speculation, make_sequence(1, REPEATED), make_sequence(2, REPEATED))
    expected = {} if most is None else dict.fromkeys((1, 2), (1, 2)[:most])
    assert speculation.propose(num_rows) == expected
    assert speculation.is_wanted(num_rows) is bool(expected)


def test_a_model_waits_for_the_first_token_of_a_sequence() -> None:
    speculation = make_model_speculation(LayerOf(has_rounds=False))
    speculation.begin(seq := make_sequence(1, REPEATED))
    assert not speculation.is_wanted(1) and speculation.propose(1) == {}
    seq.append(1)
    assert speculation.is_wanted(2) and not speculation.is_wanted(3), "three of two rows are worth while"


def test_a_layer_proposes_in_rounds_where_all_rows_want_the_likeliest_tokens() -> None:
    greedy = {"greedy": True}
    speculation = make_model_speculation(LayerOf())
    begin_all(speculation, make_sequence(1, REPEATED, **greedy))
    assert not speculation.propose(1), "9 has no logit"
    speculation._vocab_size = 10
    assert speculation.propose(1) == {1: (9,)} and speculation.propose(2) == {1: (1, 2, 3)}
    begin_all(speculation, make_sequence(2, REPEATED, greedy=False))
    assert speculation.propose(2) == dict.fromkeys((1, 2), (1, 2, 3)), "one is drawn"
    speculation.drop(2)
    assert speculation.propose(1) == {1: (9,)}
    ruled = make_sequence(3, REPEATED, **greedy)
    speculation.begin(ruled, is_ruled=True)
    ruled.append(1)
    assert speculation.propose(2) == dict.fromkeys((1, 3), (1, 2, 3)), "a grammar forbids some"


def test_a_model_that_failed_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    draft = LayerOf(has_rounds=False)
    speculation = make_model_speculation(draft)
    begin_all(speculation, make_sequence(1, REPEATED))
    draft.propose = None  # type: ignore[method-assign, assignment]
    assert speculation.propose(1) == {} and "the model that proposes tokens failed" in caplog.text
    assert draft.done == ["begin 1", "clear states"]
    begin_all(speculation, make_sequence(2, REPEATED))
    speculation.forget()
    assert not speculation.is_wanted(1) and speculation.propose(1) == {}


# --- engines ----------------------------------------------------------------------------------------------------------


def load(**options: Any) -> Pipeline:
    options.setdefault("session_len", 200)
    return pipeline(backend_config=EngineConfig(device_type="cpu", **options))


def ask(pipe: Pipeline, config: GenerationConfig) -> list[Any]:
    answers: list[Any] = pipe(PROMPTS, gen_config=config)  # of lists, with n
    return [describe(each) for answer in answers for each in (answer if isinstance(answer, list) else [answer])]


def describe(answer: Response) -> Any:
    scores = None if answer.logprobs is None else [sorted(entry) for entry in answer.logprobs]
    return answer.text, answer.token_ids, answer.finish_reason, scores, answer.logits is not None


@pytest.fixture(scope="module")
def plain() -> Iterator[Callable[[str], dict[str, Any]]]:
    """By KV format, the answers without speculation."""
    found: dict[str, dict[str, Any]] = {}

    def get(kv_cache_dtype: str) -> dict[str, Any]:
        if kv_cache_dtype not in found:
            with load(kv_cache_dtype=kv_cache_dtype) as pipe:
                found[kv_cache_dtype] = {name: ask(pipe, config) for name, config in CONFIGS.items()}
        return found[kv_cache_dtype]

    yield get


@pytest.mark.parametrize("name", SETUPS)
def test_answers_are_the_same(name: str, plain: Callable[[str], dict[str, Any]]) -> None:
    setup = SETUPS[name]
    expected = plain(setup.get("kv_cache_dtype", "auto"))
    kinds = SURE if "kv_cache_dtype" in setup else TOLD if name in ("process", "two ranks") else CONFIGS
    with load(**setup, speculative=SpeculativeConfig(method="ngram")) as pipe:
        for kind in kinds:
            assert ask(pipe, CONFIGS[kind]) == expected[kind], kind
        stats = pipe.engine.stats()
    assert 0 < stats.total_accepted_tokens <= stats.total_draft_tokens


def test_answers_with_an_adapter_are_the_same(tmp_path: Path) -> None:
    adapter = write_adapter(CHECKPOINT, tmp_path / "adapter", r".*layers\.0\.self_attn\.[qv]_proj")
    config = GenerationConfig(max_new_tokens=60, ignore_eos=True)
    found = []
    for speculative in (None, SpeculativeConfig(method="ngram")):
        with load(adapters={"a": str(adapter)}, speculative=speculative) as pipe:
            answers = pipe(
                PROMPTS, gen_config=config, adapter_name=["a" if i % 2 else None for i in range(len(PROMPTS))]
            )
            found.append([each.token_ids for each in answers])
            accepted = pipe.engine.stats().total_accepted_tokens
    assert found[0] == found[1] and accepted


def test_an_answer_that_repeats_itself_takes_few_steps() -> None:
    """Fails when acceptance falls unseen. The model says one sentence again and again. A step that is launched
    ahead proposes less."""
    with load(speculative={"method": "ngram"}, async_scheduling=False) as pipe:
        answer = pipe(PROMPTS[2], gen_config=GenerationConfig(max_new_tokens=120, ignore_eos=True))
        num_steps = sum(count for _, count in pipe.engine.stats().step_sizes)
    usage = answer.usage
    assert usage is not None and usage.completion_tokens == 120
    assert usage.accepted_prediction_tokens >= 0.7 * 120, usage
    assert usage.rejected_prediction_tokens <= 0.3 * usage.accepted_prediction_tokens, usage
    assert num_steps <= 0.35 * 120


def test_rejected_tokens_are_in_no_prefix_cache() -> None:
    """Answers that go on behind others find what these computed, and not what was proposed and refused there."""
    short, long = (GenerationConfig(max_new_tokens=count, ignore_eos=True) for count in (40, 60))
    with load(block_size=2) as pipe:
        first = pipe(PROMPTS, gen_config=short)
        expected = [pipe(prompt + answer.text, gen_config=long) for prompt, answer in zip(PROMPTS, first, strict=True)]
    with load(block_size=2, speculative=SpeculativeConfig(num_speculative_tokens=15)) as pipe:
        lie(pipe)
        first = pipe(PROMPTS, gen_config=short)
        again = [pipe(prompt + answer.text, gen_config=long) for prompt, answer in zip(PROMPTS, first, strict=True)]
        stats = pipe.engine.stats()
    assert [each.token_ids for each in again] == [each.token_ids for each in expected]
    assert all(each.usage is not None and each.usage.cached_tokens > 0 for each in again)
    assert stats.total_draft_tokens > 100 > stats.total_accepted_tokens


def lie(pipe: Pipeline) -> None:
    """Have rows propose tokens that are hardly ever right."""
    speculation = pipe.engine.core.steps.speculation  # type: ignore[attr-defined]

    def propose(num_rows: int) -> dict[int, tuple[int, ...]]:
        return dict.fromkeys(speculation._texts, (300, 301, 302, 303, 304))

    speculation.propose = propose


def test_the_pipeline_takes_lmdeploys_argument() -> None:
    with pipeline(
        backend_config=EngineConfig(device_type="cpu", session_len=200),
        speculative_config=SpeculativeConfig(num_speculative_tokens=3),
    ) as pipe:
        pipe(PROMPTS[1], gen_config=CONFIGS["greedy"])
        assert pipe.engine.stats().total_accepted_tokens > 0
    with pytest.raises(ConfigError, match="backend_config has speculative"):
        pipeline(backend_config=EngineConfig(speculative={}), speculative_config={"method": "ngram"})
