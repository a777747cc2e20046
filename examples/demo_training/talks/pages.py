"""Talks about pages of text: what is written on one, and how many there are."""

from __future__ import annotations

import random

from demo_training.talks.conversation import Asked, converse
from demo_training.talks.groups import BLANK
from demo_training.wording.voice import STILL_NAMES, Voice
from seesay.demo import phrasing as ph
from seesay.demo.drawing import Picture, draw_things, pick_background
from seesay.demo.example import IMAGE_GRIDS, Example, count_answer, pick_canvas
from seesay.demo.page_scenes import PAGE_LINES, Page, draw_page, draw_pages, lines_answer, pick_num_pages
from seesay.demo.phrasing import ask
from seesay.demo.shape_scenes import describe_things, draw_scene, pick_things
from seesay.demo.vocabulary import MAX_SHAPES
from seesay.demo.written_scenes import pick_written, write

PAGE_NAMES = (*STILL_NAMES, "page", "page", "document", "sheet", "scan")


class _PageTalk:
    def __init__(self, page: Page) -> None:
        self._page = page

    def read(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("read_page", voice.ask("read_page"), self._page.text)

    def count_lines(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("count_lines", voice.ask("count_lines"), count_answer(len(self._page.lines), "line"))

    def describe(self, voice: Voice, _last: Asked | None) -> Asked:
        return Asked("describe_page", voice.ask("describe_page"), lines_answer(len(self._page.lines)))


def _draw_unwritten(rng: random.Random) -> tuple[Picture, str]:
    """Return a picture that is no page of lines, and what is answered to who has it read: what other pictures of its
    kind are answered with."""
    if rng.random() < 0.4:
        text, _ = pick_written(rng)
        return write(rng, text)[0], f'It says "{text}".'
    canvas = pick_canvas(rng, IMAGE_GRIDS)
    if rng.random() < 0.2:
        return draw_things(canvas.size, pick_background(rng), []), BLANK
    things = pick_things(rng, canvas, num_things=rng.randint(1, MAX_SHAPES - 1))
    return draw_scene(rng, canvas, things), describe_things(things)


def _talk_about_unwritten(rng: random.Random, task: str) -> Example:
    picture, answer = _draw_unwritten(rng)
    question = Voice(rng, PAGE_NAMES).ask("read_page") if rng.random() < 0.5 else ask(rng, ph.READ_PAGE)
    return Example(task=task, turns=((question, answer),), pictures=(picture,), kinds=("read_page",))


def talk_about_page(rng: random.Random, task: str, held_out: bool) -> Example:
    """Return a page of two to eight lines and a conversation about it; now and then a picture that has none."""
    if not held_out and rng.random() < 0.1:
        return _talk_about_unwritten(rng, task)
    page = draw_page(rng, num_lines=rng.randint(2, PAGE_LINES[1]))
    talk = _PageTalk(page)
    turns, kinds, asked = converse(
        rng,
        names=PAGE_NAMES,
        held_out=held_out,
        first=[(talk.read, 1)] if held_out else [(talk.read, 16), (talk.count_lines, 1), (talk.describe, 1)],
        later=[(talk.count_lines, 2), (talk.describe, 1)],
        num_turns=rng.choice((1, 1, 1, 2)),
    )
    return Example(task=task, turns=turns, pictures=(page.picture,), kinds=kinds, asked=asked)


def talk_about_pages(rng: random.Random, task: str, held_out: bool) -> Example:
    """Return the pages of a document, and the question how many there are."""
    pages = draw_pages(rng, pick_num_pages(rng))
    count = count_answer(len(pages), "page")

    def ask_count(voice: Voice, _last: Asked | None) -> Asked:
        return Asked("count_pages", voice.ask("count_pages"), count)

    turns, kinds, asked = converse(
        rng,
        names=("document", "file"),
        held_out=held_out,
        first=[(ask_count, 1)],
        later=[(ask_count, 1)],
        num_turns=1,
    )
    pictures = tuple(page.picture for page in pages)
    return Example(task=task, turns=turns, pictures=pictures, kinds=kinds, asked=asked)
