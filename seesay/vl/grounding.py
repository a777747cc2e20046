"""Reads boxes, points and polygons from answers, in the formats of the models that write them.

Coordinates are made pixels of the picture that the user gave. Those of JSON are thousandths of its sides, or pixels of
the resized picture, as the model's family says (`Family.coordinates`); all other formats say themselves what they are.
Special tokens may have been left out of the text.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from seesay.values import MediaReport, Modality
from seesay.values.shapes import Box, Point, Polygon, Shapes

MAX_SHAPES = 4096
"""Most shapes that are read of an answer."""
T = TypeVar("T")
_NUMBER = r"\s?-?\d{1,6}(?:\.\d{1,8})?\s?"
_FOUR = rf"\[{_NUMBER}(?:,{_NUMBER}){{3}}\]"
_FOURS = re.compile(_FOUR)
_NUMBERS = re.compile(r"-?\d{1,6}(?:\.\d{1,8})?")
_FENCE = re.compile(r"```(?:json)?\s*(.*?)(?:```|\Z)", re.DOTALL)
_OBJECT = re.compile(r"\{[^{}]{1,4000}\}")
"""An object of a list, which has no other objects; a list that was cut off has those before."""
_BOX_KEYS = ("bbox_2d", "bbox", "box", "box_2d")
_POINT_KEYS = ("point_2d", "point")
_LABEL_KEYS = ("label", "category", "text_content", "text", "name")
_KOSMOS_CELLS = 32


class _Found(NamedTuple):
    """Corners in fractions of the sides of a picture. One is a point, two are a box, more a polygon. span: where the
    text says so."""

    label: str
    corners: tuple[tuple[float, float], ...]
    span: tuple[int, int]
    picture: int | None = None


def find_shapes(text: str, media: Sequence[MediaReport]) -> Shapes:
    """Return what an answer marks in the pictures of its prompt, which `media` report. Where it does not say which
    picture it means, it is the last one."""
    pictures = [report for report in media if report.modality is Modality.IMAGE]
    if not pictures:
        return Shapes()
    shapes = [_place(found, pictures) for found in itertools.islice(_read(text, pictures[-1]), MAX_SHAPES)]
    return Shapes(boxes=_pick(shapes, Box), points=_pick(shapes, Point), polygons=_pick(shapes, Polygon))


def _pick(shapes: Iterable[object], kind: type[T]) -> tuple[T, ...]:
    return tuple(shape for shape in shapes if isinstance(shape, kind))


def _place(found: _Found, pictures: Sequence[MediaReport]) -> Box | Point | Polygon | None:
    """Return a shape in pixels; None of a picture that there is not."""
    picture = len(pictures) - 1 if found.picture is None else found.picture
    if not 0 <= picture < len(pictures):
        return None
    report = pictures[picture]
    corners = tuple((x * report.width, y * report.height) for x, y in found.corners)
    label, span = found.label, found.span
    if len(corners) == 1:
        return Point(x=corners[0][0], y=corners[0][1], label=label, picture=picture, span=span)
    if len(corners) > 2:
        return Polygon(corners=corners, label=label, picture=picture, span=span)
    (left, right), (top, bottom) = (sorted(values) for values in zip(*corners))
    return Box(left=left, top=top, right=right, bottom=bottom, label=label, picture=picture, span=span)


def _read(text: str, report: MediaReport) -> Iterator[_Found]:
    """Yield what the first format that finds something finds: an answer is in one of them."""
    for read in (_read_json_of(report), *_READERS):
        found = list(read(text))
        if found:
            yield from (each for each in found if all(map(_is_inside, each.corners)))
            return


def _is_inside(corner: tuple[float, float]) -> bool:
    """Return whether a corner is in the picture, or as near as rounding brings it."""
    return all(math.isfinite(value) and -0.05 <= value <= 1.05 for value in corner)


# --- JSON: Qwen2.5-VL, Qwen3-VL, GLM --------------------------------------------------------------------------------


def _read_json_of(report: MediaReport) -> Callable[[str], Iterator[_Found]]:
    scale = (1000.0, 1000.0)
    if report.coordinates == "pixel":
        scale = (report.resized_width, report.resized_height)
    return lambda text: _read_json(text, scale)


def _read_json(text: str, scale: tuple[float, float]) -> Iterator[_Found]:
    for entry, span in find_objects(text):
        label = next((entry[key] for key in _LABEL_KEYS if isinstance(entry.get(key), str)), "")
        picture = next((entry[key] for key in ("picture", "image") if type(entry.get(key)) is int), None)
        values = _numbers_of(entry, _BOX_KEYS, 4) or _numbers_of(entry, _POINT_KEYS, 2)
        if values:
            yield _Found(str(label), _pair(values, scale), span, picture)


def find_objects(text: str) -> Iterator[tuple[Mapping[str, Any], tuple[int, int]]]:
    """Yield the objects of a JSON list in an answer with their (start, stop): of its first fenced block, if it has one,
    and those before the place where it was cut off."""
    fenced = _FENCE.search(text)
    begin, end = fenced.span(1) if fenced else (0, len(text))
    for written in itertools.islice(_OBJECT.finditer(text, begin, end), MAX_SHAPES):
        try:
            yield json.loads(written[0]), written.span()
        except ValueError:
            continue


def _numbers_of(entry: Mapping[str, Any], keys: Sequence[str], count: int) -> list[float]:
    """Return so many numbers, which one of the keys has; or none."""
    values = next((entry[key] for key in keys if key in entry), None)
    if not isinstance(values, list) or len(values) != count or any(type(v) not in (int, float) for v in values):
        return []
    return [float(value) for value in values]


def _pair(values: Sequence[float], scale: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    return tuple((x / scale[0], y / scale[1]) for x, y in zip(values[::2], values[1::2]))


# --- tags -----------------------------------------------------------------------------------------------------------


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBERS.findall(text)]


_POINT_TAG = re.compile(r"<points?\s([^<>]{1,100000})>([^<]{0,200})</points?>")
_POINT_FIELD = re.compile(r'([xy])(\d{0,4})="([^"]{1,20})"')
_ALT = re.compile(r'alt="([^"]*)"')


def _read_molmo(text: str) -> Iterator[_Found]:
    """Percent: <point x="10.5" y="20" alt="cat">cat</point>, <points x1="…" y1="…" x2="…" …>."""
    for tag in _POINT_TAG.finditer(text):
        alt = _ALT.search(tag[1])
        found: dict[str, dict[str, float]] = {}
        for axis, index, value in _POINT_FIELD.findall(tag[1]):
            if _NUMBERS.fullmatch(value.strip()):
                found.setdefault(index, {})[axis] = float(value)
        for place in found.values():
            if len(place) == 2:
                yield _Found(alt[1] if alt else tag[2].strip(), ((place["x"] / 100, place["y"] / 100),), tag.span())


_LOC = re.compile(r"((?:<loc\d{4}>\s?){4})(?:<seg\d{3}>\s?){0,64}([^<;\n]{0,200})")


def _read_paligemma(text: str) -> Iterator[_Found]:
    """1024ths, y first: <loc0100><loc0200><loc0300><loc0400> cat ; …"""
    for found in _LOC.finditer(text):
        top, left, bottom, right = (int(number) / 1024 for number in re.findall(r"\d{4}", found[1]))
        yield _Found(found[2].strip(), ((left, top), (right, bottom)), found.span())


_LABEL_CHARS = 200
_TAGS = re.compile(
    r"</?(?:ref|box|quad|s)>|<\|/?(?:ref|det)\|>|<\|object_ref_(?:start|end)\|>|<\|(?:box|quad)_(?:start|end)\|>"
    r"|<\|(?:begin|end)_of_box\|>"
)


def _label_before(text: str, done: int, start: int) -> tuple[str, int]:
    """Return the label that stands in front of `start` and behind `done`, with or without tags around it, and where it
    begins: at `start` without one."""
    pieces = [piece.strip(" ,;.:") for piece in _TAGS.split(text[max(done, start - _LABEL_CHARS) : start])]
    last = next((piece for piece in reversed(pieces) if piece.strip()), "")
    label = last.rpartition("\n")[2].strip(" ,;.:[](){}<>|")
    return label, text.rfind(label, max(done, start - _LABEL_CHARS), start) if label else start


_FLORENCE = re.compile(r"(?:<loc_\d{1,3}>){4,400}")


def _read_florence(text: str) -> Iterator[_Found]:
    """Thousand bins: cat<loc_10><loc_20><loc_30><loc_40>, and polygons of more of them."""
    label, done = "", 0
    for found in _FLORENCE.finditer(text):
        own, begin = _label_before(text, done, found.start())
        label = own or label  # boxes of one label follow each other
        done = found.end()
        values = [int(number) + 0.5 for number in re.findall(r"\d{1,3}", found[0])]
        if len(values) % 2 == 0:
            yield _Found(label, _pair(values, (1000, 1000)), (begin, done))


_KOSMOS = re.compile(
    r"(?:<phrase>([^<]{0,200})</phrase>)?\s?<object>((?:<patch_index_\d{4}>|</delimiter_of_multi_objects/>){1,4096})"
)


def _read_kosmos(text: str) -> Iterator[_Found]:
    """Cells of a grid of 32 x 32: <phrase>a cat</phrase><object><patch_index_0044><patch_index_0863></object>."""
    for found in _KOSMOS.finditer(text):
        cells = [int(number) for number in re.findall(r"\d{4}", found[2])]
        for first, last in zip(cells[::2], cells[1::2]):
            (top, left), (bottom, right) = divmod(first, _KOSMOS_CELLS), divmod(last, _KOSMOS_CELLS)
            yield _Found(
                (found[1] or "").strip(),
                (
                    ((left + 0.5) / _KOSMOS_CELLS, (top + 0.5) / _KOSMOS_CELLS),
                    ((right + 0.5) / _KOSMOS_CELLS, (bottom + 0.5) / _KOSMOS_CELLS),
                ),
                found.span(),
            )


_QUAD = rf"\({_NUMBER},{_NUMBER}\)"
_QWEN = re.compile(rf"{_QUAD}(?:\s?,\s?{_QUAD}){{1,3}}")


def _read_qwen(text: str) -> Iterator[_Found]:
    """Thousandths, of Qwen-VL and Qwen2-VL: <ref>cat</ref><box>(10,20),(30,40)</box>."""
    done = 0
    for found in _QWEN.finditer(text):
        label, begin = _label_before(text, done, found.start())
        done = found.end()
        yield _Found(label, _pair(_numbers(found[0]), (1000, 1000)), (begin, done))


_LISTS = re.compile(rf"\[\s?({_FOUR}(?:\s?,\s?{_FOUR}){{0,1000}})\s?\]")


def _read_lists_of(text: str) -> Iterator[_Found]:
    """[[x1, y1, x2, y2], …], behind a label: of InternVL and GLM in thousandths, of DeepSeek in 999ths."""
    scale = 999 if "<|det|>" in text or "<|ref|>" in text else 1000
    done = 0
    for found in _LISTS.finditer(text):
        label, begin = _label_before(text, done, found.start())
        for four in _FOURS.finditer(text, *found.span(1)):
            yield _Found(label, _pair(_numbers(four[0]), (scale, scale)), (begin, four.end()))
            begin = four.end()
        done = found.end()


_READERS: Iterable[Callable[[str], Iterator[_Found]]] = (
    _read_molmo, _read_paligemma, _read_florence, _read_kosmos, _read_lists_of, _read_qwen,
)  # fmt: skip
