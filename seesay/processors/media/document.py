"""A document that was read or fetched, and its pages as pictures. It is opened and drawn in another process."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np

from seesay.config import MediaLimits, Transparency
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.decoded import make_decoded
from seesay.processors.media.document_child import Job
from seesay.processors.media.document_process import DOCUMENT_PROCESS, JobRefusedError, check_installed
from seesay.processors.media.sources import describe, read_bytes
from seesay.system.hashing import digest
from seesay.values import DecodedMedia, DocumentOptions, MediaSize, Modality

WITHIN_BYTES = 1024
"""Bytes in which a PDF begins; some programs write something in front of it."""
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_OFFICE = ((b"word/", "a DOCX"), (b"ppt/", "a PPTX"), (b"xl/", "an XLSX"), (b"content.xml", "an OpenDocument"))
_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ZIP = b"PK\x03\x04"
_LOOKS_LIKE_PDF = re.compile(rb"%PDF-")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDocument:
    """The pages that are taken of a document of `num_pages`. name: what messages call it."""

    name: str
    num_pages: int
    pages: tuple[OpenedPage, ...]


class OpenedPage:
    """A page of a document, as a picture that is not drawn yet. Its methods are those of `Picture`.

    number: from 1. text: the text that the page has itself, if it was asked for.
    """

    modality = Modality.IMAGE

    def __init__(
        self, file: _File, number: int, size: tuple[int, int], *, text: str, dpi: int, transparency: Transparency
    ) -> None:
        """`size`: (width, height) in pixels."""
        self._file, self._size = file, size
        self._dpi, self._transparency = dpi, transparency
        self.number, self.text = number, text

    def size(self) -> MediaSize:
        """Return the size of the picture."""
        width, height = self._size
        return MediaSize(num_frames=1, height=height, width=width)

    def decode(self) -> DecodedMedia:
        """Draw the page, and return its pixels."""
        width, height = self._size
        job: Job = {
            "page": self.number,
            "width": width,
            "height": height,
            "num_pixels": width * height,
            "dpi": self._dpi,
            "transparency": self._transparency,
        }
        pixels = self._file.ask("draw", job)
        if len(pixels) != 3 * width * height:
            raise _damaged(self._file.name, f"page {self.number} has another size than before")
        return make_decoded(self.modality, np.frombuffer(bytearray(pixels), np.uint8).reshape(1, height, width, 3))

    @cached_property
    def content_key(self) -> bytes:
        """A hash of the document, of the page's number and of how it is drawn."""
        how = f"{self.number} {self._dpi} {self._transparency}"
        return digest(b"page", self._file.digest, how.encode())


class _File:
    """The content of a document, in a file in memory that the drawing process gets."""

    def __init__(self, content: bytes, kind: str, name: str, allowance: Allowance) -> None:
        self.digest = digest(b"document", content)
        self.name, self._kind, self._allowance = name, kind, allowance
        self._num_bytes = len(content)
        self._descriptor = os.memfd_create("document", os.MFD_CLOEXEC)
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(content)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def ask(self, what: str, job: Job) -> bytes:
        """Return the answer to a job. Raises `RequestError`."""
        job = {"num_pixels": 0, **job, "kind": f"{what} {self._kind}", "num_bytes": self._num_bytes}
        try:
            return DOCUMENT_PROCESS.ask(job, self._descriptor, self._allowance)
        except JobRefusedError as refused:
            _fail(self.name, refused, self._allowance)


def open_document(
    source: object, options: DocumentOptions, allowance: Allowance, *, transparency: Transparency = "white"
) -> OpenedDocument:
    """Read or fetch a PDF or TIFF, and open the pages that `options` take. Draws nothing. Raises `RequestError`, or
    `MissingExtraError`."""
    content = read_bytes(source, allowance)
    name = repr(options.filename[:80]) if options.filename else describe(source)
    kind = _find_kind(content, name)
    if kind == "pdf":
        check_installed()
    file = _File(content, kind, name, allowance)
    job = {
        "ranges": options.ranges,
        "max_pages": allowance.limits.max_items,
        "dpi": options.dpi,
        "takes_text": options.text_layer == "auto",
    }
    num_pages, pages = json.loads(file.ask("open", job))
    for number, width, height, _ in pages:
        _check_size(number, (width, height), options.dpi, name, allowance.limits)
    opened = (
        OpenedPage(file, number, (width, height), text=text, dpi=options.dpi, transparency=transparency)
        for number, width, height, text in pages
    )
    return OpenedDocument(name=name, num_pages=num_pages, pages=tuple(opened))


def _check_size(number: int, size: tuple[int, int], dpi: int, name: str, limits: MediaLimits) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise _damaged(name, f"page {number} has no size")
    if width * height > limits.max_pixels:
        raise RequestError(
            ErrorCode.MEDIA_TOO_LARGE,
            f"page {number} of {name} has {width}x{height} pixels at {dpi} dpi, more than {limits.max_pixels}: take "
            "a lower dpi, or raise MediaLimits.max_pixels",
            "dpi",
        )


def begins_document(start: bytes) -> bool:
    """Return whether a file that begins so is a PDF, or one of an office suite, which `open_document` refuses by
    name."""
    return _LOOKS_LIKE_PDF.search(start, 0, WITHIN_BYTES) is not None or start.startswith((_OLD_OFFICE, _ZIP))


def _find_kind(content: bytes, name: str) -> str:
    """Return 'pdf' or 'tiff'. Raises `RequestError` for all else."""
    if content.startswith(_TIFF_MAGIC):
        return "tiff"
    if _LOOKS_LIKE_PDF.search(content, 0, WITHIN_BYTES):
        return "pdf"
    office = None
    if content.startswith(_OLD_OFFICE):
        office = "an Office"
    elif content.startswith(_ZIP):
        office = next((title for mark, title in _OFFICE if mark in content), None)
    if office is not None:
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"{name} is {office} file, which is not drawn here: save it as PDF (soffice --convert-to pdf FILE), and "
            "send that",
        )
    problem = "is empty" if not content else "is neither a PDF nor a TIFF"
    raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} {problem}: send a PDF, or a picture as image_url")


def _fail(name: str, refused: JobRefusedError, allowance: Allowance) -> NoReturn:
    """Raise the `RequestError` that says why a document cannot be used, and what to do."""
    limits = allowance.limits
    match refused.kind:
        case "encrypted":
            problem = "is encrypted: send it without its password"
        case "missing":
            page, num_pages = refused.details
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"pages: {name} has {num_pages} pages, and no page {page}", "pages"
            )
        case "many":
            [num_pages] = refused.details
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"{name} has {num_pages} pages, and more than {limits.max_items} are to be taken: choose some with "
                f"pages='1-{limits.max_items}', or raise MediaLimits.max_items",
                "pages",
            )
        case "memory":
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE, f"{name} takes too much memory to read: send a simpler one, or its pictures"
            )
        case "crash":
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"{name} takes too long or too much memory to read, or is damaged: send a simpler one, or its pictures",
            )
        case _:
            raise _damaged(name, str(refused.details[0]))
    raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} {problem}")


def _damaged(name: str, reason: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_MEDIA, f"{name} cannot be read, it is damaged or cut off: {reason}")
