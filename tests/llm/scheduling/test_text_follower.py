"""What a text that repeats itself goes on with."""

from __future__ import annotations

import random

import numpy as np
import pytest

from seesay.llm.plans.step_plan import MAX_DRAFTS
from seesay.llm.scheduling.text_follower import FIRST_RATE, LEAST_RATE, MOST_INDEXED, TextFollower, find_least_rates

MOST = 7


def follow(prompt: list[int], known: list[int] | tuple[int, ...] = ()) -> TextFollower:
    text = TextFollower(np.array(prompt, dtype=np.int64))
    text.follow(known)
    return text


def answer_in_steps(prompt: list[int], answer: list[int], most: int = MOST) -> tuple[int, int, int]:
    """Compute an answer as an engine does. Returns the steps, and how many tokens were proposed and accepted."""
    text, num_steps, num_proposed, num_accepted = follow(prompt), 0, 0, 0
    done = 0
    while done < len(answer):
        drafts = text.propose(most)
        num_right = next((i for i, (a, b) in enumerate(zip(drafts, answer[done:], strict=False)) if a != b), None)
        num_right = min(len(drafts), len(answer) - done) if num_right is None else num_right
        new = answer[done : done + num_right + 1]
        text.follow(new)
        num_steps, num_proposed, num_accepted = num_steps + 1, num_proposed + len(drafts), num_accepted + num_right
        done += len(new)
    return num_steps, num_proposed, num_accepted


def make_text(seed: int, length: int, vocab: int = 50_000) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(length)]


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    text = follow([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3])
    assert text.expected == 3 and text.propose(2) == (4, 5)
    text.follow([4, 5])
    assert text.propose(4)[:2] == (6, 7)


def test_more_tokens_want_a_higher_rate() -> None:
    """The last of them shall be accepted with a chance of 0.15 at least; and none is proposed for a lower rate."""
    rates = find_least_rates(4)
    assert rates == [LEAST_RATE, LEAST_RATE, pytest.approx(0.15 ** (1 / 3)), pytest.approx(0.15 ** (1 / 4))]


@pytest.mark.parametrize("length", range(5))
def test_short_prompts_propose_nothing(length: int) -> None:
    assert follow([5] * min(length, 2)).propose(3) == ()
    assert follow(list(range(length))).propose(3) == ()


def test_the_latest_place_counts() -> None:
    assert follow([1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3]).propose(1) == (9,)


def test_a_text_begins_behind_others_that_are_no_part_of_it() -> None:
    text = TextFollower(np.array([9, 1, 2, 3]), before=np.array([1, 2, 3, 4, 5, 6]))
    assert text.num_tokens == 4 and text.propose(2) == (4, 5)
    text.follow([4, 5, 6])
    assert text.num_tokens == 7 and text.rate > 0.6
    longer = TextFollower(np.array(make_text(5, MOST_INDEXED + 500)), before=np.array([1, 2, 3, 4]))
    assert longer.num_tokens == MOST_INDEXED + 500


def test_a_text_that_goes_round_is_proposed_beyond_its_end() -> None:
    text = follow([7, 8, 9, 7, 8, 9, 7, 8])
    text.rate = 1.0
    assert text.propose(7) == (9, 7, 8, 9, 7, 8, 9)


def test_a_wrong_prediction_ends_the_run() -> None:
    text = follow([1, 2, 3, 4, 5, 6, 0, 1, 2, 3])
    text.follow([40])
    assert text.expected is None and text.rate < 0.5


def test_texts_whose_predictions_fail_propose_nothing_until_they_come_true() -> None:
    text = follow([*range(100)])
    for first in (10, 30, 50):
        text.follow([first, first + 1, first + 2, 99_999])
    assert text.rate < 0.5
    text.follow([70, 71, 72])
    assert text.expected is not None and text.propose(MOST) == ()
    text.follow(range(73, 80))
    assert text.propose(2) == (80, 81)


def test_an_answer_that_repeats_its_prompt_is_accepted() -> None:
    """Fails when acceptance falls: 19 of 20 tokens are those of the prompt."""
    rng = random.Random(1)
    prompt = make_text(1, 2000)
    answer = [token if rng.random() < 0.95 else rng.randrange(50_000) for token in prompt[300:1500]]
    num_steps, num_proposed, num_accepted = answer_in_steps(prompt, answer)
    print(num_steps, num_proposed, num_accepted)
    assert num_accepted >= 0.8 * num_proposed and num_accepted >= 0.6 * len(answer)
    assert num_steps <= 0.4 * len(answer)


def test_an_exact_copy_takes_few_steps() -> None:
    prompt = make_text(2, 1000)
    num_steps, num_proposed, num_accepted = answer_in_steps(prompt, prompt[100:900])
    assert num_steps <= 800 / 7 and num_accepted >= 0.98 * num_proposed


def test_a_text_without_repetition_proposes_next_to_nothing() -> None:
    prompt = make_text(3, 1000, vocab=200)
    num_steps, num_proposed, _ = answer_in_steps(prompt, make_text(4, 1000, vocab=200))
    assert num_proposed <= 5 and num_steps >= 998


def test_the_end_of_a_very_long_prompt_is_known() -> None:
    prompt = make_text(5, MOST_INDEXED + 500)
    assert follow([*prompt, *prompt[-50:-40]]).propose(2) == tuple(prompt[-40:-38])
    assert follow([*prompt, *prompt[100:110]]).propose(3) == ()


@pytest.mark.every_case
@pytest.mark.parametrize("count", range(3, MAX_DRAFTS + 1))
def test_as_many_are_proposed_as_have_a_fair_chance_together(count: int) -> None:
    """One of seven or so: 0.15."""
    text = follow([*range(200), 7, 8, 9])
    least = 0.15 ** (1 / count)
    for rate, num_proposed in ((least - 1e-9, count - 1), (least + 1e-9, count)):
        text.rate = rate
        assert text.propose(MAX_DRAFTS) == tuple(range(10, 10 + num_proposed))


def test_the_rate_is_that_of_the_last_predictions() -> None:
    """Each one counts an eighth; where nothing was expected, there was none."""
    text = follow([1, 2, 3, 4, 5, 6, 7])
    assert (text.rate, text.is_sure) == (FIRST_RATE, False) == (0.5, False)
    text.follow([1, 2, 3])
    assert (text.rate, text.is_sure) == (0.5, True)
    text.follow([4])
    assert text.rate == 0.5 + 0.5 / 8
    text.follow([0])
    assert (text.rate, text.is_sure, text.propose(1)) == ((0.5 + 0.5 / 8) * 7 / 8, False, ())


def test_a_run_goes_on_although_its_last_tokens_stood_elsewhere_later() -> None:
    text = follow([1, 2, 3, 4, 5, 6, 2, 3, 4, 9])
    text.follow([1, 2, 3, 4])
    assert text.propose(2) == (5, 6)
    other = follow([1, 2, 3, 4, 5, 6, 2, 3, 8, 9])
    other.follow([1, 2, 3, 8])
    assert other.expected == 9, "behind a wrong prediction, the last place counts"


def test_answers_are_learned_like_prompts() -> None:
    """Their n-grams are found whether they lie in the prompt, in the answer, or in both."""
    text = follow([1, 2, 3, 4], [5, 6, 7, 8])
    for first in range(1, 6):
        assert follow([1, 2, 3, 4], [5, 6, 7, 8, 0, first, first + 1, first + 2]).propose(1) == (first + 3,)
    text.learn(np.array([1, 2, 3]))
    assert text.propose(1) == (4,) and text.num_tokens == 11
    text.learn(np.array([4, 9, 9, 3, 4, 5]))
    assert text.propose(1) == (6,)
    text.learn(np.array([7, 6, 7, 1]))
    assert text.expected is None
    text.follow([5, 3, 1, 2, 3, 4])
    assert text.propose(1) == (9,), "what was learned last"


@pytest.mark.parametrize("place", range(3))
def test_tokens_of_large_vocabularies_are_not_confused(place: int) -> None:
    """Ids have 21 bits. No bit of one is taken for one of its neighbours'."""
    known = [(1 << 21) - 1, (1 << 20) + 5, 1 << 20]
    for learn in (False, True):
        text = follow([*known, 8, 0], known) if learn else follow([], [*known, 8, 0, *known])
        assert text.propose(1) == (8,)
        for bit in range(21):
            others = [token ^ (1 << bit) if index == place else token for index, token in enumerate(known)]
            text = follow([*known, 8, 0], others) if learn else follow([], [*known, 8, 0, *others])
            assert text.expected is None, (others, learn)
    small = [1, (1 << 20) + 5, 7]
    assert follow([*small, 8, 0], [1, 5, 7]).expected is None


def test_only_the_end_of_a_long_prompt_is_indexed() -> None:
    """Its last `MOST_INDEXED` tokens, and the n-grams that they hold."""
    prompt = [*range(MOST_INDEXED + 10)]
    assert MOST_INDEXED == 32768
    assert follow(prompt, [10, 11, 12]).propose(1) == (13,)
    assert follow(prompt, [9, 10, 11]).expected is None
