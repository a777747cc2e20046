"""Talks without media: sums, word problems, small talk, and questions about a picture that is not there."""

from __future__ import annotations

import random
from collections.abc import Sequence

from demo_training.talks.conversation import Ask, Asked, ask_small_talk, converse
from demo_training.wording.voice import GOODS, Voice
from seesay.demo import phrasing as ph
from seesay.demo.example import Example, pick_name
from seesay.demo.vocabulary import LABEL_SETS, LARGEST_ADDEND, PLACES, plural, with_article

ONLY_ADD_ANSWER = "I can only add two numbers up to 20."


def _operands(rng: random.Random) -> tuple[int, int]:
    return rng.randint(0, LARGEST_ADDEND), rng.randint(0, LARGEST_ADDEND)


def _sum(kind: str, voice: Voice) -> Asked:
    a, b = _operands(voice.rng)
    return Asked(kind, voice.ask(kind, a=voice.number(a), b=voice.number(b)), f"{a} + {b} = {a + b}.")


def ask_sum(voice: Voice, _last: Asked | None) -> Asked:
    return _sum("sum", voice)


def again_sum(voice: Voice, last: Asked | None) -> Asked | None:
    if last is None or last.kind not in ("sum", "again_sum"):
        return None
    return _sum("again_sum", voice)


def ask_story(voice: Voice, _last: Asked | None) -> Asked:
    """Ask a word problem: two numbers to be added, in the order in which the answer names them."""
    a, b = voice.rng.randint(2, LARGEST_ADDEND), voice.rng.randint(2, LARGEST_ADDEND)
    question = voice.ask("story_sum", a=voice.number(a), b=voice.number(b), **_people_and_goods(voice))
    return Asked("story_sum", question, f"{a} + {b} = {a + b}.")


def ask_beyond(voice: Voice, _last: Asked | None) -> Asked:
    """Ask for arithmetic that the model has not learned."""
    a, b = sorted((voice.rng.randint(2, 20), voice.rng.randint(2, 20)), reverse=True)
    h, h2 = voice.rng.randint(41, 999), voice.rng.randint(41, 999)
    slots: dict[str, str | int] = {"c": voice.rng.randint(1, 20), "h": h, "h2": h2, **_people_and_goods(voice)}
    question = voice.ask("only_add", a=voice.number(a), b=voice.number(b), **slots)
    return Asked("only_add", question, ONLY_ADD_ANSWER)


def _people_and_goods(voice: Voice) -> dict[str, str]:
    one, other = voice.person(), voice.person()
    while other == one:
        other = voice.person()
    return {"who": one, "who2": other, "what": voice.rng.choice(GOODS)}


_PICTURE_KINDS = (
    "describe", "describe", "describe", "describe", "list_shapes", "list_colours", "count", "count", "count",
    "count_is", "colour_of", "colour_of", "colour_choice", "is_colour", "colour_of_only", "shape_of", "shape_of_only",
    "is_shape", "place_of", "place_of", "at_side", "is_beside", "what_is_beside", "is_there", "is_there",
    "largest_shape", "smallest_shape", "read", "read", "read_word", "read_number", "largest_bar", "smallest_bar",
    "bar_value", "count_bars", "list_bars", "happens", "direction", "more_shapes", "same_shape", "same_colour",
    "describe_nth", "describe_both", "colour_of_text",
)  # fmt: skip
_KINDS_OF_SKILLS = ("read_page", "read_page", "find", "find_all", "count_pages")
"""Kinds that came later. Held-out questions are without them, so that scores stay comparable."""


def picture_question(voice: Voice) -> str:
    """Return a question of any kind about media. The things that it names may be absent."""
    rng = voice.rng
    (colour, shape), (other_colour, other_shape) = pick_name(rng), pick_name(rng)
    labels = rng.sample(rng.choice(LABEL_SETS), 2)
    kind = rng.choice(_PICTURE_KINDS if voice.held_out else (*_PICTURE_KINDS, *_KINDS_OF_SKILLS))
    name = f"{colour} {shape}"
    things = rng.choice((plural(shape), plural(name), "shapes", "objects", "things"))
    thing = with_article(name) if kind == "is_there" else rng.choice((shape, name))
    return voice.ask(
        kind,
        thing=thing,
        bare_thing=name,
        things=things,
        n=rng.choice(("two", "three", "four", 2, 3)),
        c1=colour,
        c2=other_colour,
        a_shape=with_article(other_shape),
        one=labels[0] if "bar" in kind else shape,
        other=labels[1] if "bar" in kind else f"{other_colour} {other_shape}",
        relation=rng.choice(("left of", "right of", "above", "below", "to the left of", "under")),
        side=rng.choice([place for row in PLACES for place in row]),
        label=labels[0],
        noun=rng.choice(("text", "word", "number")),
        nth=rng.choice(("first", "second")),
        pic=rng.choice(("picture", "image")),
        pic_n=rng.choice(("picture 1", "image two", "picture 2")),
    )


def ask_about_nothing(voice: Voice, _last: Asked | None) -> Asked:
    return Asked("no_picture", picture_question(voice), ph.NO_PICTURE_ANSWER)


def talk_about_nothing(rng: random.Random, task: str, held_out: bool) -> Example:
    sums: Sequence[tuple[Ask, int]] = [(ask_sum, 4), (ask_story, 4), (ask_beyond, 1)]
    chat: Sequence[tuple[Ask, int]] = [(ask_small_talk, 3), (ask_about_nothing, 1)]
    if task == "follow_up":
        first: Sequence[tuple[Ask, int]] = [(ask_sum, 1)]
    else:
        first = sums if task == "arithmetic" else chat
    turns, kinds, asked = converse(
        rng,
        names=(),
        held_out=held_out,
        first=first,
        later=[*first, *first, *sums] if rng.random() < 0.5 else first,
        follow=(again_sum,),
        num_turns=rng.randint(2, 5),
        only_follow=task == "follow_up",
    )
    return Example(task=task, turns=turns, kinds=kinds, asked=asked)
