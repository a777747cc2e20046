"""The checker takes the expected answers and other wordings of them, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pairs import num_examples

from seesay.demo.checking import is_right
from seesay.demo.scenes import TASKS, TRAINING_TASKS, Example, make_example

seeds = st.integers(min_value=-(2**40), max_value=2**40)


@given(task=st.sampled_from(TRAINING_TASKS), seed=seeds)
@settings(max_examples=num_examples(200), deadline=None)
def test_the_expected_answer_is_right(task: str, seed: int) -> None:
    example = make_example(task, seed)
    for turn, (_, answer) in enumerate(example.turns):
        assert is_right(example, answer, turn)


@given(task=st.sampled_from(("describe", "count", "read", "arithmetic")), seed=seeds, other=seeds)
@settings(max_examples=num_examples(200), deadline=None)
def test_the_answer_to_another_scene_is_wrong_unless_it_says_the_same(task: str, seed: int, other: int) -> None:
    example, stranger = make_example(task, seed), make_example(task, other)
    assume(not is_right(stranger, example.turns[0][1]))
    assert not is_right(example, stranger.turns[0][1])


@given(task=st.sampled_from(TASKS), seed=seeds, text=st.sampled_from(["", ".", "I do not know.", "Many monkeys."]))
@settings(max_examples=num_examples(60), deadline=None)
def test_empty_and_evasive_answers_are_wrong(task: str, seed: int, text: str) -> None:
    assert not is_right(make_example(task, seed), text)


def asked(task: str, question: str, answer: str) -> Example:
    return Example(task=task, turns=((question, answer),))


DESCRIBED = asked("describe", "describe this image", "The picture shows two red circles and a blue star.")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("The picture shows a blue star and two red circles.", True),
        ("I see 2 red circles, and one blue star!", True),
        ("A red circle, a blue star and another red circle.", True),
        ("A red circle and a blue star.", False),
        ("Two red circles, a blue star and a green heart.", False),
        ("Two red circles and a blue square.", False),
        ("Two red circles, a blue star and a square.", False),
        ("Three red circles and a blue star.", False),
    ],
)
def test_a_description_names_everything_and_invents_nothing(answer: str, right: bool) -> None:
    assert is_right(DESCRIBED, answer) is right


@pytest.mark.parametrize(
    ("task", "question", "expected", "answer", "right"),
    [
        ("count", "How many circles?", "There are three circles.", "3", True),
        ("count", "How many circles?", "There are no circles.", "There are zero circles.", True),
        ("count", "How many circles?", "There are three circles.", "There are four circles.", False),
        ("attribute", "What color is the star?", "The star is gray.", "It is grey.", True),
        ("attribute", "What color is the star?", "The star is gray.", "It is gray or red.", False),
        ("attribute", "Where is it?", "The star is at the top left.", "At the top right.", False),
        ("read", "What does it say?", 'It says "Apple".', 'It says "apple".', True),
        ("read", "What does it say?", 'It says "Apple".', 'It says "apples".', False),
        ("chart", "Which is largest?", "The largest bar is C.", "C", True),
        ("chart", "Which is largest?", "The largest bar is C.", "The largest bar is B.", False),
        ("chart", "How much is Mon?", "Mon is 14.", "Its value is 14.", True),
        ("chart", "How much is Mon?", "Mon is 14.", "Mon is 4.", False),
        ("chart", "Is tea larger than milk?", "tea is 12 and milk is 4, so yes.", "tea is 12, milk is 4: yes", True),
        ("chart", "Is tea larger than milk?", "tea is 12 and milk is 4, so yes.", "Yes.", True),
        ("chart", "Is tea larger than milk?", "tea is 12 and milk is 4, so yes.", "tea is 12, milk is 4: no", False),
        ("chart", "Is tea larger than milk?", "tea is 12 and milk is 4, so yes.", "tea is 12, milk is 5: yes", False),
        ("chart", "A or B?", "A is 3 and B is 4, so B is larger.", "B is larger.", True),
        ("chart", "A or B?", "A is 3 and B is 4, so B is larger.", "A is 3 and B is 4, so A is larger.", False),
        ("read", 'Is it "no"?', 'It says "pump", so no.', 'No, it says "pump".', True),
        ("read", 'Is it "no"?', 'It says "pump", so no.', 'It says "bump", so no.', False),
        ("read", 'Is it "no"?', 'It says "no", so yes.', 'It says "no".', False),
        ("motion", "Which way?", "The star moves up and to the left.", "It goes up and left.", True),
        ("motion", "Which way?", "The star moves up and to the left.", "It goes up.", False),
        ("compare", "Same shape?", "Yes, both are rings.", "Yes, both are hearts.", False),
        ("arithmetic", "7 + 5", "7 + 5 = 12.", "12", True),
        ("arithmetic", "7 + 5", "7 + 5 = 12.", "7 + 5 = 13.", False),
    ],
)
def test_other_words_for_the_same_fact(task: str, question: str, expected: str, answer: str, right: bool) -> None:
    if "star" in expected and "star" not in question:
        question += " (the star)"
    assert is_right(asked(task, question, expected), answer) is right
