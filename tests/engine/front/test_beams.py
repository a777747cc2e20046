"""Beam search on tokens and scores alone: against all texts that there are, and where it ends."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from seesay.config import BeamSearchParams
from seesay.engine.front.beams import Beam, BeamSearch, CompleteBeam

TOKENS, END = (1, 2, 3), 3


def log_probabilities(text: tuple[int, ...], seed: int) -> dict[int, float]:
    """Return those of the tokens that may follow a text."""
    rng = random.Random(f"{seed} {text}")
    weights = [rng.random() + 0.01 for _ in TOKENS]
    return {token: math.log(weight / sum(weights)) for token, weight in zip(TOKENS, weights, strict=True)}


def run(search: BeamSearch, seed: int) -> list[CompleteBeam]:
    while not search.is_over:
        search.advance([log_probabilities(beam.token_ids, seed) for beam in search.running])
    return search.complete


def list_answers(longest: int, length_penalty: float, seed: int) -> list[CompleteBeam]:
    """Return all answers that there are, the best first."""
    found = []
    for length in range(1, longest + 1):
        for text in itertools.product(TOKENS, repeat=length):
            if END in text[:-1] or (length < longest and text[-1] != END):
                continue
            logprob = sum(log_probabilities(text[:index], seed)[token] for index, token in enumerate(text))
            found.append(CompleteBeam(text, logprob, text[-1] == END, logprob / length**length_penalty))
    return sorted(found, key=lambda answer: -answer.score)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.7, 2.0])
@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_a_search_that_leaves_nothing_out_finds_the_best(length_penalty: float, early_stopping: Any) -> None:
    for seed in range(5):
        params = BeamSearchParams(
            beam_width=16, max_tokens=3, length_penalty=length_penalty, early_stopping=early_stopping
        )
        found = run(BeamSearch(params, {END}, max_tokens=3), seed)
        expected = list_answers(3, length_penalty, seed)
        assert len(expected) == 15 == len(found)
        for mine, other in zip(found, expected, strict=True):
            assert (mine.token_ids, mine.is_ended) == (other.token_ids, other.is_ended)
            assert math.isclose(mine.logprob, other.logprob) and math.isclose(mine.score, other.score)


def advance(search: BeamSearch, *logprobs: Mapping[int, float]) -> BeamSearch:
    search.advance(logprobs)
    return search


def make_search(early_stopping: Any, length_penalty: float = 1.0, *, max_tokens: int = 9) -> BeamSearch:
    """A search of one text that is behind its first token, 1, of log-probability -1."""
    params = BeamSearchParams(
        beam_width=1, max_tokens=max_tokens, early_stopping=early_stopping, length_penalty=length_penalty
    )
    return advance(BeamSearch(params, {END}, max_tokens=max_tokens), {1: -1.0})


def test_texts_go_on_the_best_first_and_are_no_more_than_the_width() -> None:
    search = BeamSearch(BeamSearchParams(beam_width=2, max_tokens=5), {END}, max_tokens=5)
    advance(search, {1: -0.5, 2: -0.1, END: -3.0})
    assert search.running == [Beam((2,), -0.1), Beam((1,), -0.5)] and not search.complete
    advance(search, {1: -9.0, 2: -1.0, END: -9.0}, {1: -0.3, 2: -0.4, END: -0.1})
    assert search.complete == [CompleteBeam((1, END), -0.6, True, -0.3)]
    assert [beam.token_ids for beam in search.running] == [(1, 1), (1, 2)]
    assert [beam.logprob for beam in search.running] == pytest.approx([-0.8, -0.9])
    assert not search.is_over, "there may be one more answer"


def test_an_ended_answer_that_is_not_among_the_best_is_none() -> None:
    search = advance(make_search(False), {2: -0.1, END: -0.2})
    assert not search.complete and search.running == [Beam((1, 2), -1.1)]


@pytest.mark.parametrize(
    ("early_stopping", "running", "is_over"),
    [
        (True, -1.2, True),  # one answer is enough
        (False, -1.1, True),  # -2.1 / 2 is not above -1.0 / 2
        ("never", -1.1, False),  # -2.1 / 9 would be
        ("never", -9.0, True),  # -10 / 9 would not
    ],
)
def test_a_search_is_over_when_no_text_may_become_better(early_stopping: Any, running: float, is_over: bool) -> None:
    search = advance(make_search(early_stopping), {END: 0.0, 2: running})
    assert [answer.score for answer in search.complete] == [-0.5]
    assert search.is_over == is_over


def test_without_a_reward_for_length_texts_that_grow_do_not_become_better() -> None:
    """As they are is as good as they get."""
    assert advance(make_search("never", 0.0), {END: -0.1, 2: -0.2}).is_over
    assert not advance(make_search("never", 0.1), {END: -0.1, 2: -0.2}).is_over


def test_the_last_token_completes_every_text() -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=9)
    search = advance(BeamSearch(params, {END}, max_tokens=1), {1: -0.5, END: -0.2, 2: -0.3})
    assert search.is_over
    assert search.complete == [CompleteBeam((END,), -0.2, True, -0.2), CompleteBeam((2,), -0.3, False, -0.3)]


def test_no_text_goes_on() -> None:
    search = advance(BeamSearch(BeamSearchParams(beam_width=2, max_tokens=9), {END}, max_tokens=9), {END: -0.1})
    assert search.is_over and not search.running and [answer.token_ids for answer in search.complete] == [(END,)]
