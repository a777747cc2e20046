"""Boxes, points and polygons that an answer has, in pixels of the picture that the user gave, which is upright; and the
times that it has, in seconds of the video.

`span` is the (start, stop) range of the answer's characters that says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle from (left, top) to (right, bottom). picture: its index among those of the prompt."""

    left: float
    top: float
    right: float
    bottom: float
    label: str = ""
    picture: int = 0
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place."""

    x: float
    y: float
    label: str = ""
    picture: int = 0
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polygon:
    """A closed line through `corners`, each (x, y)."""

    corners: tuple[tuple[float, float], ...]
    label: str = ""
    picture: int = 0
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timestamp:
    """A time in a video, or from one time to another: equal ends are one moment. video: its index among those of the
    prompt."""

    start_s: float
    end_s: float
    label: str = ""
    video: int = 0
    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """All that an answer marks, in its order."""

    boxes: tuple[Box, ...] = ()
    points: tuple[Point, ...] = ()
    polygons: tuple[Polygon, ...] = ()
