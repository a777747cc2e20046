"""Limits on the structure of a JSON body, checked on its bytes as they arrive, before it is parsed.

A parser builds objects that are many times larger than their source (`[],` becomes 64 bytes), in one call that holds
the GIL. The limits bound the memory and the pause that parsing can cost, whatever the size of the body. A long ASCII
string with few escapes, such as a picture in base64, is cheap to parse and is not limited.
"""

from __future__ import annotations

from dataclasses import dataclass

from seesay.serving.errors import bad_request

MAX_DEPTH = 64
MAX_CONTAINERS = 1 << 14
MAX_STRINGS = 1 << 16
MAX_VALUES = 1 << 18
MAX_ESCAPES = 1 << 20
MAX_UNICODE_BYTES = 4 << 20

_BYTES_PER_VALUE = 8  # outside of strings: digits, commas, whitespace
_WINDOW_BYTES = 1 << 16
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING = frozenset(b"[{")


@dataclass(slots=True)
class BodyShape:
    """Count the parts of a JSON body. `add` takes its pieces in order and raises `ApiError` 400 above a limit.

    max_values: largest number of values; prompts of token ids have many. In an invalid body, counts are correct up to
    the fault and meaningless after it; the parser refuses such a body later.
    """

    max_values: int = MAX_VALUES
    _depth: int = 0
    _num_containers: int = 0
    _num_quotes: int = 0
    _num_values: int = 1
    _num_escapes: int = 0
    _num_outside_bytes: int = 0
    _num_unicode_bytes: int = 0
    _is_in_string: bool = False
    _num_ascii_bytes: int = 0  # in the open string, before its first non-ASCII character
    _is_unicode: bool = False  # the open string has a non-ASCII character
    _ends_in_backslash: bool = False

    def add(self, piece: bytes) -> None:
        """Count the next bytes of the body."""
        for start in range(0, len(piece), _WINDOW_BYTES):
            self._add_window(piece[start : start + _WINDOW_BYTES])

    def _add_window(self, window: bytes) -> None:
        has_escapes = self._ends_in_backslash or b"\\" in window
        if has_escapes:
            window = self._drop_escapes(window)
        num_allowed = 2 * MAX_STRINGS + 1 - self._num_quotes
        segments = window.split(b'"', num_allowed)
        self._num_quotes += len(segments) - 1
        _check((self._num_quotes + 1) // 2, MAX_STRINGS, "strings")
        first_inside = 0 if self._is_in_string else 1
        self._add_outside(b"".join(segments[1 - first_inside :: 2]))
        is_ascii = window.isascii() and not (has_escapes and b"\\u" in window)
        self._add_inside(segments[first_inside::2], is_ascii)
        self._is_in_string ^= len(segments) % 2 == 0

    def _drop_escapes(self, window: bytes) -> bytes:
        """Remove escaped quotes and backslashes, so that every remaining quote begins or ends a string."""
        if self._ends_in_backslash:
            window = b"\\" + window
        self._num_escapes += window.count(b"\\")
        _check(self._num_escapes, MAX_ESCAPES, "backslashes")
        window = window.replace(b"\\\\", b"").replace(b'\\"', b"")
        self._ends_in_backslash = window.endswith(b"\\")
        return window[:-1] if self._ends_in_backslash else window

    def _add_outside(self, outside: bytes) -> None:
        """Count the bytes between strings."""
        self._num_outside_bytes += len(outside)
        _check(self._num_outside_bytes, _BYTES_PER_VALUE * self.max_values, "bytes outside of strings")
        self._num_values += outside.count(b",")
        _check(self._num_values, self.max_values, "values")
        brackets = outside.translate(None, _NOT_BRACKETS)
        self._num_containers += brackets.count(b"[") + brackets.count(b"{")
        _check(self._num_containers, MAX_CONTAINERS, "arrays and objects")
        for bracket in brackets:
            self._depth += 1 if bracket in _OPENING else -1
            if self._depth > MAX_DEPTH:
                raise bad_request(
                    f"the body is nested too deeply: at most {MAX_DEPTH} levels are allowed", code="body_too_complex"
                )

    def _add_inside(self, parts: list[bytes], is_ascii: bool) -> None:
        """Count the bytes of non-ASCII strings. Each of their characters takes up to four bytes in memory."""
        if is_ascii and len(parts) > 2:
            parts = [parts[0], parts[-1]]  # the strings in between begin and end here, and are ASCII
        for index, part in enumerate(parts):
            if index or not self._is_in_string:
                self._num_ascii_bytes, self._is_unicode = 0, False
            self._num_ascii_bytes += len(part)
            if self._is_unicode or not (is_ascii or (part.isascii() and b"\\u" not in part)):
                self._is_unicode = True
                self._num_unicode_bytes += self._num_ascii_bytes
                self._num_ascii_bytes = 0
        _check(self._num_unicode_bytes, MAX_UNICODE_BYTES, "bytes in texts that are not ASCII")


def _check(count: int, most: int, what: str) -> None:
    if count > most:
        raise bad_request(f"the body has too many {what}: at most {most} are allowed", code="body_too_complex")
