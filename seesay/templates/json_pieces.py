"""JSON text, made in short calls: `json.dumps` of a large value keeps the GIL from all other threads until its end."""

from __future__ import annotations

import json
from typing import NamedTuple

_encoder = json.JSONEncoder(ensure_ascii=False)


class PieceSizes(NamedTuple):
    """The most that is encoded in one call: characters of a text, items of a list, and of a value as a whole."""

    slice_chars: int = 1 << 16
    batch: int = 32  # a number may have 4300 digits, which take 0.2 ms
    short_chars: int = 1 << 12  # takes some microseconds


_SIZES = PieceSizes()


def dump_in_pieces(value: object, sizes: PieceSizes = _SIZES) -> list[str]:
    """Return `json.dumps(value, ensure_ascii=False)` in pieces. `value` holds plain JSON values, its keys are texts."""
    if _count_down(value, sizes.short_chars) >= 0:
        return [_encoder.encode(value)]
    pieces: list[str] = []
    _add(value, pieces, sizes)
    return pieces


def _count_down(value: object, num_left: int) -> int:
    """Return `num_left` less the characters of `value`, or a little more; something below 0 once it is certain."""
    if isinstance(value, str):
        return num_left - len(value) - 4
    if isinstance(value, dict):
        for key, item in value.items():
            num_left = _count_down(item, num_left - len(key) - 4)
            if num_left < 0:
                break
    elif isinstance(value, list | tuple):
        for item in value:
            num_left = _count_down(item, num_left - 2)
            if num_left < 0:
                break
    elif isinstance(value, int):
        num_left -= value.bit_length() // 3 + 1
    else:
        num_left -= 24
    return num_left


def _add(value: object, pieces: list[str], sizes: PieceSizes) -> None:
    if isinstance(value, str):
        _add_text(value, pieces, sizes.slice_chars)
    elif isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            pieces.append(before)
            _add_text(key, pieces, sizes.slice_chars)
            pieces.append(": ")
            _add(item, pieces, sizes)
            before = ", "
        pieces.append("}" if value else "{}")
    elif isinstance(value, list | tuple):
        _add_list(value, pieces, sizes)
    else:
        pieces.append(_encoder.encode(value))


def _add_text(text: str, pieces: list[str], slice_chars: int) -> None:
    if len(text) <= slice_chars:
        pieces.append(_encoder.encode(text))
        return
    pieces.append('"')
    pieces += (_encoder.encode(text[start : start + slice_chars])[1:-1] for start in range(0, len(text), slice_chars))
    pieces.append('"')


def _add_list(values: list[object] | tuple[object, ...], pieces: list[str], sizes: PieceSizes) -> None:
    before = "["
    for start in range(0, len(values), sizes.batch):
        batch = values[start : start + sizes.batch]
        if any(isinstance(item, str | dict | list | tuple) for item in batch):
            for item in batch:
                pieces.append(before)
                _add(item, pieces, sizes)
                before = ", "
        else:
            pieces.append(before + _encoder.encode(batch)[1:-1])
            before = ", "
    pieces.append("]" if values else "[]")
