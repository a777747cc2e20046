"""Talks about one picture of shapes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from demo_training.talks.conversation import Ask, Asked, converse
from demo_training.wording.voice import STILL_NAMES, Voice
from seesay.demo.drawing import Thing
from seesay.demo.example import IMAGE_GRIDS, Canvas, Example, count_answer, pick_canvas, pick_name
from seesay.demo.shape_scenes import describe_things, draw_scene, pick_things, third
from seesay.demo.vocabulary import COLOURS, COUNT_WORDS, MAX_SHAPES, PLACES, SHAPES, joined, plural, with_article

SIDES = (
    (
        "on the left",
        0,
        1,
        ("on the left", "to the left", "at the left", "on the left side", "furthest left", "leftmost"),
    ),
    ("on the right", 0, -1, ("on the right", "to the right", "at the right", "on the right side", "furthest right")),
    ("at the top", 1, 1, ("at the top", "on top", "at the very top", "in the upper part", "highest up")),
    (
        "at the bottom",
        1,
        -1,
        ("at the bottom", "at the very bottom", "in the lower part", "furthest down", "below all"),
    ),
)
RELATIONS = (
    ("left of", 0, -1, ("left of", "to the left of", "on the left of", "left of", "on the left side of")),
    ("right of", 0, 1, ("right of", "to the right of", "on the right of", "right of", "on the right side of")),
    ("above", 1, -1, ("above", "over", "higher than", "above", "higher up than")),
    ("below", 1, 1, ("below", "under", "lower than", "beneath", "below", "underneath")),
)
OTHER_WORDS = {
    "circle": ("disc", "disk", "dot"), "square": ("box", "block"), "diamond": ("rhombus", "lozenge"),
    "cross": ("plus sign", "plus"), "ring": ("donut", "hoop"), "star": ("star shape",), "heart": ("heart shape",),
    "triangle": ("triangle shape",),
}  # fmt: skip


def called(rng: random.Random, shape: str) -> str:
    """Return what a person calls `shape`: its name, now and then another word for it."""
    return shape if rng.random() < 0.94 else rng.choice(OTHER_WORDS[shape])


def said_colour(rng: random.Random, colour: str) -> str:
    other = {"gray": "grey", "purple": "violet"}.get(colour)
    return other if other and rng.random() < 0.3 else colour


class ShapeTalk:
    """Asks about `things` on `canvas`."""

    def __init__(self, things: list[Thing], canvas: Canvas) -> None:
        self._things = things
        self._canvas = canvas

    def first_asks(self, task: str) -> Sequence[tuple[Ask, int]]:
        describing: list[tuple[Ask, int]] = [(self.describe, 6), (self.list_shapes, 1)]
        counting: list[tuple[Ask, int]] = [(self.count, 8), (self.count_is, 1), (self.more_kind, 1)]
        attributes: list[tuple[Ask, int]] = [
            (self.colour, 3), (self.colour_choice, 1), (self.is_colour, 1), (self.only_colour, 1), (self.shape, 3),
            (self.is_shape, 1), (self.only_shape, 1), (self.place, 4), (self.side, 2), (self.is_beside, 4),
            (self.what_is_beside, 4), (self.is_there, 4), (self.extreme, 4), (self.colour_of_extreme, 4),
            (self.compare_sizes, 2), (self.colours, 3),
        ]  # fmt: skip
        chosen = {"describe": describing, "count": counting, "attribute": attributes}.get(task)
        return chosen or [*describing, *counting, *attributes]

    def follow_asks(self) -> tuple[Ask, ...]:
        return (
            self.again_thing, self.again_thing, self.again_other, self.again_count, self.of_them, self.its_colour,
            self.its_shape, self.its_place, self.again_extreme,
        )  # fmt: skip

    # --- the whole picture

    def describe(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("describe", voice.ask("describe"), describe_things(self._things))

    def list_shapes(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("list_shapes", voice.ask("list_shapes"), describe_things(self._things))

    def colours(self, voice: Voice, _last: Asked | None) -> Asked | None:
        colours = list(dict.fromkeys(thing.colour for thing in self._things))
        if len(colours) == 1:
            return None
        return Asked("list_colours", voice.ask("list_colours"), f"The colors are {joined(colours)}.")

    # --- how many

    def _pick_group(self, rng: random.Random) -> tuple[str | None, str | None]:
        thing = rng.choice(self._things)
        colour, shape = pick_name(rng)
        groups = (
            (None, None), (None, thing.shape), (None, thing.shape), (thing.colour, None), (thing.colour, thing.shape),
            (None, shape), (colour, thing.shape), (colour, None),
        )  # fmt: skip
        return rng.choice(groups)

    def _num(self, colour: str | None, shape: str | None) -> int:
        return sum(colour in (None, thing.colour) and shape in (None, thing.shape) for thing in self._things)

    def _spoken_group(self, rng: random.Random, colour: str | None, shape: str | None) -> str:
        noun = called(rng, shape) if shape else rng.choice(("shape", "shape", "object", "thing", "figure", "item"))
        return f"{said_colour(rng, colour)} {plural(noun)}" if colour else plural(noun)

    @staticmethod
    def _count_answer(count: int, colour: str | None, shape: str | None) -> str:
        return count_answer(count, (f"{colour} " if colour else "") + (shape or "shape"))

    def count(self, voice: Voice, _last: Asked | None) -> Asked:
        colour, shape = self._pick_group(voice.rng)
        count = self._num(colour, shape)
        question = voice.ask("count", things=self._spoken_group(voice.rng, colour, shape))
        return Asked("count", question, self._count_answer(count, colour, shape), (colour, shape, count))

    def again_count(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or last.kind not in ("count", "again_count"):
            return None
        colour, shape = self._pick_group(voice.rng)
        if (colour, shape) in ((None, None), last.focus[:2]):
            return None
        count = self._num(colour, shape)
        question = voice.ask("again_count", things=self._spoken_group(voice.rng, colour, shape))
        return Asked("again_count", question, self._count_answer(count, colour, shape), (colour, shape, count))

    def of_them(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or last.kind not in ("count", "again_count") or last.focus[0] or last.focus[2] < 2:
            return None
        colour = voice.rng.choice(self._things).colour if voice.rng.random() < 0.7 else pick_name(voice.rng)[0]
        shape = last.focus[1]
        question = voice.ask("how_many_of_them", colour_word=said_colour(voice.rng, colour))
        return Asked("how_many_of_them", question, self._count_answer(self._num(colour, shape), colour, shape))

    def count_is(self, voice: Voice, _last: Asked | None) -> Asked | None:
        colour, shape = self._pick_group(voice.rng)
        count = self._num(colour, shape)
        said = count if voice.rng.random() < 0.5 else voice.rng.randint(2, MAX_SHAPES)
        if said < 2:
            return None
        things = self._spoken_group(voice.rng, colour, shape)
        number = COUNT_WORDS[said] if voice.rng.random() < 0.7 else str(said)
        question = voice.ask("count_is", n=number, things=things)
        answer = self._count_answer(count, colour, shape)
        return Asked("count_is", question, "Yes." if said == count else f"No, {answer[0].lower()}{answer[1:]}")

    def more_kind(self, voice: Voice, _last: Asked | None) -> Asked | None:
        one, other = (self._pick_group(voice.rng) for _ in range(2))
        if one == other or (None, None) in (one, other) or (one[0] is None) != (other[0] is None):
            return None
        if (one[1] is None) != (other[1] is None) or self._num(*one) + self._num(*other) == 0:
            return None
        names = [self._spoken_group(voice.rng, *group) for group in (one, other)]
        question = voice.ask("more_kind", one=names[0], other=names[1])
        return Asked("more_kind", question, "Yes." if self._num(*one) > self._num(*other) else "No.")

    # --- one thing

    def _single(self, rng: random.Random, *, by: str) -> Thing | None:
        """Return a thing that alone has its colour, its shape or both (`by`: colour, shape, name)."""
        thing = rng.choice(self._things)
        same = sum(getattr(other, by) == getattr(thing, by) for other in self._things)
        return thing if same == 1 else None

    def _refer(self, rng: random.Random, thing: Thing) -> tuple[str, str] | None:
        """Return (what a person calls `thing`, what the answer calls it), both without *the*, or None if
        neither is unique."""
        same_shape = sum(other.shape == thing.shape for other in self._things)
        same_colour = sum(other.colour == thing.colour for other in self._things)
        if sum(other.name == thing.name for other in self._things) > 1:
            return None
        choice = rng.random()
        if same_shape == 1 and choice < 0.45:
            return called(rng, thing.shape), thing.shape
        colour = said_colour(rng, thing.colour)
        if same_colour == 1 and choice > 0.85:
            return f"{colour} {rng.choice(('one', 'shape', 'object', 'thing'))}", thing.name
        return f"{colour} {called(rng, thing.shape)}", thing.name

    def _colour_turn(self, kind: str, question: str, thing: Thing) -> Asked:
        return Asked(kind, question, f"The {thing.shape} is {thing.colour}.", thing)

    def colour(self, voice: Voice, _last: Asked | None) -> Asked | None:
        thing = self._single(voice.rng, by="shape")
        if thing is None:
            return None
        return self._colour_turn("colour_of", voice.ask("colour_of", thing=called(voice.rng, thing.shape)), thing)

    def colour_choice(self, voice: Voice, _last: Asked | None) -> Asked | None:
        thing = self._single(voice.rng, by="shape")
        if thing is None:
            return None
        colours = [thing.colour, voice.rng.choice([colour for colour in COLOURS if colour != thing.colour])]
        voice.rng.shuffle(colours)
        return self._colour_turn(
            "colour_choice", voice.ask("colour_choice", thing=thing.shape, c1=colours[0], c2=colours[1]), thing
        )

    def is_colour(self, voice: Voice, _last: Asked | None) -> Asked | None:
        thing = self._single(voice.rng, by="shape")
        if thing is None:
            return None
        colour = thing.colour if voice.rng.random() < 0.5 else voice.rng.choice(tuple(COLOURS))
        question = voice.ask("is_colour", thing=called(voice.rng, thing.shape), c1=said_colour(voice.rng, colour))
        answer = "Yes." if colour == thing.colour else f"No, the {thing.shape} is {thing.colour}."
        return Asked("is_colour", question, answer, thing)

    def only_colour(self, voice: Voice, _last: Asked | None) -> Asked | None:
        if len(self._things) > 1:
            return None
        thing = self._things[0]
        return Asked("colour_of_only", voice.ask("colour_of_only"), f"It is {thing.colour}.", thing)

    def only_shape(self, voice: Voice, _last: Asked | None) -> Asked | None:
        if len(self._things) > 1:
            return None
        thing = self._things[0]
        return Asked("shape_of_only", voice.ask("shape_of_only"), f"It is {with_article(thing.shape)}.", thing)

    def shape(self, voice: Voice, _last: Asked | None) -> Asked | None:
        thing = self._single(voice.rng, by="colour")
        if thing is None:
            return None
        question = voice.ask("shape_of", c1=said_colour(voice.rng, thing.colour))
        return Asked("shape_of", question, self._shape_answer(thing), thing)

    @staticmethod
    def _shape_answer(thing: Thing) -> str:
        return f"The {thing.colour} shape is {with_article(thing.shape)}."

    def is_shape(self, voice: Voice, _last: Asked | None) -> Asked | None:
        thing = self._single(voice.rng, by="colour")
        if thing is None:
            return None
        shape = thing.shape if voice.rng.random() < 0.5 else voice.rng.choice(SHAPES)
        question = voice.ask("is_shape", c1=said_colour(voice.rng, thing.colour), a_shape=with_article(shape))
        answer = "Yes." if shape == thing.shape else f"No, it is {with_article(thing.shape)}."
        return Asked("is_shape", question, answer, thing)

    def _place(self, thing: Thing) -> str | None:
        column, row = third(thing.x / self._canvas.width), third(thing.y / self._canvas.height)
        return None if column is None or row is None else PLACES[row][column]

    def place(self, voice: Voice, _last: Asked | None) -> Asked | None:
        thing = voice.rng.choice(self._things)
        reference, place = self._refer(voice.rng, thing), self._place(thing)
        if reference is None or place is None:
            return None
        question = voice.ask("place_of", thing=reference[0])
        return Asked("place_of", question, f"The {reference[1]} is {place}.", thing)

    def side(self, voice: Voice, _last: Asked | None) -> Asked | None:
        side, axis, sign, spoken = voice.rng.choice(SIDES)

        def distance(thing: Thing) -> float:
            fraction = (thing.x / self._canvas.width, thing.y / self._canvas.height)[axis]
            return fraction if sign > 0 else 1 - fraction

        first, *rest = sorted(self._things, key=distance)
        if distance(first) > 0.45 or (rest and distance(rest[0]) - distance(first) < 0.1):
            return None
        question = voice.ask("at_side", side=voice.rng.choice((side, side, *spoken)))
        return Asked("at_side", question, f"{with_article(first.name).capitalize()} is {side}.", first)

    def _pick_relation(self, rng: random.Random) -> tuple[Thing, Thing, str, str, bool] | None:
        """Return (one, other, relation, relation as spoken, whether it holds)."""
        if len(self._things) < 2:
            return None
        one, other = rng.sample(self._things, 2)
        relation, axis, sign, spoken = rng.choice(RELATIONS)
        offset = ((one.x - other.x) / self._canvas.width, (one.y - other.y) / self._canvas.height)[axis] * sign
        return None if abs(offset) < 0.1 else (one, other, relation, rng.choice(spoken), offset > 0)

    def is_beside(self, voice: Voice, _last: Asked | None) -> Asked | None:
        picked = self._pick_relation(voice.rng)
        if picked is None:
            return None
        one, other, _, spoken, holds = picked
        names = [self._refer(voice.rng, thing) for thing in (one, other)]
        if names[0] is None or names[1] is None:
            return None
        question = voice.ask("is_beside", one=names[0][0], relation=spoken, other=names[1][0])
        return Asked("is_beside", question, "Yes." if holds else "No.")

    def what_is_beside(self, voice: Voice, _last: Asked | None) -> Asked | None:
        picked = self._pick_relation(voice.rng)
        if picked is None or len(self._things) != 2 or not picked[4]:
            return None
        one, other, relation, spoken, _ = picked
        name = self._refer(voice.rng, other)
        if name is None:
            return None
        answer = f"{with_article(one.name).capitalize()} is {relation} the {name[1]}."
        return Asked("what_is_beside", voice.ask("what_is_beside", relation=spoken, other=name[0]), answer, one)

    def is_there(self, voice: Voice, _last: Asked | None) -> Asked:
        thing = voice.rng.choice(self._things)
        colour, shape = pick_name(voice.rng)
        colour, shape = voice.rng.choice(
            (
                (thing.colour, thing.shape), (thing.colour, thing.shape), (thing.colour, shape), (colour, thing.shape),
                ("", thing.shape), ("", shape), (colour, ""), (thing.colour, ""),
            )
        )  # fmt: skip
        spoken_colour = said_colour(voice.rng, colour)
        noun = called(voice.rng, shape) if shape else voice.rng.choice(("shape", "object", "thing"))
        name = f"{spoken_colour} {noun}" if colour else noun
        matches = [t for t in self._things if colour in ("", t.colour) and shape in ("", t.shape)]
        question = voice.ask("is_there", thing=with_article(name), bare_thing=name)
        return Asked("is_there", question, "Yes." if matches else "No.", matches[0] if len(matches) == 1 else None)

    def extreme(self, voice: Voice, _last: Asked | None) -> Asked | None:
        return self._extreme(voice, voice.rng.choice(("largest", "smallest")), "{}_shape")

    def again_extreme(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or not last.kind.endswith(("largest", "smallest", "largest_shape", "smallest_shape")):
            return None
        which = "smallest" if "largest" in last.kind else "largest"
        if "colour_of" in last.kind:
            return self._colour_of_extreme(voice, which, "again_{}", "again_colour_of_{}")
        return self._extreme(voice, which, "again_{}")

    def colour_of_extreme(self, voice: Voice, _last: Asked | None) -> Asked | None:
        return self._colour_of_extreme(voice, voice.rng.choice(("largest", "smallest")), "colour_of", "colour_of_{}")

    def _colour_of_extreme(self, voice: Voice, which: str, form: str, kind: str) -> Asked | None:
        thing = self._find_extreme(which)
        if thing is None:
            return None
        spoken = voice.rng.choice((which, which, "biggest" if which == "largest" else which))
        noun = voice.rng.choice(("shape", "shape", "object", "thing", "one"))
        question = voice.ask(form.format(which), thing=f"{spoken} {noun}")
        return Asked(kind.format(which), question, f"The {which} shape is {thing.colour}.", thing)

    def _extreme(self, voice: Voice, which: str, kind: str) -> Asked | None:
        thing = self._find_extreme(which)
        if thing is None:
            return None
        answer = f"The {which} shape is the {thing.name}."
        return Asked(kind.format(which), voice.ask(kind.format(which)), answer, thing)

    def _find_extreme(self, which: str) -> Thing | None:
        """Return the largest or the smallest thing, or None if it is not so by far."""
        if len(self._things) < 2:
            return None
        ordered = sorted(self._things, key=lambda thing: thing.radius, reverse=which == "largest")
        ratio = ordered[0].radius / ordered[1].radius
        return None if max(ratio, 1 / ratio) < 1.3 else ordered[0]

    def compare_sizes(self, voice: Voice, _last: Asked | None) -> Asked | None:
        if len(self._things) < 2:
            return None
        one, other = voice.rng.sample(self._things, 2)
        names = [self._refer(voice.rng, thing) for thing in (one, other)]
        ratio = one.radius / other.radius
        if names[0] is None or names[1] is None or max(ratio, 1 / ratio) < 1.3:
            return None
        kind = voice.rng.choice(("is_larger", "larger_of_two"))
        question = voice.ask(kind, one=names[0][0], other=names[1][0])
        if kind == "is_larger":
            return Asked(kind, question, "Yes." if ratio > 1 else "No.")
        larger = one if ratio > 1 else other
        return Asked(kind, question, f"The {larger.name} is larger.", larger)

    # --- what refers to the turn before

    def again_thing(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or not isinstance(last.focus, Thing):
            return None
        thing = voice.rng.choice([t for t in self._things if t is not last.focus] or [last.focus])
        if thing is last.focus:
            return None
        return self._again(voice, last, thing, "again")

    def again_other(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or not isinstance(last.focus, Thing) or len(self._things) != 2:
            return None
        return self._again(voice, last, next(t for t in self._things if t is not last.focus), "again_other")

    def _again(self, voice: Voice, last: Asked, thing: Thing, kind: str) -> Asked | None:
        """Ask the last question about another thing."""
        if last.kind in ("colour_of", "its_colour", "again_colour") and self._num(None, thing.shape) == 1:
            question = voice.ask(kind, thing=called(voice.rng, thing.shape))
            return self._colour_turn("again_colour", question, thing)
        if last.kind in ("shape_of", "again_shape") and self._num(thing.colour, None) == 1:
            one = voice.rng.choice(("one", "one", "shape", "object", "thing"))
            question = voice.ask(kind, thing=f"{said_colour(voice.rng, thing.colour)} {one}")
            return Asked("again_shape", question, self._shape_answer(thing), thing)
        if last.kind in ("place_of", "its_place", "again_place"):
            reference, place = self._refer(voice.rng, thing), self._place(thing)
            if reference is not None and place is not None:
                question = voice.ask(kind, thing=reference[0])
                name = thing.name if kind == "again_other" else reference[1]
                return Asked("again_place", question, f"The {name} is {place}.", thing)
        return None

    def its_colour(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or not isinstance(last.focus, Thing) or last.focus.colour in last.answer:
            return None
        return Asked("its_colour", voice.ask("colour_it"), f"It is {last.focus.colour}.", last.focus)

    def its_shape(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or not isinstance(last.focus, Thing) or last.focus.shape in last.answer:
            return None
        return Asked("its_shape", voice.ask("shape_it"), f"It is {with_article(last.focus.shape)}.", last.focus)

    def its_place(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or not isinstance(last.focus, Thing) or "place" in last.kind:
            return None
        place = self._place(last.focus)
        return None if place is None else Asked("its_place", voice.ask("place_it"), f"It is {place}.", last.focus)


def talk_about_shapes(rng: random.Random, task: str, held_out: bool) -> Example:
    """Return a picture of shapes and a conversation about it."""
    canvas = pick_canvas(rng, IMAGE_GRIDS)
    while True:
        num_things = rng.randint(2 if task == "follow_up" else 1, MAX_SHAPES if task == "count" else MAX_SHAPES - 1)
        things = pick_things(rng, canvas, num_things=num_things)
        talk = ShapeTalk(things, canvas)
        try:
            turns, kinds, asked = converse(
                rng,
                names=STILL_NAMES,
                held_out=held_out,
                first=talk.first_asks(task),
                later=talk.first_asks(""),
                follow=talk.follow_asks(),
                num_turns=rng.randint(2, 6),
                only_follow=task == "follow_up",
            )
        except RuntimeError:
            continue
        picture = draw_scene(rng, canvas, things)
        return Example(task=task, turns=turns, pictures=(picture,), kinds=kinds, asked=asked)
