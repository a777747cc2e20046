"""Reads times from answers about videos: of JSON entries (`start`, `end`, `timestamp`), clocks (1:02.5), seconds, and
numbers of frames.

Times are made seconds of the video that the user gave: a frame, counted from 1 as in prompts, has the time at which it
was taken. Special tokens may have been left out of the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from seesay.values import MediaReport, Modality
from seesay.values.shapes import Timestamp
from seesay.vl.grounding import MAX_SHAPES, find_objects

_Times = tuple[float, ...]
_START_KEYS = ("start", "start_time", "start_s", "begin", "from")
_END_KEYS = ("end", "end_time", "end_s", "stop", "to")
_TIME_KEYS = ("timestamp", "timestamps", "time", "time_s", "segment")
_LABEL_KEYS = ("description", "caption", "event", "label", "activity", "sentence", "text", "name")
_LABEL_CHARS = 200

_DASH = "[-\u2013\u2014]"
_CLOCK = r"\d{1,2}:\d{2}:\d{2}(?:\.\d{1,6})?|\d{1,3}:\d{2}(?:\.\d{1,6})?"
_PLAIN = r"\d{1,6}(?:\.\d{1,6})?"
_UNIT = r"\s?(?:s|secs?|seconds?)\b"
_TIME = rf"(?:{_CLOCK}|{_PLAIN}{_UNIT})"
_TO = rf"\s?>?\s{{0,3}}(?:(?(between)and\b|(?:{_DASH}|to\b|until\b)))\s{{0,3}}<?\s?"
_SPOKEN = re.compile(
    rf"(?<![\w.:])(?:(?P<between>between\s{{1,3}}<?)?(?P<start>{_CLOCK}|{_PLAIN}(?:{_UNIT})?){_TO}(?P<end>{_TIME})"
    rf"|(?P<at>{_TIME})"
    rf"|frames?[ -]?(?P<first>\d{{1,5}})(?:\s{{0,3}}(?:{_DASH}|to\b)\s{{0,3}}(?:frame[ -]?)?(?P<last>\d{{1,5}}))?)"
    r"(?!\w|:\d)",
    re.IGNORECASE,
)
_CLOCK_ALONE = re.compile(_CLOCK)
_NUMBER = re.compile(_PLAIN)
_EDGES = " \t,;.:-\u2013\u2014<>()[]{}*|\"'"


class _Found(NamedTuple):
    """A time in a video, in seconds, and where the text says so."""

    times: tuple[float, float]
    label: str
    span: tuple[int, int]
    video: int | None = None


def find_timestamps(text: str, media: Sequence[MediaReport]) -> tuple[Timestamp, ...]:
    """Return the times that an answer has of the videos of its prompt, which `media` report, in its order. Where it
    does not say which video it means, it is the last one. Times outside of the video are left out."""
    videos = _list_videos(media)
    if not videos:
        return ()
    found = list(itertools.islice(_read_json(text, videos[-1]), MAX_SHAPES))
    found = found or list(itertools.islice(_read_text(text, videos[-1]), MAX_SHAPES))
    placed = (_place(each, videos) for each in found)
    return tuple(each for each in placed if each is not None)


def _list_videos(media: Sequence[MediaReport]) -> list[_Times]:
    """Return the times of the frames of each video. Of a model that takes pictures only, each frame has a report."""
    videos: list[_Times] = []
    is_going_on = False
    for report in media:
        is_frame = report.modality is Modality.IMAGE and bool(report.timestamps_s)
        if is_frame and is_going_on and report.timestamps_s[0] > videos[-1][-1]:
            videos[-1] += report.timestamps_s
        elif is_frame or report.modality is Modality.VIDEO:
            videos.append(report.timestamps_s)
        is_going_on = is_frame
    return videos


def _place(found: _Found, videos: Sequence[_Times]) -> Timestamp | None:
    """Return a time of a video; None if there is no such video, or it has no such time."""
    video = len(videos) - 1 if found.video is None else found.video
    if not 0 <= video < len(videos) or not videos[video]:
        return None
    start_s, end_s = sorted(found.times)
    times = videos[video]
    # The video goes on behind the last frame that was taken, at most as long as the gap to the next one would be.
    slack_s = max(1.0, times[-1] - times[-2] if len(times) > 1 else 0.0)
    if end_s > times[-1] + slack_s:
        return None
    return Timestamp(start_s=start_s, end_s=end_s, label=found.label, video=video, span=found.span)


def _read_json(text: str, frames: _Times) -> Iterator[_Found]:
    for entry, span in find_objects(text):
        times = _times_of(entry, frames)
        if times is not None:
            label = next((entry[key] for key in _LABEL_KEYS if isinstance(entry.get(key), str)), "")
            video = entry.get("video")
            yield _Found(times, label, span, video if type(video) is int else None)


def _times_of(entry: Mapping[str, Any], frames: _Times) -> tuple[float, float] | None:
    start, end = _value_of(entry, _START_KEYS), _value_of(entry, _END_KEYS)
    if start is None or end is None:
        start = end = _value_of(entry, _TIME_KEYS)
        if isinstance(start, str):
            return next((found.times for found in _read_text(start, frames)), None)
        if isinstance(start, list) and len(start) == 2:
            start, end = start
    start_s, end_s = _read_time(start), _read_time(end)
    return None if start_s is None or end_s is None else (start_s, end_s)


def _value_of(entry: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value of the first of the keys that an entry has."""
    return next((entry[key] for key in keys if key in entry), None)


def _read_text(text: str, frames: _Times) -> Iterator[_Found]:
    spoken = list(itertools.islice(_SPOKEN.finditer(text), MAX_SHAPES))
    for i, found in enumerate(spoken):
        times = _spoken_times(found, frames)
        if times is None:
            continue
        before = text[spoken[i - 1].end() if i else 0 : found.start()].rpartition("\n")[2]
        after = text[found.end() : spoken[i + 1].start() if i + 1 < len(spoken) else None].partition("\n")[0]
        label = after.strip(_EDGES) or before.strip(_EDGES)
        yield _Found(times, label[:_LABEL_CHARS], found.span())


def _spoken_times(found: re.Match[str], frames: _Times) -> tuple[float, float] | None:
    if found["first"] is not None:
        first, last = int(found["first"]), int(found["last"] or found["first"])
        return (
            (frames[first - 1], frames[last - 1]) if 1 <= min(first, last) <= max(first, last) <= len(frames) else None
        )
    start_s, end_s = _read_time(found["start"] or found["at"]), _read_time(found["end"] or found["at"])
    return None if start_s is None or end_s is None else (start_s, end_s)


def _read_time(value: object) -> float | None:
    """Return the seconds of a number, of a clock (1:02:03.5), or of a text such as "3.5 seconds"."""
    if type(value) in (int, float):
        return float(value) if 0 <= value < 1e7 else None  # type: ignore[operator, arg-type]
    if not isinstance(value, str):
        return None
    if clock := _CLOCK_ALONE.search(value):
        seconds = 0.0
        for piece in clock[0].split(":"):
            seconds = 60 * seconds + float(piece)
        return seconds
    number = _NUMBER.search(value)
    return float(number[0]) if number else None
