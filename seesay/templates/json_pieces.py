"""JSON text, made in short calls: `json.dumps` of a large value keeps the GIL from all other threads until its end."""

from __future__ import annotations

import json
from typing import Any

_SLICE_CHARS = 1 << 16
_BATCH = 32  # a number may have 4300 digits, which take 0.2 ms

_encoder = json.JSONEncoder(ensure_ascii=False)


def dump_in_pieces(value: Any) -> list[str]:
    """Return `json.dumps(value, ensure_ascii=False)` in pieces. `value` holds plain JSON values, its keys are texts."""
    pieces: list[str] = []
    _add(value, pieces)
    return pieces


def _add(value: Any, pieces: list[str]) -> None:
    if isinstance(value, str):
        _add_text(value, pieces)
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            pieces.append(before)
            _add_text(key, pieces)
            pieces.append(": ")
            _add(item, pieces)
            before = ", "
        pieces.append("}" if value else "{}")
    elif isinstance(value, list | tuple):
        _add_list(value, pieces)
    else:
        pieces.append(_encoder.encode(value))


def _add_text(text: str, pieces: list[str]) -> None:
    if len(text) <= _SLICE_CHARS:
        pieces.append(_encoder.encode(text))
        return
    pieces.append('"')
    pieces += (_encoder.encode(text[start : start + _SLICE_CHARS])[1:-1] for start in range(0, len(text), _SLICE_CHARS))
    pieces.append('"')


def _add_list(values: list[Any] | tuple[Any, ...], pieces: list[str]) -> None:
    before = "["
    for start in range(0, len(values), _BATCH):
        batch = values[start : start + _BATCH]
        if any(isinstance(item, str | dict | list | tuple) for item in batch):
            for item in batch:
                pieces.append(before)
                _add(item, pieces)
                before = ", "
        else:
            pieces.append(before + _encoder.encode(batch)[1:-1])
            before = ", "
    pieces.append("]" if values else "[]")
