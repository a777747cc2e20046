"""A conversation that can be edited: its turns, the attachments of the next one, and its two file formats. It reads and
writes only the files that the user names."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError

Kind = Literal["image", "video", "audio", "document"]
Message = dict[str, Any]

_MIME: Mapping[Kind, str] = {
    "image": "image/png",
    "video": "video/mp4",
    "audio": "audio/wav",
    "document": "application/pdf",
}
_KINDS: Mapping[str, tuple[Kind, str]] = {
    "image_url": ("image", "url"),
    "video_url": ("video", "url"),
    "audio_url": ("audio", "url"),
    "file": ("document", "file_data"),
}
_MAX_FILE_BYTES = 256 << 20
_MAX_SHOWN = 200  # characters
_ANY_SIZE = MediaLimits(max_pixels=1 << 60)  # the model or server that answers limits the size of pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A picture, video, audio or document. `source` is the text that the user typed. `url` is sent: the same URL, or
    the file as a data URL. `name` is `source`, shortened for display.
    """

    kind: Kind
    source: str = field(repr=False)
    url: str = field(repr=False)

    @classmethod
    def read(cls, kind: Kind, source: str) -> Self:
        """Read a file now, so that later changes of it do not change the conversation. URLs are not fetched here,
        except `file:///path`, which names a file.

        Raises RequestError if the file cannot be read, or is attached as a picture and is not one.
        """
        if source.startswith(("http://", "https://", "data:")):
            return cls(kind=kind, source=source, url=source)
        source = to_path(source)
        path = Path(source).expanduser()
        try:
            if not path.exists():
                raise FileNotFoundError(2, "no such file")
            if not path.is_file():
                raise OSError(22, "a folder" if path.is_dir() else "not a regular file")
            if path.stat().st_size > _MAX_FILE_BYTES:
                raise OSError(27, f"larger than {_MAX_FILE_BYTES >> 20} MB")
            content = path.read_bytes()
        except OSError as error:
            raise RequestError(ErrorCode.INVALID_MEDIA, f"cannot read {source!r}: {error.strerror}") from None
        if kind == "image":
            from seesay.processors.media.picture import Picture

            Picture(content, limits=_ANY_SIZE, name=repr(source)).size()
        guessed = mimetypes.guess_type(path.name)[0] or ""
        mime = guessed if guessed.startswith(f"{kind}/") else _MIME[kind]
        return cls(kind=kind, source=source, url=f"data:{mime};base64,{base64.b64encode(content).decode()}")

    @property
    def name(self) -> str:
        return self.source if len(self.source) <= _MAX_SHOWN else f"{self.source[:40]}..."

    @property
    def written_name(self) -> str:
        """The name in a saved text. A URL stays complete, so that it still works; a data URL is cut."""
        return self.name if self.source.startswith("data:") else self.source

    def part(self, *, is_saved: bool = False) -> dict[str, Any]:
        """Return the content part of an OpenAI message. A saved one has the path of a file in place of its content."""
        is_file = self.source != self.url
        url = str(Path(self.source).expanduser().absolute()) if is_saved and is_file else self.url
        if self.kind == "document":
            name = {"filename": Path(self.source).name} if is_file else {}
            return {"type": "file", "file": {**name, "file_data": url}}
        key = f"{self.kind}_url"
        return {"type": key, key: {"url": url}}


def to_path(source: str) -> str:
    """Return the path in a file URL. Anything else is returned unchanged. Raises RequestError for a URL that names no
    path of this machine."""
    if source[:5].lower() != "file:":
        return source
    from seesay.processors.media.sources import path_of_url

    return str(path_of_url(source))


@dataclass(slots=True, kw_only=True)
class Turn:
    """A question with its attachments, and its answer."""

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
    """The turns so far, the system prompt, and the attachments of the next question."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    attached: list[Attachment] = field(default_factory=list)

    def messages(self, turn: Turn | None = None, *, is_saved: bool = False) -> list[Message]:
        """Return the conversation as OpenAI messages, with the question of `turn` at the end."""
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for past in self.turns:
            messages += [past.question(is_saved=is_saved), {"role": "assistant", "content": past.answer}]
        return messages if turn is None else [*messages, turn.question(is_saved=is_saved)]

    def take_attached(self) -> tuple[Attachment, ...]:
        """Remove and return the attachments of the next question."""
        taken = tuple(self.attached)
        self.attached.clear()
        return taken

    def reset(self) -> None:
        """Delete everything except the system prompt."""
        self.turns.clear()
        self.attached.clear()

    def save(self, path: Path) -> None:
        """Write `path`: OpenAI messages if it ends in .json, else Markdown. Attached files are named, not copied."""
        if path.suffix == ".json":
            text = json.dumps(self.messages(is_saved=True), ensure_ascii=False, indent=2) + "\n"
        else:
            text = self._as_markdown()
        path.write_text(text, encoding="utf-8")

    def load(self, path: Path) -> None:
        """Replace this conversation by that of a .json file, and read its attachments again. If it cannot be read,
        raise RequestError and change nothing."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or f"not valid JSON ({error})"
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


def _parse(data: object, path: Path) -> tuple[str | None, list[Turn]]:
    """Return (system prompt, turns) of OpenAI messages: an optional system message, then alternating questions and
    answers."""
    problem = RequestError(
        ErrorCode.INVALID_REQUEST,
        f"{str(path)!r} is not a conversation: it must be a list of alternating user and assistant messages",
    )
    if not isinstance(data, list) or not all(isinstance(message, Mapping) for message in data):
        raise problem
    system = None
    if data and data[0].get("role") == "system" and isinstance(data[0].get("content"), str):
        system, data = data[0]["content"], data[1:]
    if [message.get("role") for message in data] != ["user", "assistant"] * (len(data) // 2):
        raise problem
    return system, [_parse_turn(*pair, problem) for pair in zip(data[::2], data[1::2])]


def _parse_turn(question: Mapping[str, object], answer: Mapping[str, object], problem: RequestError) -> Turn:
    content, text = question.get("content"), answer.get("content")
    if not isinstance(text, str):
        raise problem
    turn = _parse_question([{"type": "text", "text": content}] if isinstance(content, str) else content, problem)
    turn.answer = text
    return turn


def _parse_question(parts: object, problem: RequestError) -> Turn:
    texts: list[str] = []
    media: list[Attachment] = []
    for part in parts if isinstance(parts, Sequence) and not isinstance(parts, str) else ():
        parsed = _parse_part(part)
        if parsed is None:
            raise problem
        if isinstance(parsed, str):
            texts.append(parsed)
        else:
            media.append(parsed)
    if not texts and not media:
        raise problem
    return Turn(text="\n".join(texts), media=tuple(media))


def _parse_part(part: object) -> str | Attachment | None:
    """Return the text or the attachment of a part; None if it is neither."""
    if not isinstance(part, Mapping):
        return None
    name = part.get("type")
    if name == "text":
        text = part.get("text")
        return text if isinstance(text, str) else None
    kind, key = _KINDS.get(name, (None, "")) if isinstance(name, str) else (None, "")
    value = part.get(name)
    url = value.get(key) if isinstance(value, Mapping) else value
    return Attachment.read(kind, url) if kind is not None and isinstance(url, str) else None
