"""A conversation as JSON, which the visitor's browser stores. What the browser sends back is not trusted: every field
is validated, and files must be in the upload folders."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seesay.ui.conversation import STOPPED, Seen, Turn

MAX_TURNS = 1000
MAX_FILES = 100
MAX_CHARACTERS = 1_000_000
_MAX_FRAMES = 10_000
_MAX_NUMBER = 1 << 40
_ID = re.compile(r"[0-9a-f]{8,64}")
_USAGE = ("prompt_tokens", "completion_tokens")
_MEDIA_COUNTS = ("vision_tokens", "audio_tokens")
_TIMINGS = (
    "fetch_s", "decode_media_s", "preprocess_s", "encode_queue_s", "encode_s", "prefill_s", "decode_s",
    "time_to_first_token_s", "total_s",
)  # fmt: skip
_REPORT = (
    "num_frames", "height", "width", "resized_height", "resized_width", "num_tiles", "num_patches", "num_tokens",
)  # fmt: skip


def make_record(record_id: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the record for the browser to store. A record without turns deletes the conversation there."""
    return {"id": record_id, "turns": [_turn_as_json(turn) for turn in turns]}


def read_record(record: Any, *, accepts: Callable[[str], bool]) -> tuple[str, tuple[Turn, ...]]:
    """Return the id and the turns of a record of `make_record`. `accepts` decides whether a path may be read.

    An unfinished answer is restored as a stopped one. Raises ValueError for anything but a valid record.
    """
    record_id = record.get("id") if isinstance(record, Mapping) else None
    if not isinstance(record_id, str) or not _ID.fullmatch(record_id):
        raise ValueError(f"id must be 8 to 64 hexadecimal digits, got {record_id!r:.40}")
    turns = _list(record.get("turns"), "turns", MAX_TURNS)
    return record_id, tuple(_read_turn(turn, accepts) for turn in turns)


def _turn_as_json(turn: Turn) -> dict[str, Any]:
    seen = turn.seen
    return {
        "text": turn.text,
        "files": list(turn.files),
        "answer": turn.answer,
        "error": turn.error,
        "note": turn.note,
        "seen": None if seen is None else _seen_as_json(seen),
        "is_done": turn.is_done,
    }


def _seen_as_json(seen: Seen) -> dict[str, object]:
    details = seen.usage.get("prompt_tokens_details")
    counts = _numbers(details, _MEDIA_COUNTS) if isinstance(details, Mapping) else {}
    return {
        "usage": {**_numbers(seen.usage, _USAGE), **counts},
        "timings": _numbers(seen.timings, _TIMINGS),
        "media": [_report_as_json(report) for report in seen.media],
        "first_s": seen.first_s,
        "total_s": seen.total_s,
    }


def _report_as_json(report: Mapping[str, object]) -> dict[str, object]:
    return {
        **_numbers(report, _REPORT),
        "modality": modality if (modality := report.get("modality")) in ("video", "audio") else "image",
        **_numbers(report, ("page", "audio_s")),
        "is_cached": bool(report.get("is_cached")),
        "timestamps_s": _times(report.get("timestamps_s")),
        "coordinates": "pixel" if report.get("coordinates") == "pixel" else "thousandth",
    }


def _read_turn(turn: object, accepts: Callable[[str], bool]) -> Turn:
    if not isinstance(turn, Mapping):
        raise ValueError(f"turns must be objects, got {type(turn).__name__}")
    files = [_text(path, "files") for path in _list(turn.get("files"), "files", MAX_FILES)]
    for path in files:
        if not accepts(path):
            raise ValueError(f"files must be uploads, got {path!r:.80}")
    error = turn.get("error")
    return Turn(
        text=_text(turn.get("text"), "text"),
        files=tuple(files),
        answer=_text(turn.get("answer"), "answer"),
        error=None if error is None else _text(error, "error"),
        note=_text(turn.get("note"), "note") if turn.get("is_done") else STOPPED,
        seen=None if turn.get("seen") is None else _read_seen(turn["seen"]),
        is_done=True,
    )


def _read_seen(seen: object) -> Seen:
    if not isinstance(seen, Mapping):
        raise ValueError(f"seen must be an object, got {type(seen).__name__}")
    usage: dict[str, Any] = _numbers(_object(seen, "usage"), _USAGE)
    counts = _numbers(_object(seen, "usage"), _MEDIA_COUNTS)
    if counts:
        usage["prompt_tokens_details"] = counts
    return Seen(
        usage=usage,
        timings=_numbers(_object(seen, "timings"), _TIMINGS),
        media=tuple(_read_report(report) for report in _list(seen.get("media"), "media", MAX_FILES * MAX_TURNS)),
        **_numbers(seen, ("first_s", "total_s")),
    )


def _read_report(report: object) -> dict[str, Any]:
    if not isinstance(report, Mapping):
        raise ValueError(f"media must be objects, got {type(report).__name__}")
    numbers, least = _numbers(report, _REPORT), 0 if report.get("modality") == "audio" else 1
    is_valid = all(isinstance(number, int) and number >= least for number in numbers.values())
    if len(numbers) != len(_REPORT) or not is_valid:
        raise ValueError("sizes of media must be positive integers")
    return _report_as_json({**report, **numbers})


def _times(values: Any) -> list[float]:
    """Return `values` if it is a list of times in seconds, else an empty list: servers of others report none."""
    is_list = isinstance(values, (list, tuple)) and len(values) <= _MAX_FRAMES
    is_valid = is_list and all(type(value) in (int, float) and 0 <= value <= _MAX_NUMBER for value in values)
    return list(values) if is_valid else []


def _object(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {type(value).__name__}")
    return value


def _list(value: object, name: str, max_items: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > max_items:
        raise ValueError(f"{name} must be a list of at most {max_items} items")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
        raise ValueError(f"{name} must be a string of at most {MAX_CHARACTERS} characters")
    return value


def _numbers(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the entries of `names` that are finite numbers of at least 0. Others are left out."""
    found = {name: values[name] for name in names if type(values.get(name)) in (int, float)}
    return {name: number for name, number in found.items() if math.isfinite(number) and 0 <= number <= _MAX_NUMBER}
