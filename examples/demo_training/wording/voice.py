"""Phrases questions: picks a form, adds politeness and context, and sometimes drops capitals or mistypes a word."""

from __future__ import annotations

import functools
import random
import re

from demo_training.wording import manners
from demo_training.wording.box_forms import BOX_FORMS
from demo_training.wording.chart_forms import CHART_FORMS
from demo_training.wording.chat_forms import CHAT_FORMS
from demo_training.wording.clip_forms import CLIP_FORMS
from demo_training.wording.grammar import Form, expand, normalized, normalized_expansions, parse_forms, split_held_out
from demo_training.wording.group_forms import GROUP_FORMS
from demo_training.wording.page_forms import PAGE_FORMS
from demo_training.wording.pair_forms import PAIR_FORMS
from demo_training.wording.place_forms import PLACE_FORMS
from demo_training.wording.self_forms import SELF_FORMS
from demo_training.wording.shape_forms import SHAPE_FORMS
from demo_training.wording.text_forms import TEXT_FORMS
from demo_training.wording.unknown_forms import UNKNOWN_FORMS
from demo_training.wording.written_forms import WRITTEN_FORMS
from seesay.demo import phrasing as old

NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
PEOPLE = (
    "Tom", "Ann", "Bob", "Eve", "Kim", "Leo", "Max", "Zoe", "Anna", "Peter", "Maria", "John", "Lisa", "Paul", "Emma",
    "Sam", "Nina", "Omar", "Ben", "Lucy", "Jack", "Sara", "Alice", "David", "Mia", "Ali", "Kate", "Ravi",
)  # fmt: skip
GOODS = (
    "apples", "books", "pens", "coins", "marbles", "cards", "eggs", "cookies", "balls", "stamps", "flowers", "birds",
    "cats", "dogs", "cars", "stones", "oranges", "candies", "toys", "fish", "cups", "pencils", "friends", "chairs",
    "sheep", "stickers", "shells", "tickets", "bottles", "pears",
)  # fmt: skip
STILL_NAMES = (
    "picture",
    "image",
    "picture",
    "image",
    "picture",
    "image",
    "drawing",
    "pic",
    "scene",
    "photo",
    "graphic",
)
CHART_NAMES = ("chart", "bar chart", "chart", "graph", "diagram", "plot", "picture", "image", "bar graph", "figure")
CLIP_NAMES = ("video", "clip", "video", "clip", "animation", "video clip", "film", "recording", "movie", "sequence")
NO_MEDIA_NAMES = ("picture", "image", "drawing", "photo", "chart", "video")

REMARKS = frozenset({"greeting", "thanks", "goodbye"})
"""Kinds whose fragments ask for nothing, so that nobody says please."""
KINDS = {
    kind: split_held_out(parse_forms(text), salt=kind)
    for forms in (
        SHAPE_FORMS,
        PLACE_FORMS,
        GROUP_FORMS,
        WRITTEN_FORMS,
        CHART_FORMS,
        CLIP_FORMS,
        PAIR_FORMS,
        TEXT_FORMS,
        CHAT_FORMS,
        SELF_FORMS,
        UNKNOWN_FORMS,
        PAGE_FORMS,
        BOX_FORMS,
    )
    for kind, text in forms.items()
}
"""By kind of question: (forms for training, forms held out)."""


_BARE_FRAMES = ("{}?", "{}.", "{}")
_FRAMES = {letter: parse_forms(text) for letter, text in manners.FRAMES.items()}
_HELD_OUT_FRAMES = {
    letter: split_held_out(tuple(f for f in forms if f.template not in _BARE_FRAMES) or forms, salt="frame")[1]
    for letter, forms in _FRAMES.items()
}
_TRAINING_FRAMES = {
    letter: tuple(form for form in forms if form not in _HELD_OUT_FRAMES[letter]) for letter, forms in _FRAMES.items()
}
_EXTRAS = {
    name: split_held_out(parse_forms(text), salt=name)
    for name, text in (
        ("before_media", manners.BEFORE_MEDIA),
        ("before_any", manners.BEFORE_ANY),
        ("after", manners.AFTER),
        ("system", manners.SYSTEM_PROMPTS),
    )
}
OLD_WORDINGS = frozenset(
    normalized(wording) for wordings in vars(old).values() if isinstance(wordings, tuple) for wording in wordings
)
"""The questions of an earlier training. No held-out wording may be one of these."""


@functools.cache
def _known(kind: str) -> frozenset[str]:
    return normalized_expansions(KINDS[kind][0]) | OLD_WORDINGS


@functools.cache
def _unseen(kind: str) -> frozenset[str]:
    return normalized_expansions(KINDS[kind][1]) - OLD_WORDINGS


class Voice:
    """One person who asks about media that are called one of `names`; `held_out` speaks in held-out forms only."""

    def __init__(self, rng: random.Random, names: tuple[str, ...] = (), *, held_out: bool = False) -> None:
        self.rng = rng
        self.held_out = held_out
        self._names = names

    def ask(self, kind: str, **slots: str | int) -> str:
        """Return a question of `kind` with its slots filled."""
        for _ in range(200):
            letter, core = self._pick_core(kind)
            framed = self._framed(letter, core)
            if self._is_allowed(kind, core) and self._is_allowed(kind, framed):
                return self._finish(framed, slots)
        raise RuntimeError(f"no wording of {kind!r} is left on this side of the split")

    def system_prompt(self) -> str:
        return expand(self._pick("system").template, self.rng)

    def _pick_core(self, kind: str) -> tuple[str, str]:
        form = self.rng.choice(KINDS[kind][self.held_out])
        letter = "R" if form.letter == "F" and kind in REMARKS else form.letter
        return letter, expand(form.template, self.rng)

    def _is_allowed(self, kind: str, text: str) -> bool:
        plain = normalized(text)
        return plain not in _known(kind) if self.held_out else plain not in _unseen(kind)

    def _framed(self, letter: str, core: str) -> str:
        unseen = self.held_out and self.rng.random() < 0.3 and _HELD_OUT_FRAMES[letter]
        frame = self.rng.choice(unseen or _TRAINING_FRAMES[letter]).template
        return frame.replace("{}", core, 1)

    def _pick(self, name: str) -> Form:
        training, held_out = _EXTRAS[name]
        return self.rng.choice(held_out if self.held_out and self.rng.random() < 0.5 else training)

    def _finish(self, text: str, slots: dict[str, str | int]) -> str:
        rng = self.rng
        before = after = ""
        if rng.random() < 0.13:
            pool = "before_media" if self._names and rng.random() < 0.7 else "before_any"
            before = expand(self._pick(pool).template, rng) + rng.choice((" ", " ", " ", "\n"))
        if rng.random() < 0.1:
            after = " " + expand(self._pick("after").template, rng)
        if after and text[-1] not in ".?!":
            text += "."
        text = _styled(before + text + after, rng)
        names = self._names or NO_MEDIA_NAMES
        one_name = rng.choice(names)
        colour = rng.choice(("color", "color", "colour"))
        defaults: dict[str, str | int] = {"image": one_name, "colour": colour, "name": rng.choice(PEOPLE)}
        defaults["shapes"] = rng.choice(("shapes", "objects", "things", "figures"))
        defaults["only"] = rng.choice(("shape", "object", "thing", "figure"))
        text = text.format(**{**defaults, **slots})
        return text if rng.random() < 0.97 else text.upper() if rng.random() < 0.3 and '"' not in text else text + " "

    def person(self) -> str:
        return self.rng.choice(PEOPLE)

    def number(self, value: int) -> str:
        """Return `value` in digits or as a word."""
        return NUMBER_WORDS[value] if self.rng.random() < 0.4 and value < len(NUMBER_WORDS) else str(value)


_WORD = re.compile(r"\{[^}]*\}|[A-Za-z']+")
_SENTENCE_START = re.compile(r"(^|[.?!\n] ?)([a-z])")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SHORT = {"please": "pls", "you": "u", "are": "r", "what is": "whats", "what's": "whats", "thanks": "thx"}


def _styled(text: str, rng: random.Random) -> str:
    """Return `text` with or without capitals and punctuation. Slots are not changed."""
    care = rng.random()
    if care < 0.5:
        text = _SENTENCE_START.sub(lambda match: match.group(1) + match.group(2).upper(), text)
    elif care > 0.65:
        text = _WORD.sub(lambda match: match.group(0).lower(), text)
    if care > 0.6 and rng.random() < 0.5:
        text = text.rstrip("?.!") or text
    if care > 0.9 and rng.random() < 0.4:
        long, short = rng.choice(tuple(_SHORT.items()))
        text = re.sub(rf"\b{long}\b", short, text)
    if rng.random() < 0.15:
        text = text.replace("what is", "what's").replace("What is", "What's")
    if rng.random() < 0.04:
        text = text.replace("?", rng.choice(("??", "?!", " ?", "!")))
    if rng.random() < 0.14:
        text = mistyped(text, rng)
        if rng.random() < 0.15:
            text = mistyped(text, rng)
    return text


def mistyped(text: str, rng: random.Random) -> str:
    """Return `text` with one typing error in a word of four letters or more, outside of slots."""
    words = [match for match in _WORD.finditer(text) if len(match.group(0)) >= 4 and match.group(0)[0] != "{"]
    if not words:
        return text
    word = rng.choice(words)
    at = word.start() + rng.randrange(1, len(word.group(0)) - 1)
    slip = rng.randrange(4)
    if slip == 0:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if slip == 1:
        return text[:at] + text[at + 1 :]
    if slip == 2:
        return text[:at] + text[at] + text[at:]
    return text[:at] + rng.choice(_LETTERS) + text[at + 1 :]
