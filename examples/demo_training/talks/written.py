"""Talks about written text, bar charts, and pictures of nothing but a colour.

An answer that compares names what it compares before the verdict: the model reads well, but does not compare what it
has not yet written down.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_training.talks.conversation import Ask, Asked, converse
from demo_training.talks.shapes import said_colour
from demo_training.wording.voice import CHART_NAMES, STILL_NAMES, Voice
from seesay.demo.drawing import Bar, draw_things, pick_rgb
from seesay.demo.example import IMAGE_GRIDS, Example, count_answer, pick_canvas
from seesay.demo.vocabulary import COLOURS, WORDS, joined
from seesay.demo.written_scenes import draw_chart, pick_written, write


@dataclass(frozen=True, slots=True)
class _TextTalk:
    text: str
    noun: str
    colour: str

    def read(self, voice: Voice, _last: Asked | None) -> Asked:
        special = {"word": "read_word", "number": "read_number"}.get(self.noun, "read")
        kind = "read" if voice.rng.random() < 0.6 else special
        return Asked(kind, voice.ask(kind), f'It says "{self.text}".')

    def colour_of_text(self, voice: Voice, _last: Asked | None) -> Asked:
        question = voice.ask("colour_of_text", noun=voice.rng.choice((self.noun, "text", "writing")))
        return Asked("colour_of_text", question, f"The text is {self.colour}.")

    def describe(self, voice: Voice, _last: Asked | None) -> Asked:
        answer = f'The picture shows the {self.noun} "{self.text}" in {self.colour}.'
        return Asked("describe", voice.ask("describe"), answer)

    def says(self, voice: Voice, _last: Asked | None) -> Asked:
        right = voice.rng.random() < 0.5
        said = self.text if right else voice.rng.choice(WORDS)
        quoted = voice.rng.choice(('"{}"', '"{}"', "'{}'", "{}")).format(said)
        verdict = "yes" if said.casefold() == self.text.casefold() else "no"
        return Asked("says", voice.ask("says", quoted=quoted), f'It says "{self.text}", so {verdict}.')


def talk_about_text(rng: random.Random, task: str, held_out: bool) -> Example:
    text, noun = pick_written(rng)
    picture, colour = write(rng, text)
    talk = _TextTalk(text, noun, colour)
    first: dict[str, Sequence[tuple[Ask, int]]] = {
        "describe": [(talk.describe, 1)],
        "attribute": [(talk.colour_of_text, 1)],
        "read": [(talk.read, 6), (talk.says, 2)],
    }
    turns, kinds, asked = converse(
        rng,
        names=STILL_NAMES,
        held_out=held_out,
        first=first[task],
        later=[(talk.read, 2), (talk.colour_of_text, 1), (talk.describe, 1), (talk.says, 3)],
        num_turns=rng.randint(2, 4),
    )
    return Example(task=task, turns=turns, pictures=(picture,), kinds=kinds, asked=asked)


class _ChartTalk:
    def __init__(self, bars: list[Bar]) -> None:
        self._bars = bars

    def describe(self, voice: Voice, _last: Asked | None) -> Asked:
        kind = "list_bars" if voice.rng.random() < 0.35 else "describe"
        listing = joined([f"{bar.label} is {bar.value}" for bar in self._bars])
        return Asked(kind, voice.ask(kind), f"The picture shows a bar chart: {listing}.")

    def extreme(self, voice: Voice, _last: Asked | None) -> Asked:
        return self._extreme(voice, voice.rng.choice(("largest", "smallest")), "{}_bar")

    def again_extreme(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or not last.kind.endswith(("largest_bar", "smallest_bar")):
            return None
        return self._extreme(voice, "smallest" if "largest" in last.kind else "largest", "again_{}_bar")

    def _extreme(self, voice: Voice, which: str, kind: str) -> Asked:
        pick = max if which == "largest" else min
        bar = pick(self._bars, key=lambda bar: bar.value)
        return Asked(kind.format(which), voice.ask(kind.format(which)), f"The {which} bar is {bar.label}.")

    def value(self, voice: Voice, _last: Asked | None) -> Asked:
        bar = voice.rng.choice(self._bars)
        return Asked("bar_value", voice.ask("bar_value", label=bar.label), f"{bar.label} is {bar.value}.", bar)

    def again_value(self, voice: Voice, last: Asked | None) -> Asked | None:
        if last is None or last.kind not in ("bar_value", "bar_colour"):
            return None
        bar = voice.rng.choice([bar for bar in self._bars if bar is not last.focus])
        question = voice.ask("again_bar", label=bar.label)
        if last.kind == "bar_value":
            return Asked("bar_value", question, f"{bar.label} is {bar.value}.", bar)
        return Asked("bar_colour", question, f"The bar {bar.label} is {bar.colour}.", bar)

    def of_value(self, voice: Voice, _last: Asked | None) -> Asked:
        bar = voice.rng.choice(self._bars)
        question = voice.ask("bar_of_value", value=voice.number(bar.value))
        return Asked("bar_of_value", question, f"{bar.label} is {bar.value}.")

    def is_larger(self, voice: Voice, _last: Asked | None) -> Asked:
        one, other = voice.rng.sample(self._bars, 2)
        question = voice.ask("bar_is_larger", one=one.label, other=other.label)
        verdict = "yes" if one.value > other.value else "no"
        return Asked("bar_is_larger", question, f"{_values(one, other)}, so {verdict}.")

    def larger_of_two(self, voice: Voice, _last: Asked | None) -> Asked:
        one, other = voice.rng.sample(self._bars, 2)
        question = voice.ask("larger_bar_of_two", one=one.label, other=other.label)
        larger = one if one.value > other.value else other
        return Asked("larger_bar_of_two", question, f"{_values(one, other)}, so {larger.label} is larger.")

    def count(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("count_bars", voice.ask("count_bars"), count_answer(len(self._bars), "bar"))

    def colour(self, voice: Voice, _last: Asked | None) -> Asked:
        bar = voice.rng.choice(self._bars)
        question = voice.ask("bar_colour", label=bar.label)
        return Asked("bar_colour", question, f"The bar {bar.label} is {bar.colour}.", bar)


def _values(one: Bar, other: Bar) -> str:
    return f"{one.label} is {one.value} and {other.label} is {other.value}"


def talk_about_chart(rng: random.Random, task: str, held_out: bool) -> Example:
    picture, bars = draw_chart(rng)
    talk = _ChartTalk(bars)
    values: list[tuple[Ask, int]] = [(talk.extreme, 6), (talk.value, 5), (talk.of_value, 4), (talk.is_larger, 4)]
    every: list[tuple[Ask, int]] = [
        *values, (talk.larger_of_two, 3), (talk.colour, 1), (talk.describe, 3), (talk.count, 2),
    ]  # fmt: skip
    first: dict[str, Sequence[tuple[Ask, int]]] = {"describe": [(talk.describe, 1)], "count": [(talk.count, 1)]}
    if task == "follow_up":
        first["follow_up"] = [(talk.extreme, 1), (talk.value, 2), (talk.colour, 1)]
    turns, kinds, asked = converse(
        rng,
        names=CHART_NAMES,
        held_out=held_out,
        first=first.get(task, every),
        later=[*every, (talk.of_value, 5), (talk.is_larger, 6), (talk.larger_of_two, 4)],
        follow=(talk.again_extreme, talk.again_value),
        num_turns=rng.randint(2, 5),
        only_follow=task == "follow_up",
    )
    return Example(task=task, turns=turns, pictures=(picture,), kinds=kinds, asked=asked)


def talk_about_plain(rng: random.Random, task: str, held_out: bool) -> Example:
    canvas, colour = pick_canvas(rng, IMAGE_GRIDS), rng.choice(tuple(COLOURS))
    described, coloured = f"The picture shows nothing but {colour}.", f"It is {colour}."

    def describe(voice: Voice, _last: Asked | None) -> Asked:
        return Asked("describe", voice.ask("describe"), described)

    def name_colour(voice: Voice, _last: Asked | None) -> Asked:
        only = voice.rng.choice(("picture", "image", "background", "area"))
        return Asked("colour_of_only", voice.ask("colour_of_only", only=only), coloured)

    def count(voice: Voice, _last: Asked | None) -> Asked:
        things = voice.rng.choice(("shapes", "objects", "things", "circles", "stars"))
        noun = things.removesuffix("s") if things in ("circles", "stars") else "shape"
        return Asked("count", voice.ask("count", things=things), count_answer(0, noun))

    def is_there(voice: Voice, _last: Asked | None) -> Asked:
        name = f"{said_colour(voice.rng, colour)} star" if voice.rng.random() < 0.5 else "circle"
        article = "an" if name[0] in "aeiou" else "a"
        return Asked("is_there", voice.ask("is_there", thing=f"{article} {name}", bare_thing=name), "No.")

    asks: dict[str, Ask] = {"describe": describe, "count": count, "attribute": name_colour}
    turns, kinds, asked = converse(
        rng,
        names=STILL_NAMES,
        held_out=held_out,
        first=[(asks[task], 1)],
        later=[(describe, 1), (name_colour, 1), (count, 1), (is_there, 1)],
        num_turns=3,
    )
    picture = draw_things(canvas.size, pick_rgb(rng, colour), [])
    return Example(task=task, turns=turns, pictures=(picture,), kinds=kinds, asked=asked)
