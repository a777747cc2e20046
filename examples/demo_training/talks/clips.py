"""Talks about a clip of one shape that moves, and perhaps another that does not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_training.talks.conversation import Ask, Asked, converse
from demo_training.talks.shapes import called, said_colour
from demo_training.wording.voice import CLIP_NAMES, Voice
from seesay.demo.clip_scenes import Motion, draw_motion
from seesay.demo.example import Example, count_answer
from seesay.demo.vocabulary import DIRECTIONS, with_article


@dataclass(frozen=True, slots=True)
class _ClipTalk:
    motion: Motion

    def _reference(self, rng: random.Random) -> tuple[str, str]:
        """Return (what a person calls the moving shape, what the answer calls it)."""
        mover = self.motion.mover
        name = f"{said_colour(rng, mover.colour)} {called(rng, mover.shape)}"
        other = self.motion.bystander
        choice = rng.random()
        if choice < 0.4:
            return name, mover.name
        if choice < 0.7 and (other is None or other.shape != mover.shape):
            return called(rng, mover.shape), mover.shape
        if other is None:
            noun = rng.choice(("shape", "object", "thing"))
            return noun, noun if noun != "thing" else "object"
        return name, mover.name

    def direction(self, voice: Voice, _last: Asked | None) -> Asked:
        spoken, name = self._reference(voice.rng)
        question = voice.ask("direction", thing=spoken)
        if spoken.casefold() not in question.casefold():
            name = self.motion.mover.name
        return Asked("direction", question, f"The {name} {self.motion.verb}.", self.motion.mover)

    def direction_it(self, voice: Voice, _last: Asked | None) -> Asked | None:
        if self.motion.bystander is not None:
            return None
        answer = f"The shape {self.motion.verb}."
        return Asked("direction_it", voice.ask("direction_it"), answer, self.motion.mover)

    def bystander(self, voice: Voice, _last: Asked | None) -> Asked | None:
        other = self.motion.bystander
        if other is None:
            return None
        question = voice.ask("direction", thing=other.name)
        if other.name not in question.casefold():
            return None
        return Asked("direction", question, f"The {other.name} stays still.", other)

    def again_other(self, voice: Voice, last: Asked | None) -> Asked | None:
        other = self.motion.bystander
        if last is None or last.kind != "direction" or other is None:
            return None
        if last.focus is other:
            thing, verb = self.motion.mover, self.motion.verb
        else:
            thing, verb = other, "stays still"
        kind = voice.rng.choice(("again_other", "again"))
        return Asked("direction", voice.ask(kind, thing=thing.name), f"The {thing.name} {verb}.", thing)

    def moves(self, voice: Voice, _last: Asked | None) -> Asked:
        """Ask whether one of the shapes moves."""
        other = self.motion.bystander
        if other is not None and voice.rng.random() < 0.5:
            return Asked("moves", voice.ask("moves", thing=other.name), "No.", other)
        answer = "Yes." if self.motion.step in DIRECTIONS else "No."
        return Asked("moves", voice.ask("moves", thing=self._reference(voice.rng)[0]), answer, self.motion.mover)

    def moves_to(self, voice: Voice, _last: Asked | None) -> Asked | None:
        step = self.motion.step
        if step not in DIRECTIONS:
            return None
        other = voice.rng.choice((step, *DIRECTIONS))
        if other != step and other[0] * step[0] + other[1] * step[1] > 0:
            return None
        question = voice.ask("moves_to", thing=self._reference(voice.rng)[0], way=DIRECTIONS[other])
        answer = "Yes." if other == step else f"No, it moves {DIRECTIONS[step]}."
        return Asked("moves_to", question, answer, self.motion.mover)

    def describe(self, voice: Voice, _last: Asked | None) -> Asked:
        kind = "happens" if voice.rng.random() < 0.6 else "describe"
        return Asked(kind, voice.ask(kind), self.motion.described)

    def colour(self, voice: Voice, _last: Asked | None) -> Asked | None:
        mover, other = self.motion.mover, self.motion.bystander
        if other is None and voice.rng.random() < 0.6:
            return Asked("colour_of_only", voice.ask("colour_of_only"), f"It is {mover.colour}.", mover)
        if other is not None and other.shape == mover.shape:
            return None
        thing = mover if other is None or voice.rng.random() < 0.5 else other
        question = voice.ask("colour_of", thing=thing.shape)
        return Asked("colour_of", question, f"The {thing.shape} is {thing.colour}.", thing)

    def shape(self, voice: Voice, _last: Asked | None) -> Asked | None:
        mover = self.motion.mover
        if self.motion.bystander is not None:
            return None
        return Asked("shape_of_only", voice.ask("shape_of_only"), f"It is {with_article(mover.shape)}.", mover)

    def count(self, voice: Voice, _last: Asked | None) -> Asked:
        things = voice.rng.choice(("shapes", "objects", "things"))
        answer = count_answer(1 if self.motion.bystander is None else 2, "shape")
        return Asked("count", voice.ask("count", things=things), answer)

    def is_there(self, voice: Voice, _last: Asked | None) -> Asked:
        mover = self.motion.mover
        colour, shape = voice.rng.choice(((mover.colour, mover.shape), ("pink", mover.shape), (mover.colour, "heart")))
        shown = [thing.name for thing in (mover, self.motion.bystander) if thing is not None]
        name = f"{colour} {shape}"
        question = voice.ask("is_there", thing=with_article(name), bare_thing=name)
        return Asked("is_there", question, "Yes." if name in shown else "No.")


def talk_about_clip(rng: random.Random, task: str, held_out: bool) -> Example:
    motion = draw_motion(rng)
    while task == "follow_up" and motion.bystander is None:
        motion = draw_motion(rng)
    talk = _ClipTalk(motion)
    directions: list[tuple[Ask, int]] = [(talk.direction, 6), (talk.direction_it, 1), (talk.bystander, 2)]
    every: list[tuple[Ask, int]] = [
        *directions, (talk.moves, 1), (talk.moves_to, 1), (talk.describe, 4), (talk.colour, 1), (talk.shape, 1),
        (talk.count, 1), (talk.is_there, 1),
    ]  # fmt: skip
    first: dict[str, Sequence[tuple[Ask, int]]] = {
        "describe": [(talk.describe, 1)],
        "attribute": [(talk.colour, 1), (talk.shape, 1), (talk.is_there, 1)],
        "follow_up": [(talk.direction, 1), (talk.bystander, 1)],
        "motion": [*directions, (talk.moves, 1), (talk.moves_to, 1), (talk.describe, 4)],
    }
    turns, kinds, asked = converse(
        rng,
        names=CLIP_NAMES,
        held_out=held_out,
        first=first[task],
        later=every,
        follow=(talk.again_other,),
        num_turns=rng.randint(2, 4),
        only_follow=task == "follow_up",
    )
    return Example(task=task, turns=turns, frames=motion.frames, kinds=kinds, asked=asked)
