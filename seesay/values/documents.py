"""Documents: which of their pages are taken, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from seesay.errors import ErrorCode, RequestError, show

TextLayer = Literal["none", "auto"]
PageRange = tuple[int, int | None]
"""Numbers of the first and the last page, from 1. None: the last one that there is."""

DOCUMENT_SUFFIXES = (".pdf", ".tif", ".tiff")
DEFAULT_DPI, MIN_DPI, MAX_DPI = 144, 18, 1200
DOCUMENT_OPTIONS = frozenset({"pages", "dpi", "text_layer", "filename"})
_MAX_RANGES = 1024
_RANGE = re.compile(r"\s*(\d{1,7})\s*(?:(-)\s*(\d{1,7})?)?\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """Which pages of a document are taken, and how.

    ranges: of the pages, in the order in which they are taken; None: all of them.
    dpi: pixels per inch of the pictures of PDF pages. Those of a TIFF have the pixels that they have.
    text_layer: "auto" puts the text that a page has itself behind its picture.
    filename: names the document in the prompt and in messages.
    """

    ranges: tuple[PageRange, ...] | None = None
    dpi: int = DEFAULT_DPI
    text_layer: TextLayer = "none"
    filename: str = ""

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> DocumentOptions:
        """Return options given as `pages`, `dpi`, `text_layer` and `filename`. Raises `RequestError` that names the bad
        one."""
        dpi, text_layer = options.get("dpi", DEFAULT_DPI), options.get("text_layer", "none")
        filename = options.get("filename", "")
        if not isinstance(dpi, int) or isinstance(dpi, bool) or not MIN_DPI <= dpi <= MAX_DPI:
            raise _refuse("dpi", f"must be a whole number from {MIN_DPI} to {MAX_DPI}, got {show(dpi)}")
        if text_layer not in ("none", "auto"):
            raise _refuse("text_layer", f"must be 'none' or 'auto', got {show(text_layer)}")
        if not isinstance(filename, str) or len(filename) > 1024:
            raise _refuse("filename", f"must be a text of at most 1024 characters, got {show(filename)}")
        ranges = None if options.get("pages") is None else parse_pages(options["pages"])
        return cls(ranges=ranges, dpi=dpi, text_layer=text_layer, filename=filename)


def parse_pages(pages: object) -> tuple[PageRange, ...]:
    """Return the ranges that "1-3,7" or "5-" names; a number is one page. Raises `RequestError`."""
    if isinstance(pages, int) and not isinstance(pages, bool):
        pages = str(pages)
    pieces = pages.split(",", _MAX_RANGES) if isinstance(pages, str) else []
    ranges = [found for piece in pieces[:_MAX_RANGES] if (found := _read_range(piece)) is not None]
    if not ranges or len(ranges) != len(pieces):
        raise _refuse("pages", f"must be pages and ranges of them from 1, such as '1-3,7' or '5-', got {show(pages)}")
    return tuple(ranges)


def _read_range(piece: str) -> PageRange | None:
    found = _RANGE.fullmatch(piece)
    if found is None:
        return None
    first = int(found[1])
    last = int(found[3]) if found[3] else None if found[2] else first
    return None if first < 1 or (last is not None and last < first) else (first, last)


def _refuse(name: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"{name} {why}", name)
