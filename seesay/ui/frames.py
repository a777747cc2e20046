"""The frames of a video that the model saw, with their times. The browser draws them from the video (frames.js)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from seesay.ui.conversation import is_document, is_video
from seesay.ui.thumbnails import make_address

MAX_SHOWN = 64
"""Most frames that are drawn of one video. Of more, as many are taken evenly."""

_MANY = 8
_SUMS = ("num_frames", "num_tiles", "num_patches", "num_tokens")

Report = Mapping[str, Any]


def group_reports(files: Sequence[str], reports: Sequence[Report]) -> list[tuple[str, Report]]:
    """Return each file with its report: those of a document's pages, or of a video's frames, are added up."""
    return [
        (path, _add(path, own) if _is_frame(own[0]) or is_document(path) else own[0])
        for path, own in split_reports(files, reports)
    ]


def split_reports(files: Sequence[str], reports: Sequence[Report]) -> list[tuple[str, Sequence[Report]]]:
    """Return each file with its reports. A document has one for each page, and for a model that takes pictures only a
    video has one for each frame, as a picture that has a time."""
    pairs: list[tuple[str, Sequence[Report]]] = []
    start = 0
    for path in files:
        if start >= len(reports):
            break
        stop = start + 1
        while stop < len(reports) and _belongs(path, reports[stop - 1], reports[stop]):
            stop += 1
        pairs.append((path, reports[start:stop]))
        start = stop
    return pairs


def make_frames(path: str, report: Report) -> str:
    """Return HTML of the frames of a video, with their times. Empty for a picture, and where no times are reported."""
    times_s = report.get("timestamps_s") or ()
    if not times_s or not is_video(path):
        return ""
    shown = [times_s[i * len(times_s) // MAX_SHOWN] for i in range(MAX_SHOWN)] if len(times_s) > MAX_SHOWN else times_s
    ratio = report["width"] / report["height"]
    canvas = f'<canvas role="img" style="aspect-ratio: {ratio:.3f}"'
    frames = "".join(
        f'<li>{canvas} aria-label="Frame at {text}"></canvas><span>{text}</span></li>'
        for text in map(format_time, shown)
    )
    note = f"{len(shown)} of the {len(times_s):,} frames, at even distances" if len(shown) < len(times_s) else ""
    # Many of them scroll, also with the arrow keys.
    focus = f' tabindex="0" aria-label="{len(shown)} frames"' if len(shown) > _MANY else ""
    return (
        f'<ol class="seesay-frames"{focus} data-video="{escape(make_address(path))}" '
        f'data-times="{json.dumps(list(shown))}">{frames}</ol><span class="seesay-frames-note">{note}</span>'
    )


def format_time(time_s: float) -> str:
    """Return a time in a video, such as 2.50 s or 1:02:03.5."""
    if time_s < 59.995:
        return f"{time_s:.2f} s"
    minutes, seconds = divmod(round(time_s, 1), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{seconds:04.1f}" if hours else f"{minutes}:{seconds:04.1f}"


def _is_frame(report: Report) -> bool:
    return report.get("modality") != "video" and bool(report.get("timestamps_s"))


def _belongs(path: str, one: Report, other: Report) -> bool:
    """Return whether two reports are of one file."""
    if is_document(path):
        return (other.get("page") or 0) > (one.get("page") or 0)
    return is_video(path) and _follows(one, other)


def _follows(one: Report, other: Report) -> bool:
    """Return whether two frames are of one video: the times of the next one begin again."""
    return _is_frame(one) and _is_frame(other) and other["timestamps_s"][0] > one["timestamps_s"][0]


def _add(path: str, reports: Sequence[Report]) -> Report:
    return {
        **reports[0],
        **{name: sum(report[name] for report in reports) for name in _SUMS},
        "modality": "document" if is_document(path) else "video",
        "is_cached": all(report["is_cached"] for report in reports),
        "timestamps_s": [time_s for report in reports for time_s in report["timestamps_s"]],
    }
