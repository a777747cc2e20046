"""A conversation as its user sees it, and as the server is asked. Values only: no Gradio, no HTTP."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seesay.values import VIDEO_SUFFIXES

STOPPED = "Stopped."
"""The note of an answer that was ended before it was complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the server tells about an answer: its `usage`, stage times in seconds, and a report on each of the media of
    the whole conversation, in order. `first_s` and `total_s` are as measured here, for servers that tell nothing."""

    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    media: tuple[Mapping[str, Any], ...] = ()
    first_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A question with its files (paths), and the answer as far as it is there.

    error: a sentence, when there is no answer. note: a remark on how the answer ended. seen: what the server told about
    the answer. details: HTML shown below it, made from `seen`.
    """

    text: str
    files: tuple[str, ...] = ()
    answer: str = ""
    error: str | None = None
    note: str = ""
    seen: Seen | None = None
    details: str = ""
    is_done: bool = False

    @property
    def counts(self) -> bool:
        """Whether later questions build on it: one that failed would make them fail too, one that was stopped before
        its first word has nothing to build on."""
        return self.error is None and (bool(self.answer) or not self.is_done)


def is_video(path: str) -> bool:
    """Return whether a file is sent as a video, by its name."""
    return path.lower().endswith(VIDEO_SUFFIXES)


def files_of(turns: Sequence[Turn]) -> list[str]:
    """The files that `make_messages` sends, in its order."""
    return [path for turn in turns if turn.counts for path in turn.files]


def make_messages(turns: Sequence[Turn], system_prompt: str) -> list[dict[str, Any]]:
    """OpenAI messages for `turns`, the last of which waits for its answer. Reads the files."""
    messages: list[dict[str, Any]] = []
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


def _file_part(path: str) -> dict[str, Any]:
    kind = "video" if is_video(path) else "image"
    mime = mimetypes.guess_type(path)[0] or ""
    if not mime.startswith(f"{kind}/"):
        mime = "video/mp4" if kind == "video" else "image/png"
    url = f"data:{mime};base64,{base64.b64encode(Path(path).read_bytes()).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
