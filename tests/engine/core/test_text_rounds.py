"""Texts propose on the device, in steps of several rounds: answers are those that come without speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asking import PICTURE, loop_of
from llm.eager_graphs import record_eagerly
from watched_rounds import take_rounds, watch_resumed, watch_rounds

from seesay import EngineConfig, GenerationConfig, Pipeline, Response, pipeline
from seesay.engine.core.loading import start_speculation
from seesay.engine.core.speculation.text_rounds import TextRounds
from seesay.llm.plans.step_plan import UNPROPOSED
from seesay.llm.running.proposals.ngram_rounds import NgramProposer
from seesay.llm.scheduling import text_follower

PROMPTS: list[Any] = [
    "say one two three four one two three four one two",
    "a b c d e f g a b c",
    ("what is there? what is there? what is", PICTURE),
]
SCHEMA = {"type": "array", "items": {"enum": ["one two", "three"]}, "minItems": 4, "maxItems": 4}
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=70, ignore_eos=True),
    "ended": GenerationConfig(max_new_tokens=70),
    "drawn": GenerationConfig(max_new_tokens=60, ignore_eos=True, do_sample=True, temperature=1.0, random_seed=3),
    "filtered": GenerationConfig(
        max_new_tokens=50, ignore_eos=True, do_sample=True, temperature=0.7, top_p=0.8, top_k=5, random_seed=4
    ),
    "penalized": GenerationConfig(max_new_tokens=30, ignore_eos=True, repetition_penalty=1.02),
    "scored": GenerationConfig(max_new_tokens=30, ignore_eos=True, logprobs=2),
    "ruled": GenerationConfig(max_new_tokens=30, bad_words=["drawings"]),
    "grammar": GenerationConfig(
        max_new_tokens=50, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    ),
}
IN_ROUNDS = ("greedy", "ended", "drawn", "filtered")
SETUPS: dict[str, dict[str, Any]] = {
    "at once": {"async_scheduling": False},
    "ahead": {"async_scheduling": True},
    "tight": {"async_scheduling": True, "num_gpu_blocks": 16, "block_size": 16, "max_prefill_token_num": 16},
}
NGRAM = {"method": "ngram"}


class Rounds:
    """Has room for `room`: rounds, and tokens that are proposed in each of them."""

    room = (3, 2)
    is_forgotten = False

    def find_room(self, num_rows: int) -> tuple[int, int]:
        return self.room

    def forget(self) -> None:
        self.is_forgotten = True


class Proposer:
    """Takes texts that are not called 'long'."""

    def __init__(self) -> None:
        self.expected: Any = None
        self.dropped: list[int] = []

    def takes(self, text: Any) -> bool:
        return bool(text != "long")

    def expect(self, rows: Any, least_rates: Any) -> None:
        self.expected = {seq_id: tuple(row) for seq_id, row in rows.items()}, least_rates

    def drop(self, seq_id: int) -> None:
        self.dropped.append(seq_id)


@pytest.fixture
def parts() -> tuple[Any, Any, TextRounds]:
    rounds: Any = Rounds()
    proposer: Any = Proposer()
    return rounds, proposer, TextRounds(rounds, proposer)


def make_rows(**num_left: int) -> list[Any]:
    """Sequences, of which so many tokens are left."""
    return [
        SimpleNamespace(seq_id=seq_id, num_generated=7, params=SimpleNamespace(max_new_tokens=7 + number))
        for seq_id, number in num_left.items()
    ]


def test_rows_with_a_text_have_proposals_in_all_rounds_and_others_one_token(
    parts: tuple[Any, Any, TextRounds],
) -> None:
    _, proposer, texts = parts
    given: Any = {"a": "text", "b": "long"}
    assert texts.propose(make_rows(a=9, b=9, c=9), given) == {  # type: ignore[comparison-overlap]
        "a": (UNPROPOSED,) * 8, "b": (UNPROPOSED,) * 2, "c": (UNPROPOSED,) * 2,
    }  # fmt: skip
    expected = {"a": (2, "text"), "b": (0, "long"), "c": (0, None)}
    assert proposer.expected == (expected, text_follower.find_least_rates(2))


@pytest.mark.parametrize("why", ["no room", "no text", "a long text", "the end"])
def test_steps_have_no_rounds_that_bring_nothing(why: str, parts: tuple[Any, Any, TextRounds]) -> None:
    rounds, proposer, texts = parts
    given: Any = {"a": "long" if why == "a long text" else "text"}
    if why == "no room":
        rounds.room = (0, 2)
    rows = make_rows(a=1, b=1) if why == "the end" else make_rows(a=2, b=1)
    assert texts.propose(rows, {} if why == "no text" else given) == {} and proposer.expected is None
    rounds.room = (3, 2)
    assert texts.propose(make_rows(a=1, b=2), {"a": "text"}), "one goes on"  # type: ignore[dict-item]


def test_what_ended_and_what_was_launched_ahead_is_forgotten(parts: tuple[Any, Any, TextRounds]) -> None:
    rounds, proposer, texts = parts
    texts.drop(4)
    assert proposer.dropped == [4] and not rounds.is_forgotten
    texts.forget()
    assert rounds.is_forgotten and proposer.dropped == [4]


# --- engines ----------------------------------------------------------------------------------------------------------


def load(path: Path | None = None, *, device_type: str = "cpu", **options: Any) -> Pipeline:
    config = EngineConfig(device_type=device_type, session_len=200, engine_process=False, **options)
    return pipeline(backend_config=config) if path is None else pipeline(str(path), backend_config=config)


def ask(pipe: Pipeline, config: GenerationConfig, prompts: list[Any] = PROMPTS) -> list[Any]:
    answers: list[Any] = pipe(prompts, gen_config=config)
    return [describe(each) for each in answers]


def describe(answer: Response) -> Any:
    return answer.token_ids, answer.finish_reason, [sorted(entry) for entry in answer.logprobs or ()]


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[str, list[Any]]]:
    """Answers without speculation, of the path of graphs."""
    with load() as pipe:
        record_eagerly(loop_of(pipe.engine)._runner)
        yield {name: ask(pipe, config) for name, config in CONFIGS.items()}


@pytest.fixture
def always_proposes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts propose wherever their last tokens stood before, right or wrong."""
    monkeypatch.setattr(start_speculation, "_LEAST_SAVED", 0.0)
    monkeypatch.setattr(text_follower, "LEAST_RATE", 0)


@pytest.mark.usefixtures("always_proposes")
@pytest.mark.parametrize("setup", SETUPS)
def test_answers_are_the_same(setup: str, expected: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and drawn answers in rounds, and others beside these, which are not; with chunks and preemption."""
    with load(**SETUPS[setup], speculative=NGRAM) as pipe:
        steps, resumed = take_rounds(pipe, monkeypatch), watch_resumed(monkeypatch)
        for name, config in CONFIGS.items():
            num_before = len(steps)
            assert ask(pipe, config) == expected[name], name
            assert (len(steps) > num_before) == (name in IN_ROUNDS), name
        mixed = [CONFIGS[name] for name in ("greedy", "drawn", "penalized")]
        answers: list[Any] = pipe(PROMPTS, gen_config=mixed)
        assert [describe(each) for each in answers] == [
            expected[name][index] for index, name in enumerate(("greedy", "drawn", "penalized"))
        ]
        stats = pipe.engine.stats()
    assert max(steps) == max(resumed) == len(PROMPTS) or setup == "tight"
    assert stats.total_draft_tokens > stats.total_accepted_tokens > 200


def test_as_much_is_accepted_as_of_what_the_host_proposes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when acceptance falls unseen: of the same texts, as many tokens are proposed and accepted in rounds, but
    for the first and the last of an answer."""
    config = GenerationConfig(max_new_tokens=120, ignore_eos=True)
    found, resumed = [], watch_resumed(monkeypatch)
    for in_rounds in (False, True):
        with load(speculative=NGRAM, async_scheduling=False) as pipe:
            steps = take_rounds(pipe, monkeypatch) if in_rounds else []
            usage = pipe(PROMPTS[1], gen_config=config).usage
            num_steps = sum(count for _, count in pipe.engine.stats().step_sizes)
        assert usage is not None and bool(steps) == in_rounds
        found.append((usage.accepted_prediction_tokens, usage.rejected_prediction_tokens, num_steps))
    (accepted, rejected, num_steps), (accepted_in_rounds, rejected_in_rounds, num_waits) = found
    assert accepted >= 0.7 * 120
    assert abs(accepted_in_rounds - accepted) <= 6 and abs(rejected_in_rounds - rejected) <= 8, found
    assert num_waits - len(resumed) <= 0.7 * num_steps, "the device waits for the host at few steps"


def test_texts_that_repeat_nothing_take_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one step ahead, as without speculation."""
    config = GenerationConfig(max_new_tokens=60, ignore_eos=True, do_sample=True, temperature=3.0, random_seed=1)
    with load(speculative=NGRAM, async_scheduling=True) as pipe:
        steps = take_rounds(pipe, monkeypatch)
        pipe("say something", gen_config=config)
        assert len(steps) <= 1
        assert pipe.engine.stats().total_draft_tokens <= 8


def test_texts_that_are_too_long_are_proposed_by_the_host(
    expected: dict[str, list[Any]], always_proposes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del always_proposes
    monkeypatch.setattr(NgramProposer, "takes", lambda _, text: len(text.token_ids) < 90)
    with load(speculative=NGRAM) as pipe:
        steps = take_rounds(pipe, monkeypatch)
        assert ask(pipe, CONFIGS["greedy"]) == expected["greedy"]
        num_rounds = len(steps)
        stats = pipe.engine.stats()
        assert num_rounds and stats.total_accepted_tokens > 40
        proposer: Any = loop_of(pipe.engine)._runner.rounds._proposer  # type: ignore[union-attr]
        assert not proposer._texts and len(proposer._free) == 64, "those of answers that ended are free"


def test_answers_to_the_same_picture_are_proposed(always_proposes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes in fewer rounds: the first stands before its text on the device."""
    del always_proposes
    config = GenerationConfig(max_new_tokens=40, ignore_eos=True)
    with load(speculative=NGRAM) as pipe:
        steps = take_rounds(pipe, monkeypatch)
        answers = [pipe(PROMPTS[2], gen_config=config) for _ in range(2)]
    first, second = (each.usage for each in answers)
    assert answers[0].token_ids == answers[1].token_ids and steps and first is not None and second is not None
    assert second.accepted_prediction_tokens >= 30 > first.accepted_prediction_tokens


@pytest.mark.gpu
def test_rounds_of_graphs_change_nothing(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, always_proposes: None
) -> None:
    """With the kernel and real graphs, for one sequence and several."""
    del always_proposes
    options: dict[str, Any] = {"device_type": "cuda", "dtype": "float32", "num_gpu_blocks": 400}
    model = tiny_checkpoint("qwen2_5_vl")
    found = []
    for speculative in (None, NGRAM):
        with load(model, **options, speculative=speculative) as pipe:
            steps = watch_rounds(monkeypatch)
            answers = [ask(pipe, CONFIGS[name]) for name in IN_ROUNDS]
            found.append(answers + [ask(pipe, CONFIGS[name], [each]) for name in IN_ROUNDS for each in PROMPTS])
    assert found[0] == found[1] and {1, len(PROMPTS)} <= set(steps)
