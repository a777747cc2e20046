"""Talks about where shapes are, answered with their boxes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from demo_training.talks.conversation import Ask, Asked, converse
from demo_training.talks.shapes import ShapeTalk
from demo_training.wording.voice import STILL_NAMES, Voice
from seesay.demo.box_scenes import FORCED_START, boxes_answer, pick_absent, pick_group, references
from seesay.demo.drawing import Thing
from seesay.demo.example import IMAGE_GRIDS, Canvas, Example, pick_canvas
from seesay.demo.shape_scenes import draw_scene, pick_things
from seesay.demo.vocabulary import MAX_SHAPES


class BoxTalk:
    """Asks for the boxes of `things` on `canvas`."""

    def __init__(self, things: list[Thing], canvas: Canvas) -> None:
        self._things = things
        self._canvas = canvas

    def find(self, voice: Voice, _last: Asked | None) -> Asked | None:
        return self._find(voice, "find")

    def find_all(self, voice: Voice, _last: Asked | None) -> Asked:
        name, group = pick_group(voice.rng, self._things)
        return Asked("find_all", voice.ask("find_all", things=name), boxes_answer(group, self._canvas))

    def find_absent(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("find", voice.ask("find", thing=pick_absent(voice.rng, self._things)), "[]")

    # --- questions that are answered with boxes only because a grammar asks for them

    def place(self, voice: Voice, _last: Asked | None) -> Asked | None:
        return self._find(voice, "place_of")

    def describe(self, voice: Voice, _last: Asked | None) -> Asked:
        kind = voice.rng.choice(("describe", "list_shapes"))
        return Asked(kind, voice.ask(kind), boxes_answer(self._things, self._canvas))

    def _find(self, voice: Voice, kind: str) -> Asked | None:
        thing = voice.rng.choice(self._things)
        named = references(thing, self._things)
        if not named:
            return None
        question = voice.ask(kind, thing=voice.rng.choice(named))
        return Asked(kind, question, boxes_answer([thing], self._canvas))


def talk_about_boxes(rng: random.Random, task: str, held_out: bool) -> Example:
    """Return a picture of shapes and a conversation about their boxes."""
    canvas = pick_canvas(rng, IMAGE_GRIDS)
    things: list[Thing] = []
    while not any(references(thing, things) for thing in things):
        things = pick_things(rng, canvas, num_things=rng.randint(1, MAX_SHAPES - 1))
    talk, words = BoxTalk(things, canvas), ShapeTalk(things, canvas)
    is_forced = not held_out and rng.random() < 0.15
    boxes: Sequence[tuple[Ask, int]] = [(talk.find, 8), (talk.find_all, 2), (talk.find_absent, 1)]
    later: Sequence[tuple[Ask, int]] = [*boxes, (words.place, 3), (words.describe, 1), (words.colour, 1)]
    if is_forced:
        boxes = later = [(talk.place, 4), (talk.describe, 1), (talk.find, 2)]
    turns, kinds, asked = converse(
        rng,
        names=STILL_NAMES,
        held_out=held_out,
        first=[(talk.find, 1)] if held_out else boxes,
        later=later,
        num_turns=rng.randint(1, 3),
    )
    picture = draw_scene(rng, canvas, things)
    return Example(
        task=task,
        turns=turns,
        pictures=(picture,),
        kinds=kinds,
        asked=asked,
        forced_start=FORCED_START if is_forced else "",
    )
