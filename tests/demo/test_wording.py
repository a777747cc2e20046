"""The grammar says every question in many ways, and what it holds out of training stays out."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest
from demo_training.wording.grammar import (
    expand,
    expansions,
    normalized,
    normalized_expansions,
    parse_forms,
    split_held_out,
)
from demo_training.wording.voice import KINDS, OLD_WORDINGS, Voice, mistyped
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import num_examples

SLOT_NAMES = (
    "a", "b", "c", "h", "h2", "who", "who2", "what", "word", "thing", "bare_thing", "things", "n", "c1", "c2", "one",
    "other", "a_shape", "colour_word", "side", "relation", "quoted", "noun", "label", "value", "way", "nth", "pic",
    "pic_n",
)  # fmt: skip
SLOTS = {name: f"<{name}>" for name in SLOT_NAMES}


@given(seed=st.integers(), template=st.sampled_from(["[a|b]c", "x [a|b [c|d]|] y", "plain", "[|a][b|]"]))
def test_a_template_expands_to_one_of_its_expansions(seed: int, template: str) -> None:
    assert expand(template, random.Random(seed)) in set(expansions(template))


def test_a_nested_template_has_all_its_expansions() -> None:
    assert sorted(set(expansions("[a|b [c|d]] e"))) == ["a e", "b c e", "b d e"]


def test_a_line_without_a_known_letter_is_refused() -> None:
    with pytest.raises(ValueError, match="starts with one of Q, I, E, N, F, got 'X what'"):
        parse_forms("X what")


def test_the_split_follows_from_the_forms_alone_and_keeps_the_plainest() -> None:
    lines = [f"Q how {i}" for i in range(12)]
    forms = parse_forms("\n".join(lines))
    training, held_out = split_held_out(forms, salt="x")
    assert len(held_out) == 2 and set(training) | set(held_out) == set(forms) and not set(training) & set(held_out)
    assert {f.template for f in split_held_out(forms[::-1], salt="x")[1]} == {f.template for f in held_out}
    marked = parse_forms("\n".join(line.replace("Q", "Q!") for line in lines[:6]) + "\n" + "\n".join(lines[6:]))
    assert not any(form.is_plainest for form in split_held_out(marked, salt="x")[1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_forms_on_both_sides(kind: str) -> None:
    training, held_out = KINDS[kind]
    assert len(training) >= 4 and held_out
    assert normalized_expansions(held_out) - normalized_expansions(training)


@pytest.mark.parametrize("kind", KINDS)
def test_training_never_says_a_held_out_form(kind: str) -> None:
    """Not even as part of a longer sentence whose frame it shares."""
    unseen = normalized_expansions(KINDS[kind][1]) - normalized_expansions(KINDS[kind][0])
    voice = Voice(random.Random(kind), ("picture",))
    said = set()
    for _ in range(300):
        letter, core = voice._pick_core(kind)
        framed = voice._framed(letter, core)
        if voice._is_allowed(kind, core) and voice._is_allowed(kind, framed):
            said |= {normalized(core), normalized(framed)}
    assert said and not said & (unseen - OLD_WORDINGS)


def test_there_are_many_thousand_wordings() -> None:
    voice = Voice(random.Random(0), ("picture", "image"))
    said = {normalized(voice.ask("count", things="stars")) for _ in range(3000)}
    assert len(said) > 2000


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_slot_is_filled(kind: str, held_out: bool) -> None:
    voice = Voice(random.Random(kind), ("picture",), held_out=held_out)
    for _ in range(40):
        assert not re.search(r"[{}\[\]|]", voice.ask(kind, **SLOTS))


@given(seed=st.integers())
@settings(max_examples=num_examples(200))
def test_a_slip_of_the_finger_leaves_slots_and_most_of_the_text_alone(seed: int) -> None:
    text = "how many {things} are in the {image}"
    slipped = mistyped(text, random.Random(seed))
    assert slipped.count("{things}") == slipped.count("{image}") == 1
    assert abs(len(slipped) - len(text)) <= 1


def test_words_and_digits_stand_for_numbers() -> None:
    voice = Voice(random.Random(0))
    assert set(islice(iter(lambda: voice.number(7), None), 60)) == {"7", "seven"}
    assert voice.number(99) == "99"


def test_held_out_and_training_system_prompts_exist() -> None:
    assert Voice(random.Random(1)).system_prompt() and Voice(random.Random(1), held_out=True).system_prompt()
