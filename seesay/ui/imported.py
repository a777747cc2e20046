"""Read a conversation from JSON: the body of a chat completion request, or its messages. The file is not trusted: its
media must be data URLs, so that nothing is fetched or read for it. Values only: no Gradio, no HTTP."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
from collections.abc import Callable, Mapping

from seesay.ui.conversation import STOPPED, Turn
from seesay.ui.record import MAX_CHARACTERS, MAX_FILES, MAX_TURNS
from seesay.values import AUDIO_SUFFIXES, VIDEO_SUFFIXES

_KINDS = {"image_url": "image", "video_url": "video", "input_audio": "audio", "file": "document"}
_MIMES = {"image_url": "image/", "video_url": "video/", "input_audio": "audio/", "file": "application/pdf"}

WriteFile = Callable[[str, bytes], str]
"""Writes a file with a name and content, and returns its path."""


def read_conversation(content: bytes, write_file: WriteFile) -> tuple[str, tuple[Turn, ...]]:
    """Return the system prompt and the turns of a file that `export_json` wrote, or of one like it.

    Raises ValueError that says what is wrong with the file.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("the file is not JSON") from None
    messages = body.get("messages") if isinstance(body, Mapping) else body
    if not isinstance(messages, list) or not messages:
        raise ValueError("the file has no messages")
    reader = _Reader(write_file)
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(f"messages[{number}] must be an object")
        reader.add(message, f"messages[{number}]")
    if not reader.turns:
        raise ValueError("the file has no question")
    return reader.system_prompt, tuple(reader.turns)


class _Reader:
    def __init__(self, write_file: WriteFile) -> None:
        self.system_prompt = ""
        self.turns: list[Turn] = []
        self._write_file = write_file
        self._num_files = 0

    def add(self, message: Mapping[str, object], place: str) -> None:
        role = message.get("role")
        text, files = self._read_content(message.get("content"), place)
        if files and role != "user":
            raise ValueError(f"{place}: only questions may have pictures")
        if role in ("system", "developer") and not self.turns:
            self.system_prompt = f"{self.system_prompt}\n\n{text}".strip()
        elif role == "user":
            if len(self.turns) == MAX_TURNS:
                raise ValueError(f"the file has more than {MAX_TURNS} questions")
            self.turns.append(Turn(text=text, files=files, note=STOPPED, is_done=True))
        elif role == "assistant" and self.turns:
            asked = self.turns[-1]
            answer = f"{asked.answer}\n\n{text}" if asked.answer else text
            self.turns[-1] = Turn(text=asked.text, files=asked.files, answer=_check(answer, place), is_done=True)
        else:
            raise ValueError(f"{place}: the role {str(role)[:40]!r} cannot be shown here")

    def _read_content(self, content: object, place: str) -> tuple[str, tuple[str, ...]]:
        if isinstance(content, str):
            return _check(content, place), ()
        if not isinstance(content, list):
            raise ValueError(f"{place}: content must be a text or a list of parts")
        texts, files = [], []
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind == "text":
                texts.append(_check(part.get("text"), place))
            elif kind in _KINDS:
                files.append(self._read_file(part, kind, place))
            else:
                raise ValueError(f"{place}: parts of the type {str(kind)[:40]!r} cannot be shown here")
        if len(files) > MAX_FILES:
            raise ValueError(f"{place}: a question may have at most {MAX_FILES} files")
        return _check("\n".join(texts), place), tuple(files)

    def _read_file(self, part: Mapping[str, object], kind: str, place: str) -> str:
        given = part.get(kind)
        if kind == "input_audio":
            given = _as_url(given)
        key = "file_data" if kind == "file" else "url"
        url = given.get(key) if isinstance(given, Mapping) else given
        if not isinstance(url, str) or not url.startswith(f"data:{_MIMES[kind]}"):
            raise ValueError(f"{place}: an {kind} must be a data URL, so that the file has the {_KINDS[kind]}")
        header, _, data = url.partition(",")
        mime, _, encoding = header.removeprefix("data:").partition(";")
        try:
            if encoding != "base64":
                raise ValueError
            content = base64.b64decode(data, validate=True)
        except (ValueError, binascii.Error):
            raise ValueError(f"{place}: the data URL is broken") from None
        self._num_files += 1
        return self._write_file(f"{_KINDS[kind]}-{self._num_files}{_find_suffix(mime)}", content)


def _as_url(given: object) -> str:
    """Return the data URL of `{"data": base64, "format": "wav"}`; empty for anything else."""
    data, form = (given.get("data"), given.get("format")) if isinstance(given, Mapping) else (None, None)
    return f"data:audio/{form};base64,{data}" if isinstance(data, str) and f".{form}" in AUDIO_SUFFIXES else ""


def _find_suffix(mime: str) -> str:
    """Return a suffix by which the file is sent as what it is."""
    if mime.startswith("audio/"):
        return f".{mime.removeprefix('audio/')}"
    suffix = mimetypes.guess_extension(mime) or ""
    if mime.startswith("video/"):
        return suffix if suffix in VIDEO_SUFFIXES else ".mkv" if "matroska" in mime else ".mp4"
    return suffix or ".png"


def _check(text: object, place: str) -> str:
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise ValueError(f"{place}: texts must have at most {MAX_CHARACTERS:,} characters")
    return text
