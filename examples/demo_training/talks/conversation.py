"""The common parts of all talks: an answered question, and the order of the questions in a conversation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from demo_training.wording.voice import Voice
from seesay.demo import phrasing as ph
from seesay.demo.example import Turn
from seesay.demo.vocabulary import WORDS

PHOTO_SEEN_ANSWER = "This does not look like a drawn scene. I only know drawn scenes, not photos."


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of some kind and its answer. `focus`: the thing that `it` would refer to in the next question."""

    kind: str
    question: str
    answer: str
    focus: Any = None

    @property
    def turn(self) -> Turn:
        return self.question, self.answer


Ask = Callable[[Voice, Asked | None], "Asked | None"]
"""Asks in a voice, given the previous question. Returns None if the scene has no such question."""


def ask_some(asks: Sequence[tuple[Ask, int]], voice: Voice, last: Asked | None = None) -> Asked:
    """Return a question from one of `asks`, chosen by weight among those that fit the scene."""
    functions, weights = zip(*asks, strict=True)
    while True:
        asked: Asked | None = voice.rng.choices(functions, weights)[0](voice, last)
        if asked is not None:
            return asked


def converse(
    rng: random.Random,
    *,
    names: tuple[str, ...],
    held_out: bool,
    first: Sequence[tuple[Ask, int]],
    later: Sequence[tuple[Ask, int]],
    follow: Sequence[Ask] = (),
    num_turns: int,
    only_follow: bool = False,
) -> tuple[tuple[Turn, ...], tuple[str, ...], int]:
    """Return (turns, their kinds, the index of the turn that counts).

    The first question is one of `first`. Later ones are, about half of the time, one of `follow` that suits what was
    just asked. `only_follow` counts the second turn, which then is a follow-up, instead of the first.
    """
    ordinary, unusual = Voice(rng, names), Voice(rng, names, held_out=held_out)
    voice = ordinary if only_follow else unusual
    for _ in range(200):
        turns = [ask_some(first, voice)]
        if not only_follow:
            break
        followed = _follow_up(follow, unusual, turns[0])
        if followed is not None:
            turns.append(followed)
            break
    else:
        raise RuntimeError("no question of this scene can be followed up")
    while len(turns) < num_turns and not held_out:
        last = turns[-1]
        followed = _follow_up(follow, ordinary, last) if rng.random() < 0.5 else None
        chatter = ask_small_talk(ordinary, last) if rng.random() < 0.03 else None
        turns.append(chatter or followed or ask_some(later, ordinary, last))
    return tuple(asked.turn for asked in turns), tuple(asked.kind for asked in turns), int(only_follow)


def _follow_up(follow: Sequence[Ask], voice: Voice, last: Asked) -> Asked | None:
    for ask in voice.rng.sample(follow, len(follow)):
        asked = ask(voice, last)
        if asked is not None:
            return asked
    return None


SMALL_TALK = (
    ("greeting", ph.GREETING_ANSWER, 4),
    ("who", ph.WHO_ANSWER, 5),
    ("ability", ph.ABILITY_ANSWER, 3),
    ("thanks", ph.THANKS_ANSWER, 4),
    ("goodbye", ph.GOODBYE_ANSWER, 4),
    ("photo_ability", ph.PHOTO_ANSWER, 4),
    ("unknown", ph.UNKNOWN_ANSWER, 8),
)


def ask_small_talk(voice: Voice, _last: Asked | None) -> Asked:
    """Ask a question that is unrelated to any picture."""
    kind, answer, _ = voice.rng.choices(SMALL_TALK, [weight for *_, weight in SMALL_TALK])[0]
    speaker = Voice(voice.rng, held_out=voice.held_out)
    question = speaker.ask(kind, word=voice.rng.choice(WORDS), who=speaker.person())
    return Asked(kind, question, answer)
