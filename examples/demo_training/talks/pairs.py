"""Talks about two pictures of shapes."""

from __future__ import annotations

import random

from demo_training.talks.conversation import Ask, Asked, converse
from demo_training.wording.voice import Voice
from seesay.demo.drawing import Thing
from seesay.demo.example import IMAGE_GRIDS, Canvas, Example, count_answer, pick_canvas, pick_name
from seesay.demo.shape_scenes import draw_scene, group_things, pick_things, place_things
from seesay.demo.vocabulary import MAX_SHAPES, joined, plural, with_article

NTH = ("first", "second")


class _PairTalk:
    def __init__(self, scenes: tuple[list[Thing], list[Thing]]) -> None:
        self._scenes = scenes

    def _nth(self, voice: Voice) -> tuple[int, dict[str, str]]:
        index = voice.rng.randrange(2)
        return index, self._nth_slots(voice.rng, index)

    @staticmethod
    def _nth_slots(rng: random.Random, index: int) -> dict[str, str]:
        pic = rng.choice(("picture", "image"))
        nth = rng.choice((NTH[index], NTH[index], ("1st", "2nd")[index]))
        number = rng.choice((str(index + 1), ("one", "two")[index]))
        return {"nth": nth, "pic": pic, "pic_n": f"{pic} {rng.choice(('', '', 'number '))}{number}"}

    def _description(self, index: int) -> str:
        return f"The {NTH[index]} picture shows {joined(group_things(self._scenes[index]))}."

    def describe_nth(self, voice: Voice, _last: Asked | None) -> Asked:
        index, slots = self._nth(voice)
        return Asked("describe_nth", voice.ask("describe_nth", **slots), self._description(index), index)

    def count_nth(self, voice: Voice, _last: Asked | None) -> Asked:
        index, slots = self._nth(voice)
        answer = count_answer(len(self._scenes[index]), "shape")
        return Asked("count_nth", voice.ask("count_nth", **slots), answer, index)

    def again_nth(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or last.kind not in ("describe_nth", "count_nth"):
            return None
        index = 1 - last.focus
        question = voice.ask("again_nth", **self._nth_slots(voice.rng, index))
        if last.kind == "describe_nth":
            return Asked(last.kind, question, self._description(index), index)
        return Asked(last.kind, question, count_answer(len(self._scenes[index]), "shape"), index)

    def describe_both(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("describe_both", voice.ask("describe_both"), f"{self._description(0)} {self._description(1)}")

    def more(self, voice: Voice, _last: Asked | None) -> Asked:
        kind, better = voice.rng.choice((("more_shapes", max), ("more_shapes", max), ("fewer_shapes", min)))
        counts = [len(things) for things in self._scenes]
        if counts[0] == counts[1]:
            return Asked(kind, voice.ask(kind), "Both pictures have the same number of shapes.")
        word = kind.removesuffix("_shapes")
        return Asked(kind, voice.ask(kind), f"The {NTH[counts.index(better(counts))]} picture has {word} shapes.")

    def same_shape(self, voice: Voice, _last: Asked | None) -> Asked | None:
        if self._scenes_are_crowded():
            return None
        shapes = [things[0].shape for things in self._scenes]
        if shapes[0] == shapes[1]:
            answer = f"Yes, both are {plural(shapes[0])}."
        else:
            answer = f"No, the first is {with_article(shapes[0])} and the second is {with_article(shapes[1])}."
        return Asked("same_shape", voice.ask("same_shape"), answer)

    def same_colour(self, voice: Voice, _last: Asked | None) -> Asked | None:
        if self._scenes_are_crowded():
            return None
        colours = [things[0].colour for things in self._scenes]
        if colours[0] == colours[1]:
            answer = f"Yes, both are {colours[0]}."
        else:
            answer = f"No, the first is {colours[0]} and the second is {colours[1]}."
        return Asked("same_colour", voice.ask("same_colour"), answer)

    def _scenes_are_crowded(self) -> bool:
        return any(len(things) != 1 for things in self._scenes)


def _make_scenes(rng: random.Random, canvases: list[Canvas], *, alone: bool) -> tuple[list[Thing], list[Thing]]:
    if not alone:
        first, second = (pick_things(rng, canvas, num_things=rng.randint(1, MAX_SHAPES - 1)) for canvas in canvases)
        return first, second
    (colour, shape), (other_colour, other_shape) = pick_name(rng), pick_name(rng)
    other_colour = colour if rng.random() < 0.45 else other_colour
    other_shape = shape if rng.random() < 0.45 else other_shape
    names = ((colour, shape), (other_colour, other_shape))
    first, second = (place_things(rng, canvas, [name]) for canvas, name in zip(canvases, names, strict=True))
    return first, second


def talk_about_pair(rng: random.Random, task: str, held_out: bool) -> Example:
    canvases = [pick_canvas(rng, IMAGE_GRIDS) for _ in range(2)]
    alone = rng.random() < 0.5
    scenes = _make_scenes(rng, canvases, alone=alone)
    talk = _PairTalk(scenes)
    every: list[tuple[Ask, int]] = [
        (talk.same_shape, 4), (talk.same_colour, 4), (talk.describe_nth, 4), (talk.count_nth, 1),
        (talk.describe_both, 4), (talk.more, 1 if alone else 7),
    ]  # fmt: skip
    turns, kinds, asked = converse(
        rng,
        names=(),
        held_out=held_out,
        first=[(talk.describe_nth, 2), (talk.count_nth, 1)] if task == "follow_up" else every,
        later=every,
        follow=(talk.again_nth,),
        num_turns=rng.randint(2, 4),
        only_follow=task == "follow_up",
    )
    pictures = tuple(draw_scene(rng, canvas, things) for canvas, things in zip(canvases, scenes, strict=True))
    return Example(task=task, turns=turns, pictures=pictures, kinds=kinds, asked=asked)
