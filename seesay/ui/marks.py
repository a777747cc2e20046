"""HTML of an answer that marks places in pictures or times in videos: its text and the pictures, where each mark is
linked with the words that say so (marks.js)."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from seesay.ui.conversation import Seen, is_document, is_video
from seesay.ui.frames import Report, format_time, split_reports
from seesay.ui.thumbnails import make_address
from seesay.values import MediaReport, Modality
from seesay.values.shapes import Box, Point, Polygon, Timestamp
from seesay.vl.grounding import find_shapes
from seesay.vl.timestamps import find_timestamps

_COLORS = ("#b91c1c", "#1d4ed8", "#15803d", "#a21caf", "#b45309", "#0f766e", "#6d28d9", "#9f1239")
"""Colors on which white text has a contrast of at least 4.5."""
_MAX_DRAWN = 16
"""Most pictures that are shown with their marks."""
_POINT_SHARE = 0.012
"""Radius of a point as a share of the longer side of its picture."""

Shape = Box | Point | Polygon


class _Picture(NamedTuple):
    path: str
    report: Report


def make_marked(text: str, seen: Seen, files: Sequence[str]) -> str:
    """Return HTML of an answer with its marks. Empty if it marks nothing: it is shown as Markdown then.

    files: of the whole conversation, in the order of the reports in `seen`.
    """
    own = [(path, report) for path, some in split_reports(files, seen.media) for report in some]
    reports = [_read_report(report) for _, report in own]
    found = find_shapes(text, reports)
    shapes: list[Shape] = sorted([*found.boxes, *found.points, *found.polygons], key=lambda shape: shape.span)
    times = find_timestamps(text, reports)
    if not (shapes or times):
        return ""
    colors = _choose_colors(shapes)
    pictures = [_Picture(path, report) for path, report in own if report["modality"] == "image"]
    figures = _make_figures(pictures, shapes, colors)
    videos = [path for path in files if is_video(path)]
    return f'<div class="seesay-marked">{figures}{_make_text(text, shapes, colors, times, videos)}</div>'


def _read_report(report: Report) -> MediaReport:
    names = (
        "num_frames",
        "height",
        "width",
        "resized_height",
        "resized_width",
        "num_tiles",
        "num_patches",
        "num_tokens",
    )
    return MediaReport(
        modality=Modality(report["modality"]),
        is_cached=bool(report.get("is_cached")),
        timestamps_s=tuple(report.get("timestamps_s") or ()),
        coordinates="pixel" if report.get("coordinates") == "pixel" else "thousandth",
        **{name: report[name] for name in names},
    )


def _choose_colors(shapes: Sequence[Shape]) -> Mapping[str, str]:
    labels = list(dict.fromkeys(shape.label for shape in shapes))
    return {label: _COLORS[i % len(_COLORS)] for i, label in enumerate(labels)}


# --- pictures ---------------------------------------------------------------------------------------------------------


def _make_figures(pictures: Sequence[_Picture], shapes: Sequence[Shape], colors: Mapping[str, str]) -> str:
    """Return HTML of the pictures that are marked, as many as are shown."""
    shown = sorted({shape.picture for shape in shapes})[:_MAX_DRAWN]
    figures = "".join(_make_figure(pictures[number], number, shapes, colors) for number in shown)
    return f'<div class="seesay-figures">{figures}</div>' if figures else ""


def _make_figure(picture: _Picture, number: int, shapes: Sequence[Shape], colors: Mapping[str, str]) -> str:
    """Return HTML of a picture with its marks. Empty if it cannot be shown here."""
    address = _find_address(picture)
    if not address:
        return ""
    width, height = picture.report["width"], picture.report["height"]
    own = [(index, shape) for index, shape in enumerate(shapes) if shape.picture == number]
    lines = "".join(_draw(shape, index, colors[shape.label], max(width, height)) for index, shape in own)
    tags = "".join(_make_tag(shape, index, colors[shape.label], width, height) for index, shape in own)
    name = escape(Path(picture.path).name)
    return (
        f'<figure class="seesay-figure" style="aspect-ratio: {width} / {height}; --ratio: {width / height:.4f}">'
        f'<img src="{address}" alt="{name} with {len(own)} {"mark" if len(own) == 1 else "marks"}">'
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">{lines}</svg>'
        f"{tags}</figure>"
    )


def _find_address(picture: _Picture) -> str:
    """Return the URL of a picture: of an upload, or of a page of a document, which is drawn here."""
    if is_video(picture.path) or not Path(picture.path).is_file():
        return ""
    if not is_document(picture.path):
        return make_address(picture.path)
    from seesay.processors.media.load import load_document

    try:
        [page] = load_document(picture.path, pages=str(picture.report["page"]), dpi=72)
    except Exception:  # the server has read the document, so the answer is valid without its page
        return ""
    file = io.BytesIO()
    page.image.convert("RGB").save(file, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"


def _draw(shape: Shape, index: int, color: str, side: float) -> str:
    """Return the SVG element of a shape."""
    more = f'data-marks="{index}" style="--mark: {color}"'
    match shape:
        case Box():
            width, height = shape.right - shape.left, shape.bottom - shape.top
            return f'<rect x="{shape.left:.1f}" y="{shape.top:.1f}" width="{width:.1f}" height="{height:.1f}" {more}/>'
        case Polygon():
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.corners)
            return f'<polygon points="{corners}" {more}/>'
        case Point():
            return f'<circle cx="{shape.x:.1f}" cy="{shape.y:.1f}" r="{_POINT_SHARE * side:.1f}" {more}/>'


def _make_tag(shape: Shape, index: int, color: str, width: float, height: float) -> str:
    """Return HTML of the label of a shape, at its upper left corner. Empty without one."""
    match shape:
        case Box():
            x, y = shape.left, shape.top
        case Polygon():
            x, y = min(shape.corners, key=lambda corner: corner[1])
        case Point():
            x, y = shape.x, shape.y
    if not shape.label:
        return ""
    place = f"left: {100 * min(max(x / width, 0), 1):.2f}%; top: {100 * min(max(y / height, 0), 1):.2f}%"
    tag = f'<span class="seesay-tag" data-marks="{index}" style="--mark: {color}; {place}">'
    return f"{tag}{escape(shape.label[:60])}</span>"


# --- text -------------------------------------------------------------------------------------------------------------


def _make_text(
    text: str, shapes: Sequence[Shape], colors: Mapping[str, str], times: Sequence[Timestamp], videos: Sequence[str]
) -> str:
    """Return HTML of the answer as it was written, with a mark for each place that names a shape, and a button for each
    that names a time."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, shape in enumerate(shapes):
        groups.setdefault(shape.span, []).append(index)
    spans = {span: _open_mark(own, colors[shapes[own[0]].label]) for span, own in groups.items()}
    for time in times:
        spans.setdefault(time.span, _open_time(time, videos))
    return f'<div class="seesay-source">{"".join(_split(text, spans))}</div>'


def _open_mark(indices: Sequence[int], color: str) -> str:
    return f'<mark tabindex="0" data-marks="{" ".join(map(str, indices))}" style="--mark: {color}">'


def _open_time(time: Timestamp, videos: Sequence[str]) -> str:
    video = make_address(videos[time.video]) if time.video < len(videos) else ""
    return (
        f'<button type="button" class="seesay-time" data-video="{escape(video)}" data-start="{time.start_s:g}" '
        f'title="Show the video at {format_time(time.start_s)}">'
    )


def _split(text: str, spans: Mapping[tuple[int, int], str]) -> Iterator[str]:
    """Yield the text in pieces, each span in the element that its tag opens. One that overlaps the one before is plain
    text."""
    done = 0
    for (start, stop), tag in sorted(spans.items()):
        if start < done or stop <= start:
            continue
        yield escape(text[done:start])
        yield f"{tag}{escape(text[start:stop])}</{tag[1:].partition(' ')[0]}>"
        done = stop
    yield escape(text[done:])
