"""Boxes, points, polygons and times of an answer, as extensions of its choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Self

from seesay.values import OutputDelta
from seesay.values.shapes import Polygon, Timestamp
from seesay.vl.grounding import find_shapes
from seesay.vl.timestamps import find_timestamps


class ShapeFields:
    """The extensions of the choices of one request; none, if they are not wanted."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._texts: dict[int, list[str]] = {}

    @classmethod
    def of_request(cls, return_boxes: bool | None, grammar: Mapping[str, object] | None) -> Self:
        """Return those of a request: wanted if it says so, or asks for a list of boxes."""
        return cls(is_wanted=bool(return_boxes) or (grammar is not None and grammar.get("type") == "boxes"))

    def add(self, index: int, delta: OutputDelta) -> None:
        """Note the text of a streamed choice."""
        if self._is_wanted:
            self._texts.setdefault(index, []).append(delta.text)

    def end(self, index: int, last: OutputDelta) -> dict[str, object]:
        """Return the extensions of a streamed choice, at its end."""
        return self.of("".join(self._texts.pop(index, ())), last)

    def of(self, text: str, last: OutputDelta) -> dict[str, object]:
        """Return the extensions of a choice with this text."""
        if not self._is_wanted:
            return {}
        shapes = find_shapes(text, last.media)
        return {
            "boxes": [
                {"box": [box.left, box.top, box.right, box.bottom], "label": box.label, "picture": box.picture}
                for box in shapes.boxes
            ],
            "points": [
                {"point": [point.x, point.y], "label": point.label, "picture": point.picture} for point in shapes.points
            ],
            "polygons": [_leave_span(polygon) for polygon in shapes.polygons],
            "timestamps": [_leave_span(timestamp) for timestamp in find_timestamps(text, last.media)],
        }


def _leave_span(value: Polygon | Timestamp) -> dict[str, object]:
    """Return the fields of a value without its place in the text, which clients count in other units."""
    return {name: field for name, field in asdict(value).items() if name != "span"}
