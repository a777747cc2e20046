"""Messages of the libraries that decode pictures, as records of the log instead of lines on standard error.

libtiff prints what it finds wrong with a file, a line for each line of pixels, and Pillow warns of damaged metadata.
Their messages are taken by handlers that are set once for the process; warnings of other code are shown as before.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger("seesay")

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request for which a picture is decoded, as its log lines name it; empty for one of Python's own callers."""

_MAX_MESSAGES, _MAX_CHARS = 3, 200
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p)
_local = threading.local()


@contextlib.contextmanager
def logged_messages(name: str) -> Iterator[None]:
    """Log what libraries say inside of the block, in this thread, about the picture that messages call `name`."""
    _take_over()
    if getattr(_local, "found", None) is not None:  # inside of another block
        yield
        return
    _local.found, _local.num_found = [], 0
    try:
        yield
    finally:
        found, count, _local.found = _local.found, _local.num_found, None
        if count:
            more = f" (and {count - len(found)} more)" if count > len(found) else ""
            given = f"{request_id.get()} ".lstrip()
            logger.warning("%s%s: %s%s", given, name, "; ".join(found), more)


def _note(text: str) -> None:
    found = getattr(_local, "found", None)
    if found is None:
        return
    _local.num_found += 1
    if len(found) < _MAX_MESSAGES:
        printable = "".join(char if char.isprintable() else " " for char in text[:_MAX_CHARS])
        found.append(printable.strip())


@cache
def _take_over() -> None:
    """Set the handler of warnings, and libtiff's where Pillow has loaded it: once."""
    shown = warnings.showwarning

    def show(message: Warning | str, *args: Any, **options: Any) -> None:
        if getattr(_local, "found", None) is None:
            shown(message, *args, **options)
        else:
            _note(str(message))

    warnings.showwarning = show
    with contextlib.suppress(Exception):  # another system: its messages stay on standard error
        from PIL import _imaging  # noqa: F401 - loads the library

        maps = Path("/proc/self/maps").read_text()
        for path in set(re.findall(r"\S*/libtiff[^\s/]*\.so[^\s/]*", maps)):
            library = ctypes.CDLL(path)
            for setter in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
                function = getattr(library, setter)
                function.argtypes, function.restype = [_HANDLER], ctypes.c_void_p
                function(_handler)


def _handle(module: bytes | None, form: bytes | None, arguments: int | None) -> None:
    """Take a message of libtiff: a format of C with its arguments."""
    with contextlib.suppress(Exception):
        buffer = ctypes.create_string_buffer(4 * _MAX_CHARS)
        _vsnprintf(buffer, len(buffer), form, ctypes.c_void_p(arguments))
        _note(f"{(module or b'libtiff').decode('latin-1')}: {buffer.value.decode('latin-1')}")


_handler = _HANDLER(_handle)
_vsnprintf = ctypes.CDLL(None).vsnprintf
