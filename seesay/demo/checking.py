"""Decide whether an answer is right by the facts in it, whatever its wording."""

from __future__ import annotations

import re
from collections import Counter

from seesay.demo.scenes import Example
from seesay.demo.vocabulary import COLOURS, COUNT_WORDS, LABEL_SETS, SHAPES, plural

_NUMBERS = {word: number for number, word in enumerate(COUNT_WORDS)} | {"zero": 0}
_SHAPE_WORDS = {shape: shape for shape in SHAPES} | {plural(shape): shape for shape in SHAPES}
_THING_WORDS = {*_SHAPE_WORDS, *COLOURS}
_LABELS = {label.casefold() for labels in LABEL_SETS for label in labels if len(label) > 1}
_SPELLINGS = {"centre": "center", "middle": "center", "grey": "gray", "upper": "top", "lower": "bottom"}
_FACT_WORDS = (
    set(COLOURS)
    | set(_SHAPE_WORDS)
    | _LABELS
    | {"yes", "no", "left", "right", "top", "bottom", "center", "up", "down", "still"}
    | {"first", "second", "both", "same"}
)
_CONCLUSION = ", so "
_QUOTED = re.compile(r"[\"“”']([^\"“”]*)[\"“”']")


def is_right(example: Example, answer: str, turn: int = 0) -> bool:
    """Return whether `answer` to question `turn` of `example` is complete and says nothing false.

    A description is right if it names every object's colour and shape and invents none; other answers if they
    state the same facts as the expected one. Reasons before a conclusion may be left out.
    """
    question, expected = example.turns[turn]
    if example.task in ("chat", "photo"):
        return answer.strip() == expected
    if " + " in expected:
        return re.findall(r"\d+", answer)[-1:] == re.findall(r"\d+", expected)[-1:]
    if expected.startswith("There "):
        return _first_number(answer) == _first_number(expected)
    bar_letters = _concerns_bars(example, turn)
    if _CONCLUSION in expected:
        accepted = (expected, expected.rpartition(_CONCLUSION)[2])
        return _claims(answer, bar_letters=bar_letters) in [_claims(text, bar_letters=bar_letters) for text in accepted]
    if '"' in expected:
        return _written(answer) == _written(expected)
    if expected.startswith("The picture shows ") and not bar_letters:
        return _named_things(answer) == _named_things(expected) != Counter()
    return _states_same_facts(question, expected, answer, bar_letters=bar_letters)


def _states_same_facts(question: str, expected: str, answer: str, *, bar_letters: bool) -> bool:
    facts, expected_facts = (_new_facts(text, question, bar_letters=bar_letters) for text in (answer, expected))
    if expected_facts == ():
        # A choice between what the question names.
        facts, expected_facts = (tuple(_facts(text, bar_letters=bar_letters)) for text in (answer, expected))
    return facts == expected_facts if expected_facts else answer.strip() == expected


def _words(text: str) -> list[str]:
    words = re.findall(r"[A-Za-z]+|\d+", text)
    return [_SPELLINGS.get(word.casefold(), word) for word in words]


def _concerns_bars(example: Example, turn: int) -> bool:
    """Return whether the letters A, B, … in an answer are names of bars."""
    is_of_kind = "bar" in "".join(example.kinds[turn : turn + 1])
    return example.task == "chart" or is_of_kind or "bar" in example.turns[turn][1]


def _named_things(text: str) -> Counter[tuple[str, str]]:
    """Count the (colour, shape) pairs in a text. A colour or shape outside of a pair is counted too."""
    words = [word.casefold() for word in _words(text)]
    things: Counter[tuple[str, str]] = Counter()
    used: set[int] = set()
    for i, word in enumerate(words[1:], start=1):
        if word in _SHAPE_WORDS and words[i - 1] in COLOURS:
            number = _read_number(words[i - 2]) if i >= 2 else None
            things[words[i - 1], _SHAPE_WORDS[word]] += 1 if number is None else number
            used |= {i - 1, i}
    for i, word in enumerate(words):
        if i not in used and word in _THING_WORDS:
            things["", word] += 1
    return +things


def _first_number(text: str) -> int | None:
    numbers = map(_read_number, _words(text))
    return next((number for number in numbers if number is not None), None)


def _read_number(word: str) -> int | None:
    return int(word) if word.isdigit() else _NUMBERS.get(word.casefold())


def _written(text: str) -> str:
    """Return the quoted part of a text, or the whole text, in lower case."""
    quoted = _QUOTED.search(text)
    return (quoted.group(1) if quoted else text).strip(" .").casefold()


def _facts(text: str, *, bar_letters: bool) -> list[str]:
    facts = []
    for word in _words(text):
        folded = word.casefold()
        if folded in _SHAPE_WORDS:
            facts.append(_SHAPE_WORDS[folded])
        elif folded in _NUMBERS and folded not in ("no", "one"):
            facts.append(str(_NUMBERS[folded]))
        elif folded in _FACT_WORDS or word.isdigit():
            facts.append(folded)
        elif bar_letters and word in LABEL_SETS[0]:
            facts.append(word)
    return facts


def _claims(text: str, *, bar_letters: bool) -> tuple[list[str], list[str]]:
    """Return what a text quotes, in lower case, and the facts outside of the quotation marks."""
    quoted = [match.group(1).strip(" .").casefold() for match in _QUOTED.finditer(text)]
    return quoted, _facts(_QUOTED.sub(" ", text), bar_letters=bar_letters)


def _new_facts(answer: str, question: str, *, bar_letters: bool) -> tuple[str, ...]:
    """Return the facts of an answer, in order, without those that the question already states."""
    given = {fact for fact in _facts(question, bar_letters=bar_letters) if fact not in ("yes", "no")}
    return tuple(fact for fact in _facts(answer, bar_letters=bar_letters) if fact not in given)
