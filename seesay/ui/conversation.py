"""A conversation as the user sees it, and its messages for the server. Values only: no Gradio, no HTTP."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seesay.values import AUDIO_SUFFIXES, VIDEO_SUFFIXES

STOPPED = "Stopped."
"""The note below an answer that was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The server's report on an answer: `usage`, stage times in seconds, and a report on each picture and video of the
    whole conversation, in order. `first_s` and `total_s` are measured here, for servers that report no times."""

    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    media: tuple[Mapping[str, Any], ...] = ()
    first_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question with its files (paths), and the answer so far.

    error: a sentence, if there is no answer. note: a remark on how the answer ended. seen: the server's report on the
    answer. marked: HTML of an answer that marks something, and details: HTML below it, both made from `seen`.
    """

    text: str
    files: tuple[str, ...] = ()
    answer: str = ""
    error: str | None = None
    note: str = ""
    seen: Seen | None = None
    marked: str = ""
    details: str = ""
    is_done: bool = False

    @property
    def counts(self) -> bool:
        """Whether the turn is sent with later questions. A failed turn would make them fail too, and a turn that was
        stopped before its first word has no answer."""
        return self.error is None and (bool(self.answer) or not self.is_done)


def is_video(path: str) -> bool:
    """Return whether a file is sent as a video, by its name."""
    return path.lower().endswith(VIDEO_SUFFIXES)


def is_audio(path: str) -> bool:
    """Return whether a file is sent as audio, by its name."""
    return path.lower().endswith(AUDIO_SUFFIXES)


def is_document(path: str) -> bool:
    """Return whether a file is sent as a document, by its name."""
    return path.lower().endswith(".pdf")


def files_of(turns: Sequence[Turn]) -> list[str]:
    """Return the files that `make_messages` sends, in the same order."""
    return [path for turn in turns if turn.counts for path in turn.files]


def make_messages(turns: Sequence[Turn], system_prompt: str) -> list[dict[str, Any]]:
    """Return OpenAI messages for `turns`, of which the last has no answer yet. Reads the files."""
    messages: list[dict[str, object]] = []
    if system_prompt.strip():
        messages.append({"role": "system", "content": system_prompt.strip()})
    for turn in turns:
        if not turn.counts:
            continue
        parts = [_file_part(path) for path in turn.files]
        if turn.text or not parts:
            parts.append({"type": "text", "text": turn.text})
        messages.append({"role": "user", "content": parts if turn.files else turn.text})
        if turn.is_done:
            messages.append({"role": "assistant", "content": turn.answer})
    return messages


def find_file(turns: Sequence[Turn], system_prompt: str, message_index: int, part_index: int) -> str | None:
    """Return the name of the file that is a part of a message in `make_messages(turns, system_prompt)`."""
    index = message_index - (1 if system_prompt.strip() else 0)
    sent = [turn for turn in turns if turn.counts]
    files = sent[index // 2].files if 0 <= index // 2 < len(sent) else ()
    return Path(files[part_index]).name if part_index < len(files) else None


def _file_part(path: str) -> dict[str, object]:
    if is_document(path):
        content = base64.b64encode(Path(path).read_bytes()).decode()
        name = Path(path).name
        return {"type": "file", "file": {"filename": name, "file_data": f"data:application/pdf;base64,{content}"}}
    if is_audio(path):
        content = base64.b64encode(Path(path).read_bytes()).decode()
        form = Path(path).suffix[1:].lower().replace("oga", "ogg")
        return {"type": "input_audio", "input_audio": {"data": content, "format": form}}
    kind = "video" if is_video(path) else "image"
    mime = mimetypes.guess_type(path)[0] or ""
    if not mime.startswith(f"{kind}/"):
        mime = "video/mp4" if kind == "video" else "image/png"
    url = f"data:{mime};base64,{base64.b64encode(Path(path).read_bytes()).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
