"""The language that forms are written in, and the split of forms into those for training and those held out.

A form is one line: a letter that says what it is, and a template. `[a|b|]` chooses one of its parts, `{thing}` is a
slot that the scene fills, and `<in>` is one of the macros below.

    Q how many {things} are [there|shown]<in>       a question; `?` is added
    I count the {things}<in>                        a command
    E how many {things} there are                   a clause that follows "tell me"
    N the number of {things}                        a noun phrase that follows "what is"
    F number of {things}                            said as it is

A `!` after the letter marks wordings that are never held out: the plainest ones, those of an earlier training, and
those that were added to teach words, after forms had been held out.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HELD_OUT_SHARE = 6
"""One form in this many, of those without `!`, is held out of training."""

MACROS = {
    "<in>": "[|||| in [the|this|that|your] {image}| here| in it]",
    "<a>": "[a|some|the]",
    "<see>": "[see|notice|spot|find|observe|recognize|make out]",
    "<biggest>": "[biggest|largest|biggest|largest|greatest|most big]",
}
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Form:
    """One line of the grammar, its macros resolved."""

    letter: str
    template: str
    is_plainest: bool = False
    """Whether training always has it: the wording that everybody uses first, or one that an earlier training saw."""


def parse_forms(text: str) -> tuple[Form, ...]:
    """Return the forms in `text`, which has one per line."""
    forms = []
    for line in text.strip().splitlines():
        letter, template = line.strip().split(" ", 1)
        is_plainest, letter = letter.endswith("!"), letter.removesuffix("!")
        if letter not in tuple("QIENF"):
            raise ValueError(f"a form starts with one of Q, I, E, N, F, got {line!r}")
        for macro, meaning in MACROS.items():
            template = template.replace(macro, meaning)
        forms.append(Form(letter, template, is_plainest))
    return tuple(forms)


def split_held_out(items: Sequence[Form], *, salt: str) -> tuple[tuple[Form, ...], tuple[Form, ...]]:
    """Return (forms for training, forms held out), chosen by a checksum of each form's text."""
    candidates = [form for form in items if not form.is_plainest]
    ranked = sorted(candidates, key=lambda form: zlib.crc32(f"{salt}/{form.letter}/{form.template}".encode()))
    num_held_out = max(1, round(len(candidates) / HELD_OUT_SHARE))
    held_out = set(ranked[:num_held_out])
    return tuple(form for form in items if form not in held_out), tuple(f for f in items if f in held_out)


def expand(template: str, rng: random.Random) -> str:
    """Return one of the texts that `template` stands for, with its slots still empty."""
    while "[" in template:
        template = _GROUP.sub(lambda match: rng.choice(match.group(1).split("|")), template)
    return _SPACES.sub(" ", template).strip()


def expansions(template: str) -> Iterator[str]:
    """Return all texts that `template` stands for."""
    group = _GROUP.search(template)
    if group is None:
        yield _SPACES.sub(" ", template).strip()
        return
    for choice in dict.fromkeys(group.group(1).split("|")):
        yield from expansions(template[: group.start()] + choice + template[group.end() :])


def normalized(text: str) -> str:
    """Return `text` in lower case, without punctuation, in American spelling."""
    text = text.casefold().replace("colour", "color").replace("{color}", "color").replace("what's", "what is")
    return _SPACES.sub(" ", re.sub(r"[^\w{}+]+", " ", text)).strip()


@functools.cache
def normalized_expansions(forms: tuple[Form, ...]) -> frozenset[str]:
    """Return all texts that `forms` stand for, normalized, to tell whether a wording is one of them."""
    return frozenset(map(normalized, itertools.chain.from_iterable(expansions(form.template) for form in forms)))
