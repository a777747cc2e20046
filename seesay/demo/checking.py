"""Decide whether an answer is right by the facts in it, whatever its wording."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

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
LEAST_OVERLAP = 0.7
"""The least intersection over union of a box that is right and the expected one."""
_QUOTED = re.compile(r"[\"“”']([^\"“”]*)[\"“”']")


def is_right(example: Example, answer: str, turn: int = 0) -> bool:
    """Return whether `answer` to question `turn` of `example` is complete and says nothing false.

    A description is right if it names every object's colour and shape and invents none; other answers if they
    state the same facts as the expected one. Reasons before a conclusion may be left out. A page is right if all its
    lines are; boxes are if each of them overlaps by `LEAST_OVERLAP` with one of that label.
    """
    expected = example.turns[turn][1]
    if expected.startswith("[") or "\n" in expected:
        return _is_same_list(expected, answer)
    if example.task in ("chat", "photo"):
        return answer.strip() == expected
    return _is_right_sentence(example, answer, turn)


def _is_right_sentence(example: Example, answer: str, turn: int) -> bool:
    question, expected = example.turns[turn]
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


def _is_same_list(expected: str, answer: str) -> bool:
    """Return whether an answer has the boxes or the lines that are expected."""
    if expected.startswith("["):
        return _same_boxes(_boxes(expected), _boxes(answer))
    return share_of_characters(expected, answer) == 1.0


def score(example: Example, answer: str) -> float:
    """Return how right the answer to the measured question is: the share of a page's characters, else 0 or 1."""
    if example.task == "page":
        return share_of_characters(example.turns[example.asked][1], answer)
    return float(is_right(example, answer, example.asked))


def share_of_characters(expected: str, answer: str) -> float:
    """Return 1 less the edits that make one text of the other per character of `expected`; 0 for more edits than that.

    Line ends and blanks are characters; those around the answer are not.
    """
    answer = answer.strip()
    row = list(range(len(answer) + 1))
    for above, wanted in enumerate(expected, start=1):
        before, row[0] = row[0], above
        for i, found in enumerate(answer, start=1):
            before, row[i] = row[i], min(row[i] + 1, row[i - 1] + 1, before + (wanted != found))
    return max(0.0, 1 - row[-1] / len(expected))


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the intersection over union of two boxes (left, top, right, bottom)."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def _boxes(text: str) -> list[Mapping[str, Any]] | None:
    """Return the list of boxes that a text is; None if it is none."""
    try:
        boxes = json.loads(text)
    except ValueError:
        return None
    return boxes if isinstance(boxes, list) and all(map(_is_box, boxes)) else None


def _is_box(entry: object) -> bool:
    sides = entry.get("bbox_2d") if isinstance(entry, dict) else None
    return isinstance(sides, list) and len(sides) == 4 and all(isinstance(side, int | float) for side in sides)


def _same_boxes(expected: Sequence[Mapping[str, Any]] | None, found: Sequence[Mapping[str, Any]] | None) -> bool:
    if expected is None or found is None or len(expected) != len(found):
        return False
    left = list(found)
    for box in expected:
        matching = [each for each in left if each.get("label") == box["label"]]
        best = max(matching, key=lambda each: overlap(each["bbox_2d"], box["bbox_2d"]), default=None)
        if best is None or overlap(best["bbox_2d"], box["bbox_2d"]) < LEAST_OVERLAP:
            return False
        left.remove(best)
    return True


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
