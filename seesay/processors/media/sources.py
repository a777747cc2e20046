"""Reads every kind of source of a picture or video, to bytes or to a checked local file. Decodes nothing.

Where a folder confines local files, their paths are opened component by component from that folder, without following
links: a file that is replaced by a link after the check is not opened.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import numpy as np
import numpy.typing as npt

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.fetch import fetch, shorten_url

_ACCEPTED = "a path, URL, data URL, base64 text, bytes, a file opened in binary mode, a PIL image or a uint8 array"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20})://")
_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]+={0,2}\s*")
_PADDING = "= \t\r\n"
_SLICE_CHARS = 1 << 16
"""Long texts are decoded in slices: each call holds the GIL."""
_HEX_DIGITS = np.full(256, 255, dtype=np.uint8)
_HEX_DIGITS[list(b"0123456789abcdef")] = range(16)
_HEX_DIGITS[list(b"ABCDEF")] = range(10, 16)
# Decoded base64 text is media, and not a path, if it begins so (or has MP4's "ftyp" at offset 4).
_MAGIC_BYTES = (
    b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*", b"\x1a\x45\xdf\xa3",
    b"ID3", b"fLaC", b"OggS",
)  # fmt: skip
_SIGNATURES = _MAGIC_BYTES + tuple(b"P%d" % n + blank for n in range(1, 7) for blank in (b"\n", b" "))


def read_source(source: object, allowance: Allowance) -> bytes | Path:
    """Return the bytes of an http(s) URL, data URL, base64 text, open file or bytes, and the path of a local file, or
    its bytes where the limits confine local files to a folder.

    A returned path is that of a regular file no larger than `max_bytes`. Raises `RequestError`.
    """
    limits = allowance.limits
    if isinstance(source, (bytes, bytearray, memoryview)):
        num_bytes = len(source) if not isinstance(source, memoryview) else source.nbytes
        check_num_bytes(num_bytes, "the content", limits)
        allowance.spend_bytes(num_bytes)
        return bytes(source)
    if isinstance(source, os.PathLike):
        return _open_file(Path(source), allowance)
    if hasattr(source, "read"):
        return _read_file_object(source, allowance)
    if not isinstance(source, str):
        raise RequestError(
            ErrorCode.INVALID_MEDIA, f"a picture or video must be {_ACCEPTED}, got a {type(source).__name__}"
        )
    if not source.strip():
        raise RequestError(ErrorCode.INVALID_MEDIA, f"a picture or video must be {_ACCEPTED}, got an empty text")
    if source[:5].lower() == "data:":
        return _read_data_url(source, allowance)
    if source[:5].lower() == "file:":
        return _open_file(path_of_url(source), allowance)
    if _SCHEME.match(source) is not None:
        return fetch(source.strip(), allowance)
    return _read_text(source, allowance)


def read_bytes(source: object, allowance: Allowance) -> bytes:
    """Return the content of a source, as `read_source` does, also of local files. Raises `RequestError`."""
    content = read_source(source, allowance)
    if isinstance(content, bytes):
        return content
    try:
        # O_NONBLOCK: if the file was replaced by a pipe since the check, opening it must not wait for a writer.
        descriptor = os.open(content, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return _read_descriptor(descriptor, content, allowance.limits)
    except OSError as error:
        raise _unreadable(content, error) from None


def is_base64_media(text: str) -> bool:
    """Return whether `text` begins as the base64 of a picture or video does."""
    beginning = "".join(text[:64].split())
    try:
        return _begins_as_media(_decode_base64(beginning[: len(beginning) // 4 * 4]))
    except binascii.Error:
        return False


def describe(source: object) -> str:
    """Return a short name of a source for messages, without secrets."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return f"content of {len(source)} bytes"
    if isinstance(source, os.PathLike):
        return _shorten_path(Path(source))
    if isinstance(source, str):
        if source[:5].lower() == "data:":
            return f"data URL of {len(source)} characters"
        if _SCHEME.match(source):
            return shorten_url(source)
        return _shorten_path(source) if len(source) <= 256 else f"text of {len(source)} characters"
    return type(source).__name__


def _read_file_object(file: Any, allowance: Allowance) -> bytes:
    """Read the rest of an open file. A seekable file is then put back to where it was: it may be read again."""
    limits = allowance.limits
    try:
        start = file.tell() if file.seekable() else None
        data = file.read(limits.max_bytes + 1)
        if start is not None:
            file.seek(start)
    except (OSError, ValueError, AttributeError) as error:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"cannot read the {type(file).__name__}: {error}") from None
    if not isinstance(data, bytes):
        raise RequestError(
            ErrorCode.INVALID_MEDIA, f"the {type(file).__name__} returns text: open the file with mode 'rb'"
        )
    check_num_bytes(len(data), "the file", limits)
    allowance.spend_bytes(len(data))
    return data


def _read_text(text: str, allowance: Allowance) -> bytes | Path:
    """Read a string that is a path or base64. Error messages do not reveal the file system where local paths are not
    allowed."""
    limits = allowance.limits
    problem = ""
    if len(text) >= 4096:
        problem = "too long for a path"
    elif limits.allowed_local_media_path is not None:
        if _find_confined(Path(text), limits.allowed_local_media_path, must_exist=True) is not None:
            return _open_file(Path(text), allowance)
    elif limits.allow_local_paths:
        problem = _find_problem(Path(text))
        if not problem:
            return _open_file(Path(text), allowance)
    data = _try_base64(text, allowance)
    if data is None:
        raise _make_text_error(text, problem, limits)
    return data


def _find_problem(path: Path) -> str:
    """Return why a file cannot be read; empty if it can."""
    try:
        path.stat()
    except FileNotFoundError:
        return "it does not exist"
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', error)}"
    return ""


def _try_base64(text: str, allowance: Allowance) -> bytes | None:
    """Return the content of the base64 of media; None for any other text. Raises `RequestError` if it is too large."""
    if not _BASE64.fullmatch(text, 0, _SLICE_CHARS):  # decoding checks the rest
        return None
    check_num_bytes(len(text) * 3 // 4 - 2, "the base64 content", allowance.limits)
    try:
        data = _decode_base64(text)
    except binascii.Error:
        return None
    if not _begins_as_media(data):
        return None
    allowance.spend_bytes(len(data))
    return data


def _make_text_error(text: str, problem: str, limits: MediaLimits) -> RequestError:
    """Return the error for a text that is not media, by what the limits allow a text to be."""
    if limits.allowed_local_media_path is not None:
        return RequestError(
            ErrorCode.MEDIA_FORBIDDEN,
            f"{describe(text)} is neither a URL, nor the base64 of a picture or video, nor a file in the folder that "
            "local media may come from",
        )
    if not limits.allow_local_paths:
        return RequestError(
            ErrorCode.MEDIA_FORBIDDEN,
            f"{describe(text)} is neither a URL nor the base64 of a picture or video; local paths are not read here",
        )
    return RequestError(
        ErrorCode.INVALID_MEDIA,
        f"cannot read the file {describe(text)}: {problem}, and it is not a URL, data URL or base64",
    )


# --- local files -----------------------------------------------------------------------------------------------------


def path_of_url(url: str) -> Path:
    """Return the path that a file URL names. Raises RequestError if it names another machine or no absolute path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is not None and parts.netloc.lower() not in ("", "localhost"):
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"the host of a file URL must be empty or localhost, got {parts.netloc[:80]!r}: files of other machines "
            "are not read",
        )
    if parts is None or not parts.path.startswith("/"):
        raise RequestError(
            ErrorCode.INVALID_MEDIA, f"a file URL must have the form file:///path/to/file, got {url[:40]!r}"
        )
    return Path(os.fsdecode(unquote_to_bytes(parts.path)))


def _open_file(path: Path, allowance: Allowance) -> bytes | Path:
    """Check a local file that may be read. Where a folder confines local files, read it too."""
    limits = allowance.limits
    if limits.allowed_local_media_path is not None:
        return _read_confined(path, limits.allowed_local_media_path, allowance)
    if not limits.allow_local_paths:
        raise RequestError(
            ErrorCode.MEDIA_FORBIDDEN, "local paths are not read here: send the content as a data URL, or a public URL"
        )
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        raise _not_a_file(path)
    check_num_bytes(status.st_size, _shorten_path(path), limits)
    allowance.spend_bytes(status.st_size)
    return path


def _find_confined(path: Path, folder: str | os.PathLike[str], *, must_exist: bool) -> tuple[str, ...] | None:
    """Return the components of the real path of `path` below `folder`; None when it is outside, or must exist and does
    not."""
    try:
        real = path.resolve(strict=must_exist)
        way = real.relative_to(Path(folder).resolve(strict=True)).parts
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a cycle of links
        return None
    return way or None


def _read_confined(path: Path, folder: str | os.PathLike[str], allowance: Allowance) -> bytes:
    way = _find_confined(path, folder, must_exist=False)
    if way is None:
        raise RequestError(
            ErrorCode.MEDIA_FORBIDDEN,
            f"{_shorten_path(path)} is not in the folder that local media may come from",
        )
    no_links = os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = -1
    try:
        descriptor = os.open(Path(folder).resolve(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for index, name in enumerate(way):
            kind = os.O_NONBLOCK if index == len(way) - 1 else os.O_DIRECTORY
            opened = os.open(name, os.O_RDONLY | kind | no_links, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = opened
    except (OSError, ValueError) as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise _unreadable(path, error) from None
    data = _read_descriptor(descriptor, path, allowance.limits)
    allowance.spend_bytes(len(data))
    return data


def _read_descriptor(descriptor: int, path: Path, limits: MediaLimits) -> bytes:
    """Read an open regular file, and close it."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):  # `open` would name a folder by its descriptor
            raise _not_a_file(path)
        check_num_bytes(status.st_size, _shorten_path(path), limits)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limits.max_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    finally:
        os.close(descriptor)
    check_num_bytes(len(data), _shorten_path(path), limits)
    return data


# --- text ------------------------------------------------------------------------------------------------------------


def _read_data_url(url: str, allowance: Allowance) -> bytes:
    limits = allowance.limits
    header, comma, payload = url.partition(",")
    if not comma:
        raise RequestError(ErrorCode.INVALID_MEDIA, "a data URL must have a comma before its content")
    is_base64 = header.rstrip().lower().endswith(";base64")
    # Percent escapes triple a length and base64 adds a third: a longer text cannot decode to an allowed size.
    check_num_bytes(
        len(payload) * 3 // 4 - 2 if is_base64 and "%" not in payload else len(payload) // 3, "the data URL", limits
    )
    if not is_base64:
        data = _unquote(payload)
    else:
        try:
            data = _decode_base64(_unquote(payload).decode("ascii") if "%" in payload else payload)
        except (binascii.Error, UnicodeError) as error:
            raise RequestError(
                ErrorCode.INVALID_MEDIA, f"the data URL of {len(url)} characters is not valid base64: {error}"
            ) from None
    check_num_bytes(len(data), "the data URL", limits)
    allowance.spend_bytes(len(data))
    return data


def _begins_as_media(data: bytes) -> bool:
    return data.startswith(_SIGNATURES) or data[4:8] == b"ftyp"


def _decode_base64(text: str, slice_chars: int = _SLICE_CHARS) -> bytes:
    """Decode base64 of either alphabet, with or without padding and line breaks. Raises `binascii.Error`."""
    end = text[-slice_chars:]
    stop = len(text) - len(end) + len(end.rstrip(_PADDING))
    pieces: list[bytes] = []
    rest = ""
    try:
        for start in range(0, stop, slice_chars):
            compact = rest + "".join(text[start : min(start + slice_chars, stop)].split())
            if "=" in compact:
                raise binascii.Error("padding before the end")
            num_whole = len(compact) // 4 * 4
            pieces.append(_decode_letters(compact[:num_whole]))
            rest = compact[num_whole:]
        pieces.append(_decode_letters(rest + "=" * (-len(rest) % 4)))
    except ValueError as error:  # also raised for letters outside ASCII
        raise binascii.Error(str(error)) from None
    return b"".join(pieces)


def _decode_letters(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def _unquote(text: str, slice_chars: int = _SLICE_CHARS) -> bytes:
    """Decode percent escapes, as `urllib.parse.unquote_to_bytes` does, without an object for each."""
    pieces: list[bytes] = []
    start = 0
    while start < len(text):
        stop = min(start + slice_chars, len(text))
        at = text.rfind("%", stop - 2, stop)
        if at > start and stop < len(text):  # this escape ends in the next slice
            stop = at
        pieces.append(_unquote_slice(np.frombuffer(text[start:stop].encode(), dtype=np.uint8)))
        start = stop
    return b"".join(pieces)


def _unquote_slice(chars: npt.NDArray[np.uint8]) -> bytes:
    digits = _HEX_DIGITS[chars]  # no escape begins within another: "%" is not a digit
    at = np.flatnonzero((chars[:-2] == ord("%")) & (digits[1:-1] < 16) & (digits[2:] < 16))
    result = chars.copy()
    result[at] = digits[at + 1] * 16 + digits[at + 2]
    is_kept = np.ones(len(chars), dtype=bool)
    is_kept[at + 1] = is_kept[at + 2] = False
    return result[is_kept].tobytes()


def check_num_bytes(size: int, what: str, limits: MediaLimits) -> None:
    """Raise `RequestError` for more bytes than a picture or video may have. `what` is the subject of the message."""
    if size > limits.max_bytes:
        raise RequestError(
            ErrorCode.MEDIA_TOO_LARGE,
            f"{what} has {size} bytes, more than {limits.max_bytes}: "
            "send a smaller file or raise MediaLimits.max_bytes",
        )


def _shorten_path(path: str | Path) -> str:
    text = str(path)
    return repr(text if len(text) <= 100 else f"...{text[-97:]}")


def _not_a_file(path: Path) -> RequestError:
    return RequestError(ErrorCode.INVALID_MEDIA, f"{_shorten_path(path)} is not a regular file")


def _unreadable(path: Path, error: Exception) -> RequestError:
    reason = getattr(error, "strerror", None) or str(error)
    return RequestError(ErrorCode.INVALID_MEDIA, f"cannot read the file {_shorten_path(path)}: {reason}")
