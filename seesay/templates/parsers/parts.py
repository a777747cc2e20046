"""The parts that an answer is made of: what its text says, what it thinks, and the functions it calls.

A call is a `CallStart`, any number of `CallArguments` whose texts together are one JSON object, and a `CallEnd`. Calls
do not overlap; their indexes count from 0. Ids of calls are made by the route.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentText:
    """Text for the reader of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """Text of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the function `name` begins. takes_text: it is of a custom tool, and its arguments are a text."""

    index: int
    name: str
    takes_text: bool = False


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments of a call are complete."""

    index: int


AnswerPart = ContentText | ReasoningText | CallStart | CallArguments | CallEnd


def join_parts(parts: list[AnswerPart]) -> list[AnswerPart]:
    """Return the parts with neighbours of one kind as one. The result does not depend on where the text was cut."""
    joined: list[AnswerPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, ContentText) and isinstance(last, ContentText):
            joined[-1] = ContentText(last.text + part.text)
        elif isinstance(part, ReasoningText) and isinstance(last, ReasoningText):
            joined[-1] = ReasoningText(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments):
            joined[-1] = CallArguments(part.index, last.text + part.text)
        else:
            joined.append(part)
    return joined
