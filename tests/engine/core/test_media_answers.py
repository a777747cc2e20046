"""Answers to the same picture propose tokens: to those alone who share a cache with them, and not for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asking import PICTURE, ask, make_message, parse
from llm.backbones import VOCAB

from seesay import EngineConfig
from seesay.engine.core.speculation.media_answers import MediaAnswers
from seesay.engine.core.speculation.speculation import SpeculationRule, TextSpeculation
from seesay.engine.front.engine import AsyncEngine
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MediaItem, Modality, MultimodalInput

ANSWER = list(range(100, 160))


def make_item(place: int, name: bytes) -> MediaItem:
    slots = np.array([place])
    return MediaItem(
        modality=Modality.IMAGE, span=(place, place + 1), slots=slots, hash=name.ljust(32), features={}, num_units=1
    )


def make_sequence(*names: bytes, prompt: list[int] | None = None, seq_id: int = 0, **options: Any) -> Sequence:
    token_ids = [1, 2, 3, 4, 5, 6, 7] if prompt is None else prompt
    given = MultimodalInput(
        token_ids=np.array(token_ids),
        positions=np.arange(len(token_ids)),
        next_position=len(token_ids),
        items=tuple(make_item(place, name) for place, name in enumerate(names)),
    )
    return Sequence(seq_id, given, SamplingParams(), **options)


def answer(answers: MediaAnswers, seq: Sequence, token_ids: list[int]) -> None:
    for token_id in token_ids:
        seq.append(token_id)
    answers.add(seq)


def test_answers_come_behind_the_end_of_their_prompt_the_latest_last() -> None:
    answers = MediaAnswers()
    answer(answers, make_sequence(b"a"), [10, 11, 12, 13])
    answer(answers, make_sequence(b"a", prompt=[8, 9]), [20, 21, 22, 23, 24])
    found = answers.find(make_sequence(b"a"))
    assert found.tolist() == [5, 6, 7, 10, 11, 12, 13, 8, 9, 20, 21, 22, 23, 24] and found.dtype == np.int64


@pytest.mark.parametrize(
    "other",
    [
        make_sequence(b"b"),
        make_sequence(b"a", b"b"),
        make_sequence(),
        make_sequence(b"a", cache_salt=b"theirs"),
        make_sequence(b"a", cache_salt=b""),
        make_sequence(b"a", cache_salt=b"ours", adapter_id=3),
    ],
    ids=["picture", "pictures", "none", "salt", "no salt", "adapter"],
)
def test_others_find_nothing(other: Sequence) -> None:
    answers = MediaAnswers()
    answer(answers, make_sequence(b"a", cache_salt=b"ours"), ANSWER)
    assert not len(answers.find(other))
    assert len(answers.find(make_sequence(b"a", cache_salt=b"ours"))) == len(ANSWER) + 3


def test_short_answers_and_those_to_texts_are_not_kept() -> None:
    answers = MediaAnswers()
    answer(answers, make_sequence(b"a"), [10, 11, 12])
    answer(answers, make_sequence(), ANSWER)
    assert answers.num_tokens == 0 and not len(answers.find(make_sequence(b"a")))


def test_an_answer_that_comes_again_is_kept_once() -> None:
    answers = MediaAnswers()
    for other in (ANSWER, [1, 2, 3, 4, 5], ANSWER):
        answer(answers, make_sequence(b"a"), other)
    assert answers.find(make_sequence(b"a")).tolist() == [5, 6, 7, 1, 2, 3, 4, 5, 5, 6, 7, *ANSWER]


def test_the_oldest_answers_go_first() -> None:
    answers = MediaAnswers(most_tokens=400, most_of_media=150)
    for start in (0, 100, 200):
        answer(answers, make_sequence(b"a"), list(range(start, start + 69)))
    assert answers.find(make_sequence(b"a")).tolist() == [5, 6, 7, *range(100, 169), 5, 6, 7, *range(200, 269)]
    answer(answers, make_sequence(b"a"), list(range(500)))
    assert answers.find(make_sequence(b"a")).tolist() == [5, 6, 7, *range(147)], "a long one alone, cut off"


def test_the_latest_answer_is_kept_where_it_counts_for_more_than_there_is() -> None:
    """A short one counts as many tokens as a longer one."""
    answers = MediaAnswers(most_of_media=63)
    for token_ids in ([1, 2, 3, 4], [5, 6, 7, 8]):
        answer(answers, make_sequence(b"a"), token_ids)
        assert answers.find(make_sequence(b"a")).tolist() == [5, 6, 7, *token_ids] and answers.num_tokens == 64


@pytest.mark.parametrize(("most_of_media", "is_kept"), [(127, False), (128, True)])
def test_answers_of_the_same_media_are_kept_up_to_a_limit(most_of_media: int, is_kept: bool) -> None:
    answers = MediaAnswers(most_of_media=most_of_media)
    for token_ids in ([1, 2, 3, 4], [5, 6, 7, 8]):
        answer(answers, make_sequence(b"a"), token_ids)
    assert answers.find(make_sequence(b"a")).tolist() == [*[5, 6, 7, 1, 2, 3, 4][: 7 * is_kept], 5, 6, 7, 5, 6, 7, 8]


@pytest.mark.parametrize(("most_tokens", "is_kept"), [(127, False), (128, True)])
def test_answers_of_all_media_are_kept_up_to_a_limit(most_tokens: int, is_kept: bool) -> None:
    answers = MediaAnswers(most_tokens=most_tokens)
    for name in (b"a", b"b"):
        answer(answers, make_sequence(name), [1, 2, 3, 4])
    assert bool(len(answers.find(make_sequence(b"a")))) == is_kept and len(answers.find(make_sequence(b"b")))
    assert answers.num_tokens == 64 * (1 + is_kept)


def test_media_that_were_asked_about_longest_ago_are_forgotten() -> None:
    answers = MediaAnswers(most_tokens=200)
    for name in (b"a", b"b", b"c"):  # a short one counts as 64
        answer(answers, make_sequence(name), [1, 2, 3, 4])
    assert len(answers.find(make_sequence(b"a"))) and answers.num_tokens == 192
    answer(answers, make_sequence(b"d"), [1, 2, 3, 4])
    found = [len(answers.find(make_sequence(name))) > 0 for name in (b"a", b"b", b"c", b"d")]
    assert found == [True, False, True, True] and answers.num_tokens == 192
    answers.clear()
    assert answers.num_tokens == 0 and not len(answers.find(make_sequence(b"a")))


# --- proposals ------------------------------------------------------------------------------------------------------


def make_speculation() -> TextSpeculation:
    return TextSpeculation(SpeculationRule(most=7, most_tokens=64, least_saved=0.25), vocab_size=VOCAB)


def grow(speculation: TextSpeculation, seq: Sequence, token_ids: list[int]) -> None:
    for token_id in token_ids:
        seq.append(token_id)
    speculation.follow(seq.seq_id, token_ids)


def finish_one(speculation: TextSpeculation) -> None:
    first = make_sequence(b"a", seq_id=1)
    speculation.begin(first)
    for token_id in ANSWER:
        grow(speculation, first, [token_id])
        assert not speculation.propose(1)
    speculation.drop(1)


def test_an_answer_proposes_from_its_first_token_on() -> None:
    speculation = make_speculation()
    finish_one(speculation)
    seq = make_sequence(b"a", seq_id=2)
    speculation.begin(seq)
    grow(speculation, seq, [ANSWER[0]])
    place, num_steps = 1, 0
    while place < len(ANSWER):
        proposed = speculation.propose(1)[2][: len(ANSWER) - place]  # it knows no end
        assert list(proposed) == ANSWER[place : place + len(proposed)]
        grow(speculation, seq, ANSWER[place : place + len(proposed) + 1])
        place, num_steps = place + len(proposed) + 1, num_steps + 1
    assert num_steps <= len(ANSWER) / 4


def test_another_answer_proposes_nothing_until_it_is_right_again() -> None:
    speculation = make_speculation()
    finish_one(speculation)
    seq = make_sequence(b"a", seq_id=2)
    speculation.begin(seq)
    grow(speculation, seq, [ANSWER[0]])
    assert speculation.propose(1)
    for start in (5, 20, 40):  # it goes on otherwise than the one before
        grow(speculation, seq, [200 + start, *ANSWER[start : start + 3]])
        grow(speculation, seq, [201 + start])
    grow(speculation, seq, ANSWER[10:13])
    assert not speculation.propose(1)
    grow(speculation, seq, ANSWER[13:20])
    assert speculation.propose(1)


def test_nothing_is_proposed_behind_a_reset() -> None:
    speculation = make_speculation()
    finish_one(speculation)
    speculation.forget()
    seq = make_sequence(b"a", seq_id=2)
    speculation.begin(seq)
    grow(speculation, seq, [ANSWER[0]])
    assert not speculation.propose(1)


# --- an engine --------------------------------------------------------------------------------------------------------


def test_answers_to_the_same_picture_serve_each_other_within_a_salt() -> None:
    """And neither those of another salt, nor any before a reset of the caches. Each answer is the one without."""
    [request] = parse([make_conversation()], max_new_tokens=48, ignore_eos=True, temperature=0.9, random_seed=3)
    mine, theirs = replace(request, cache_salt="mine"), replace(request, cache_salt="theirs")
    with load() as engine:
        [expected] = ask(engine, [request])
    with load(speculative={"method": "ngram"}) as engine:
        found = [ask(engine, [each])[0] for each in (mine, mine, theirs, theirs)]
        engine.reset_caches()
        found.append(ask(engine, [mine])[0])
    assert [each.token_ids for each in found] == [expected.token_ids] * 5
    accepted = [each.usage.accepted_prediction_tokens for each in found if each.usage is not None]
    alone = accepted[0]
    assert alone <= 0.3 * 48 and accepted == [alone, accepted[1], alone, accepted[1], alone]
    assert accepted[1] >= 0.7 * 48


def load(**options: Any) -> AsyncEngine:
    config = EngineConfig(device_type="cpu", async_scheduling=False, session_len=512, **options)
    return AsyncEngine("seesay-demo", backend_config=config)


def make_conversation() -> list[dict[str, Any]]:
    return [make_message(PICTURE, "what is there?")]
