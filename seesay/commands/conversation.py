"""A conversation that can be edited: turns, what is attached to the next one, and its two file forms. No input or
output but the files it is told to read and write."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError

Kind = Literal["image", "video"]
Message = dict[str, Any]

_MAX_FILE_BYTES = 256 << 20
_MAX_SHOWN = 200  # characters
_ANY_SIZE = MediaLimits(max_pixels=1 << 60)  # how large a picture may be is whoever answers' to say


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A picture or clip. `source` is what the user wrote, `url` what is sent: that URL, or the file as a data URL.

    `name` is `source`, short enough to be shown.
    """

    kind: Kind
    source: str = field(repr=False)
    url: str = field(repr=False)

    @classmethod
    def read(cls, kind: Kind, source: str) -> Self:
        """Read a file now, so that later changes of it do not change the conversation. URLs are left to the model, but
        for `file:///path`, which names a file.

        Raises RequestError when the file cannot be read, or is to be a picture and is none.
        """
        if source.startswith(("http://", "https://", "data:")):
            return cls(kind=kind, source=source, url=source)
        source = to_path(source)
        path = Path(source).expanduser()
        try:
            if not path.is_file():
                raise FileNotFoundError(2, "no such file")
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise OSError(27, f"larger than {_MAX_FILE_BYTES >> 20} MB")
            content = path.read_bytes()
        except OSError as error:
            raise RequestError(ErrorCode.INVALID_MEDIA, f"cannot read {source!r}: {error.strerror}") from None
        if kind == "image":
            from seesay.processors.media.picture import Picture

            Picture(content, limits=_ANY_SIZE, name=repr(source)).size()
        guessed = mimetypes.guess_type(path.name)[0] or ""
        mime = guessed if guessed.startswith(f"{kind}/") else {"image": "image/png", "video": "video/mp4"}[kind]
        return cls(kind=kind, source=source, url=f"data:{mime};base64,{base64.b64encode(content).decode()}")

    @property
    def name(self) -> str:
        return self.source if len(self.source) <= _MAX_SHOWN else f"{self.source[:40]}..."

    @property
    def written_name(self) -> str:
        """The name in a saved text: an address stays whole, so that it still leads somewhere; a data URL is cut."""
        return self.name if self.source.startswith("data:") else self.source

    def part(self, *, is_saved: bool = False) -> dict[str, Any]:
        """The content part of an OpenAI message; a saved one has a file's path in place of its content."""
        is_file = self.source != self.url
        url = str(Path(self.source).expanduser().absolute()) if is_saved and is_file else self.url
        key = f"{self.kind}_url"
        return {"type": key, key: {"url": url}}


def to_path(source: str) -> str:
    """Return the path that a file URL names; anything else as it is."""
    if source[:7].lower() != "file://":
        return source
    return unquote(urlsplit(source).path) or source


@dataclass(slots=True, kw_only=True)
class Turn:
    """A question with what is attached to it, and its answer."""

    text: str
    media: tuple[Attachment, ...] = ()
    answer: str = ""

    def question(self, *, is_saved: bool = False) -> Message:
        if not self.media:
            return {"role": "user", "content": self.text}
        parts = [attachment.part(is_saved=is_saved) for attachment in self.media]
        return {"role": "user", "content": [*parts, {"type": "text", "text": self.text}]}


@dataclass(slots=True, kw_only=True)
class Conversation:
    """TowerPacer so far, the system prompt, and attachments that wait for the next question."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    attached: list[Attachment] = field(default_factory=list)

    def messages(self, turn: Turn | None = None, *, is_saved: bool = False) -> list[Message]:
        """As OpenAI messages, `turn` being asked at the end."""
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for past in self.turns:
            messages += [past.question(is_saved=is_saved), {"role": "assistant", "content": past.answer}]
        return messages if turn is None else [*messages, turn.question(is_saved=is_saved)]

    def take_attached(self) -> tuple[Attachment, ...]:
        """What waits for the next question; it waits no more."""
        taken = tuple(self.attached)
        self.attached.clear()
        return taken

    def reset(self) -> None:
        """Forget all but the system prompt."""
        self.turns.clear()
        self.attached.clear()

    def save(self, path: Path) -> None:
        """Write `path`: OpenAI messages for a .json file, else Markdown to read. Files are named, not copied."""
        if path.suffix == ".json":
            text = json.dumps(self.messages(is_saved=True), ensure_ascii=False, indent=2) + "\n"
        else:
            text = self._as_markdown()
        path.write_text(text, encoding="utf-8")

    def load(self, path: Path) -> None:
        """Take over the conversation of a .json file, attachments read anew. Raises RequestError, changing nothing."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or f"not JSON ({error})"
            raise RequestError(ErrorCode.INVALID_REQUEST, f"cannot read {str(path)!r}: {reason}") from None
        system, turns = _parse(data, path)
        self.system, self.turns = system, turns
        self.attached.clear()

    def _as_markdown(self) -> str:
        blocks = [f"**system**\n\n{self.system}"] if self.system else []
        for turn in self.turns:
            media = "".join(f"[{attachment.kind}: {attachment.written_name}]\n" for attachment in turn.media)
            blocks += [f"**you**\n\n{media}{turn.text}", f"**model**\n\n{turn.answer}"]
        return "\n\n".join(blocks) + "\n"


def _parse(data: Any, path: Path) -> tuple[str | None, list[Turn]]:
    """(system prompt, turns) of OpenAI messages: an optional system message, then questions and answers in turn."""
    problem = RequestError(
        ErrorCode.INVALID_REQUEST,
        f"{str(path)!r} is no conversation: that is a list of OpenAI messages, in which user and assistant alternate",
    )
    if not isinstance(data, list) or not all(isinstance(message, Mapping) for message in data):
        raise problem
    system = None
    if data and data[0].get("role") == "system" and isinstance(data[0].get("content"), str):
        system, data = data[0]["content"], data[1:]
    if [message.get("role") for message in data] != ["user", "assistant"] * (len(data) // 2):
        raise problem
    turns = []
    for question, answer in zip(data[::2], data[1::2]):
        if not isinstance(answer.get("content"), str):
            raise problem
        content = question.get("content")
        turns.append(
            _parse_question([{"type": "text", "text": content}] if isinstance(content, str) else content, problem)
        )
        turns[-1].answer = answer["content"]
    return system, turns


def _parse_question(parts: Any, problem: RequestError) -> Turn:
    texts: list[str] = []
    media: list[Attachment] = []
    for part in parts if isinstance(parts, Sequence) and not isinstance(parts, str) else ():
        if not isinstance(part, Mapping):
            raise problem
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in ("image_url", "video_url"):
            value = part.get(kind)
            url = value.get("url") if isinstance(value, Mapping) else value
            if not isinstance(url, str):
                raise problem
            media.append(Attachment.read("image" if kind == "image_url" else "video", url))
        else:
            raise problem
    if not texts and not media:
        raise problem
    return Turn(text="\n".join(texts), media=tuple(media))
