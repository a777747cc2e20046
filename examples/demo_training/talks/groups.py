"""Talks about several shapes of a picture at once: what is not of a colour, what is alike, what differs, what is most;
and about pictures that are blank."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from demo_training.talks.conversation import Ask, Asked, converse
from demo_training.talks.shapes import called, said_colour
from demo_training.wording.voice import STILL_NAMES, Voice
from seesay.demo.drawing import Thing, draw_things, pick_background
from seesay.demo.example import IMAGE_GRIDS, Example, pick_canvas, pick_name
from seesay.demo.shape_scenes import describe_things, draw_scene, group_things, pick_things, place_things
from seesay.demo.vocabulary import COLOURS, COUNT_WORDS, MAX_SHAPES, SHAPES, joined, plural, with_article

BLANK = "The picture is blank."


class GroupTalk:
    """Asks about all of `things`, which are two or more."""

    def __init__(self, things: list[Thing]) -> None:
        self._things = things

    def asks(self) -> Sequence[tuple[Ask, int]]:
        """Return the questions with their weights."""
        return (
            (self.count_not, 4), (self.list_not, 3), (self.all_one_colour, 3), (self.all_one_shape, 2),
            (self.two_alike, 4), (self.odd_one, 5), (self.most_common, 5), (self.count_and_colour, 5),
            (self.is_blank, 1),
        )  # fmt: skip

    def describe(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("describe", voice.ask("describe"), describe_things(self._things))

    def _pick_colour(self, rng: random.Random) -> str:
        return rng.choice(self._things).colour if rng.random() < 0.8 else rng.choice(tuple(COLOURS))

    def count_not(self, voice: Voice, _last: Asked | None) -> Asked:
        colour = self._pick_colour(voice.rng)
        count = sum(thing.colour != colour for thing in self._things)
        verb, noun = ("is", "shape") if count == 1 else ("are", "shapes")
        answer = f"There {verb} {COUNT_WORDS[count]} {noun} that {verb} not {colour}."
        return Asked("count_not", voice.ask("count_not", c1=said_colour(voice.rng, colour)), answer)

    def list_not(self, voice: Voice, _last: Asked | None) -> Asked:
        colour = self._pick_colour(voice.rng)
        others = [thing for thing in self._things if thing.colour != colour]
        listed = joined(group_things(others)) if others else "nothing"
        answer = f"{listed[0].upper()}{listed[1:]} {'is' if len(others) < 2 else 'are'} not {colour}."
        if not others:
            answer = f"All shapes are {colour}."
        return Asked("list_not", voice.ask("list_not", c1=said_colour(voice.rng, colour)), answer)

    def all_one_colour(self, voice: Voice, _last: Asked | None) -> Asked:
        colours = list(dict.fromkeys(thing.colour for thing in self._things))
        answer = f"Yes, all are {colours[0]}." if len(colours) == 1 else f"No, the colors are {joined(colours)}."
        return Asked("all_one_colour", voice.ask("all_one_colour"), answer)

    def all_one_shape(self, voice: Voice, _last: Asked | None) -> Asked:
        counts = Counter(thing.shape for thing in self._things)
        listed = [with_article(shape) if n == 1 else f"{COUNT_WORDS[n]} {plural(shape)}" for shape, n in counts.items()]
        one = f"Yes, all are {plural(self._things[0].shape)}."
        answer = one if len(counts) == 1 else f"No, the shapes are {joined(listed)}."
        return Asked("all_one_shape", voice.ask("all_one_shape"), answer)

    def two_alike(self, voice: Voice, _last: Asked | None) -> Asked | None:
        """Compare the colours of two shapes, or the shapes of two colours, each the only one of its kind."""
        by, of = voice.rng.choice((("shape", "colour"), ("colour", "shape")))
        counts = Counter(getattr(thing, by) for thing in self._things)
        single = [thing for thing in self._things if counts[getattr(thing, by)] == 1]
        if len(single) < 2:
            return None
        one, other = voice.rng.sample(single, 2)
        if of == "colour":
            names = [called(voice.rng, thing.shape) for thing in (one, other)]
            question = voice.ask("two_colours", one=names[0], other=names[1])
            different = f"No, the {one.shape} is {one.colour} and the {other.shape} is {other.colour}."
            same = f"Yes, both are {one.colour}."
            return Asked("two_colours", question, same if one.colour == other.colour else different)
        noun = voice.rng.choice(("one", "shape", "object", "thing"))
        names = [f"{said_colour(voice.rng, thing.colour)} {noun}" for thing in (one, other)]
        question = voice.ask("two_shapes", one=names[0], other=names[1])
        kinds = [with_article(thing.shape) for thing in (one, other)]
        different = f"No, the {one.colour} one is {kinds[0]} and the {other.colour} one is {kinds[1]}."
        same = f"Yes, both are {plural(one.shape)}."
        return Asked("two_shapes", question, same if one.shape == other.shape else different)

    def odd_one(self, voice: Voice, _last: Asked | None) -> Asked | None:
        odd = find_odd(self._things)
        if odd is None:
            return None
        return Asked("odd_one", voice.ask("odd_one"), f"The odd one out is the {odd.name}.", odd)

    def most_common(self, voice: Voice, _last: Asked | None) -> Asked | None:
        of = voice.rng.choice(("shape", "colour"))
        first, *rest = Counter(getattr(thing, of) for thing in self._things).most_common(2)
        if first[1] < 2 or (rest and rest[0][1] == first[1]):
            return None
        if of == "shape":
            return Asked("common_shape", voice.ask("common_shape"), f"The most common shape is the {first[0]}.")
        return Asked("common_colour", voice.ask("common_colour"), f"The most common color is {first[0]}.")

    def count_and_colour(self, voice: Voice, _last: Asked | None) -> Asked:
        shape = voice.rng.choice(self._things).shape if voice.rng.random() < 0.75 else None
        colours = Counter(thing.colour for thing in self._things if shape in (None, thing.shape))
        spoken = called(voice.rng, shape) if shape else voice.rng.choice(("shape", "object", "thing", "figure"))
        question = voice.ask("count_and_colour", things=plural(spoken))
        return Asked("count_and_colour", question, _count_colours(colours, shape or "shape"))

    def is_blank(self, voice: Voice, _last: Asked | None) -> Asked:
        kind = voice.rng.choice(("is_blank", "is_anything"))
        return Asked(kind, voice.ask(kind), "No." if kind == "is_blank" else "Yes.")


def _count_colours(colours: Counter[str], noun: str) -> str:
    """Return *I see three circles: two are red and one is blue.*"""
    count = colours.total()
    seen = f"I see {COUNT_WORDS[count]} {noun if count == 1 else plural(noun)}"
    if len(colours) == 1:
        [colour] = colours
        return f"{seen}, {'it is' if count == 1 else 'both are' if count == 2 else 'all are'} {colour}."
    parts = [f"{COUNT_WORDS[n]} {'is' if n == 1 else 'are'} {colour}" for colour, n in colours.items()]
    return f"{seen}: {joined(parts)}."


def find_odd(things: Sequence[Thing]) -> Thing | None:
    """Return the one of three or more things that alone has its colour or its shape, where the others are alike in
    that. None if there is none, or if one thing is odd in colour and another in shape."""
    if len(things) < 3:
        return None
    found = set[int]()
    for of in ("colour", "shape"):
        counts = Counter(getattr(thing, of) for thing in things)
        if len(counts) == 2 and min(counts.values()) == 1:
            found |= {number for number, thing in enumerate(things) if counts[getattr(thing, of)] == 1}
    return things[found.pop()] if len(found) == 1 else None


def _pick_alike(rng: random.Random) -> list[tuple[str, str]]:
    """Return names of which the most are alike in colour, shape or both, and mostly one is not."""
    count = rng.randint(3, MAX_SHAPES)
    colour, shape = pick_name(rng)
    odd_colour = rng.choice([other for other in COLOURS if other != colour])
    odd_shape = rng.choice([other for other in SHAPES if other != shape])
    odd = rng.choice(((odd_colour, shape), (colour, odd_shape), (odd_colour, odd_shape), (colour, shape)))
    names = [(colour, shape)] * (count - 1) + [odd]
    if odd[0] != colour and odd[1] == shape and rng.random() < 0.3:  # alike in colour alone
        names = [(colour, rng.choice(SHAPES)) for _ in range(count - 1)] + [odd]
    elif odd[0] == colour and odd[1] != shape and rng.random() < 0.5:  # alike in shape alone
        names = [(rng.choice(tuple(COLOURS)), shape) for _ in range(count - 1)] + [odd]
    rng.shuffle(names)
    return names


def talk_about_group(rng: random.Random, task: str, held_out: bool) -> Example:
    """Return a picture of several shapes, and a conversation about all of them."""
    canvas = pick_canvas(rng, IMAGE_GRIDS)
    things: list[Thing] = []
    while len(things) < 2:
        if rng.random() < 0.5:
            things = place_things(rng, canvas, _pick_alike(rng))
        else:
            things = pick_things(rng, canvas, num_things=rng.randint(2, MAX_SHAPES))
    talk = GroupTalk(things)
    turns, kinds, asked = converse(
        rng,
        names=STILL_NAMES,
        held_out=held_out,
        first=talk.asks(),
        later=[*talk.asks(), (talk.describe, 3)],
        num_turns=rng.randint(2, 5),
    )
    return Example(task=task, turns=turns, pictures=(draw_scene(rng, canvas, things),), kinds=kinds, asked=asked)


def talk_about_blank(rng: random.Random, task: str, held_out: bool) -> Example:
    """Return a picture of nothing but a background, and a conversation about it."""
    canvas = pick_canvas(rng, IMAGE_GRIDS)

    def make(kind: str, answer: str) -> Ask:
        return lambda voice, _last: Asked(kind, voice.ask(kind), answer)

    def count(voice: Voice, _last: Asked | None) -> Asked:
        things = voice.rng.choice(("shape", "object", "thing", "circle", "star"))
        noun = things if things in ("circle", "star") else "shape"
        return Asked("count", voice.ask("count", things=plural(things)), f"There are no {plural(noun)}.")

    def is_there(voice: Voice, _last: Asked | None) -> Asked:
        name = voice.rng.choice(SHAPES)
        return Asked("is_there", voice.ask("is_there", thing=with_article(name), bare_thing=name), "No.")

    describe: Callable[..., Asked | None] = make("describe", BLANK)
    asks = [
        (describe, 6), (make("is_blank", "Yes."), 2), (make("is_anything", "No."), 2), (count, 2), (is_there, 1),
        (make("list_shapes", BLANK), 1),
    ]  # fmt: skip
    turns, kinds, asked = converse(
        rng,
        names=STILL_NAMES,
        held_out=held_out,
        first=[(describe, 1)] if task == "describe" else asks,
        later=asks,
        num_turns=rng.randint(1, 3),
    )
    picture = draw_things(canvas.size, pick_background(rng), [])
    return Example(task=task, turns=turns, pictures=(picture,), kinds=kinds, asked=asked)
