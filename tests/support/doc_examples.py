"""The examples of a Markdown page, with the output that the page shows below them.

An example is a fenced block of Python or bash; a block of `text` that follows it is what it prints. Pages are compared
by meaning: times, counts and ids may be others, and an answer may say the same in other words. In an output `…` stands
for anything, on a line of its own for any lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from seesay.demo.vocabulary import COLOURS, COUNT_WORDS, SHAPES, plural

_EXAMPLE = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
_IDS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{20,}|\b(?=\w*\d)[0-9a-f]{12,}\b")
_FLOATS = re.compile(r"-?\b\d+\.\d+(?:e[+-]?\d+)?")
_COUNTS = re.compile(r"\b\d{2,}\b|(?<=\":)\d+\b")
_FACT_WORDS = {
    *COLOURS, *SHAPES, *map(plural, SHAPES), *COUNT_WORDS,
    *("left", "right", "up", "down", "yes", "no", "first", "second", "both", "same"),
}  # fmt: skip
_ANSWERS = ('"timings":', '"content":"', '"text":"', '"output_text","text":"')
_MAX_LINES, _MAX_CHARACTERS = 8, 140


@dataclass(frozen=True, kw_only=True)
class Example:
    """A block of a page. `expected` is None where the page shows no output; `end` is where one would be put."""

    language: str
    code: str
    expected: str | None
    start: int
    end: int


def read_examples(page: str) -> list[Example]:
    return [
        Example(language=found[1], code=found[2], expected=found[3], start=found.start(), end=found.end())
        for found in _EXAMPLE.finditer(page)
    ]


def is_same(expected: str, shown: str) -> bool:
    """Whether `shown` means what a page says."""
    return _match(expected.splitlines(), shown.splitlines())


def _match(expected: list[str], shown: list[str]) -> bool:
    if not expected:
        return not any(shown)
    if expected[0] == "…":
        return any(_match(expected[1:], shown[start:]) for start in range(len(shown) + 1))
    return bool(shown) and _is_same_line(expected[0], shown[0]) and _match(expected[1:], shown[1:])


def _is_same_line(expected: str, shown: str) -> bool:
    if expected.startswith("data: {"):  # how much of an answer an event has depends on how busy the machine is
        expected, shown = (re.sub(r'("content":")[^"]*', r"\1", text) for text in (expected, shown))
    pattern = ".*".join(re.escape(_mask(piece)) for piece in expected.split("…"))
    if re.fullmatch(pattern, _mask(shown)):
        return True
    is_answer = "…" not in expected and "{" not in expected
    return is_answer and bool(_facts(expected)) and _facts(expected) == _facts(shown)


def _mask(text: str) -> str:
    return _COUNTS.sub("N", _FLOATS.sub("F", _IDS.sub("ID", text)))


def _facts(text: str) -> list[str]:
    """Words and numbers that an answer is right or wrong by."""
    words = re.findall(r"[a-z]+|\d+", _FLOATS.sub("", text.casefold()))
    return [word for word in words if word in _FACT_WORDS or word.isdigit()]


def shorten(shown: str) -> str:
    """What a page shows of an output: not all of many lines, nor of long ones."""
    lines = [line if len(line) <= _MAX_CHARACTERS else _cut(line) for line in shown.splitlines()]
    if lines and lines[0].startswith("data: "):
        lines = [*lines[:3], "…", *(line for line in lines[-2:] if line)]
    elif len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], "…"]
    return "".join(f"{line}\n" for line in lines)


def _cut(line: str) -> str:
    """A part of a line that tells something: of JSON that from the answer on, else the beginning. No number or word at
    its end is cut."""
    answer = max(line.rfind(name) for name in _ANSWERS)
    head = "" if answer < 0 else line[: line.find('"')] + "…"
    part = line[max(answer, 0) :]
    if len(head) + len(part) <= _MAX_CHARACTERS:
        return head + part
    return head + re.sub(r"[\w.+-]*$", "", part[: _MAX_CHARACTERS - len(head)]) + "…"


def write_outputs(path: Path, outputs: dict[int, str]) -> None:
    """Put outputs below the examples of a page, by their number; an empty one takes the block away."""
    page = path.read_text(encoding="utf-8")
    for number, example in reversed(list(enumerate(read_examples(page)))):
        if number in outputs:
            block = f"```{example.language}\n{example.code}```\n"
            if shown := shorten(outputs[number]):
                block += f"\n```text\n{shown}```\n"
            page = page[: example.start] + block + page[example.end :]
    path.write_text(page, encoding="utf-8")
