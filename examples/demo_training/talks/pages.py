"""Talks about pages of text: what is written on one, and how many there are."""

from __future__ import annotations

import random

from demo_training.talks.conversation import Asked, converse
from demo_training.wording.voice import STILL_NAMES, Voice
from seesay.demo.example import Example, count_answer
from seesay.demo.page_scenes import PAGE_LINES, Page, draw_page, draw_pages, lines_answer, pick_num_pages

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


def talk_about_page(rng: random.Random, task: str, held_out: bool) -> Example:
    """Return a page of two to eight lines and a conversation about it."""
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
