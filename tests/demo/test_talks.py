"""Talks follow from their seed, ask every kind first and later, and their answers are right by the checker."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence

import pytest
from demo_training.talks import TALK_TASKS, make_talk
from demo_training.talks.conversation import PHOTO_SEEN_ANSWER
from evaluate_phrasings import evaluate_phrasings, main
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import num_examples
from PIL import ImageStat

from seesay.demo.checking import is_right
from seesay.demo.evaluate import main as evaluate_scenes
from seesay.demo.evaluate import messages_for
from seesay.demo.example import Example
from seesay.demo.scenes import FIRST_EVALUATION_SEED, TASKS

tasks = st.sampled_from(TALK_TASKS)
seeds = st.integers(min_value=-(2**40), max_value=2**40)


@given(task=tasks, seed=seeds, held_out=st.booleans())
@settings(max_examples=num_examples(80), deadline=None)
def test_a_talk_follows_from_its_seed_and_its_answers_are_right(task: str, seed: int, held_out: bool) -> None:
    one, again = (make_talk(task, seed, held_out=held_out) for _ in range(2))
    assert one.turns == again.turns and one.system == again.system
    assert [image.tobytes() for image in one.images + one.clip] == [i.tobytes() for i in again.images + again.clip]
    assert len(one.kinds) == len(one.turns) > one.asked
    for turn, (question, answer) in enumerate(one.turns):
        assert question.strip() and is_right(one, answer, turn), (question, answer)


@given(task=st.sampled_from(TASKS), seed=seeds)
@settings(max_examples=num_examples(60), deadline=None)
def test_evasive_answers_are_wrong(task: str, seed: int) -> None:
    example = make_talk(task, seed, held_out=True)
    for text in ("", "Many monkeys.", PHOTO_SEEN_ANSWER):
        assert not is_right(example, text, example.asked)


def test_every_kind_of_question_is_asked_first_and_later() -> None:
    first: Counter[str] = Counter()
    later: Counter[str] = Counter()
    for task, seed in itertools.product(TALK_TASKS, range(250)):
        example = make_talk(task, -1 - seed)
        first[example.kinds[0]] += 1
        later.update(example.kinds[1:])
    elliptical = {kind for kind in later if kind.startswith(("again", "its_"))} | {"how_many_of_them"}
    assert set(later) - set(first) <= elliptical
    assert {"describe", "happens", "list_bars", "largest_shape", "smallest_shape", "story_sum"} <= set(first) & set(
        later
    )


def test_an_answer_that_compares_names_what_it_compares_before_the_verdict() -> None:
    patterns = {
        "bar_is_larger": r"(\w+) is (\d+) and (\w+) is (\d+), so (yes|no)\.",
        "larger_bar_of_two": r"(\w+) is (\d+) and (\w+) is (\d+), so (\1|\3) is larger\.",
        "says": r'It says "([^"]+)", so (yes|no)\.',
    }
    verdicts = set()
    for task, seed in itertools.product(("chart", "read"), range(80)):
        example = make_talk(task, -1 - seed)
        for kind, (question, answer) in zip(example.kinds, example.turns, strict=True):
            if kind not in patterns:
                continue
            told = re.fullmatch(patterns[kind], answer)
            assert told, answer
            if kind == "says":
                assert (told[2] == "yes") == (told[1].casefold() in question.casefold()), (question, answer)
            else:
                larger = told[1] if int(told[2]) > int(told[4]) else told[3]
                assert told[5] == (larger if kind == "larger_bar_of_two" else "yes" if larger == told[1] else "no")
            verdicts.add((kind, told[told.re.groups] in ("yes", told[1])))
    assert len(verdicts) == 2 * len(patterns)


def test_follow_ups_are_measured_at_their_own_turn() -> None:
    example = make_talk("follow_up", FIRST_EVALUATION_SEED, held_out=True)
    assert example.asked == 1
    messages = [message for message in messages_for(example) if message["role"] != "system"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[-1]["content"][-1]["text"] == example.turns[1][0]


def test_media_may_stand_after_the_question() -> None:
    talks = [make_talk("count", FIRST_EVALUATION_SEED + seed) for seed in range(20)]
    types = {tuple(part["type"] for part in messages_for(talk)[-1]["content"]) for talk in talks}
    assert types == {("image_url", "text"), ("text", "image_url")}


@given(seed=seeds)
@settings(max_examples=num_examples(25), deadline=None)
def test_stand_ins_for_photos_are_busy_pictures_of_which_nothing_is_said(seed: int) -> None:
    example = make_talk("photo", seed)
    assert example.images or example.clip
    for image in example.images + example.clip:
        assert image.mode == "RGB"
    assert max(ImageStat.Stat((example.images + example.clip)[0]).stddev) > 2
    answers = {answer for kind, (_, answer) in zip(example.kinds, example.turns, strict=True) if kind == "photo"}
    assert answers == {PHOTO_SEEN_ANSWER}


def test_unknown_tasks_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"task must be one of .*, got 'dance'"):
        make_talk("dance", 0)


def test_phrasings_are_scored_beside_the_known_wordings() -> None:
    def right(examples: Sequence[Example]) -> list[str]:
        return [example.turns[example.asked][1] for example in examples]

    seed = FIRST_EVALUATION_SEED
    figures = evaluate_phrasings(right, num_scenes=2, seed=seed)
    assert tuple(figures) == TALK_TASKS
    assert all(set(shares.values()) == {1.0} for shares in figures.values())
    assert all(("known" in figures[task]) == (task in TASKS) for task in figures)
    wrong = evaluate_phrasings(lambda examples: ["?"] * len(examples), num_scenes=2, seed=seed, by_kind=True)
    assert all(set(shares.values()) == {0.0} and len(shares) > 1 for shares in wrong.values())


def test_only_the_evaluation_of_phrasings_takes_the_tasks_of_talks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate_scenes(["--tasks", "photo"])
    assert "argument --tasks: invalid choice: 'photo'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--tasks", "photo", "--scenes", "0"])
    assert "--scenes must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_scores_the_built_in_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tasks", "count", "--scenes", "4", "--kinds"]) == 0
    figures = json.loads(capsys.readouterr().out)["count"]
    assert figures["known"] >= 0.75 and len(figures) > 2
