"""`input` of `/v1/embeddings`, where it holds more than texts and token ids: content parts of one turn of the user,
lists of them, or objects with a text, a picture or a video, as clients of Jina and SGLang send them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from seesay.config import MediaLimits
from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.openai.completions import name_prompts
from seesay.serving.openai.message_parts import Content
from seesay.serving.requests.content import read_parts
from seesay.serving.requests.fields import Prompts, StrictModel
from seesay.values import MediaPart, Message

MAX_INPUTS = 2048
"""OpenAI's limit."""
_MEDIA = {"video": "video_url", "image": "image_url"}
"""The keys of an object besides its text, in the order in which they are embedded, before the text; and the types of
content parts that they stand for."""


class EmbeddingItem(StrictModel):
    """text, image, video: what is embedded, or ranked, as one. A picture or video is a URL, or base64."""

    text: str | None = None
    image: str | None = None
    video: str | None = None


_Parts = Annotated[list[Content], Field(min_length=1)]
_Items = Annotated[list[EmbeddingItem | str], Field(min_length=1)]
_Reader = Callable[[Any, str], list[Any]]
"""Returns the content parts of an input. Raises `ApiError` 400 with its name where it has none."""
Inputs = Prompts | _Parts | Annotated[list[_Parts], Field(min_length=1)] | _Items


def name_inputs(given: Any) -> list[str]:
    """Return the API's name of each input."""
    read = _find_reader(given)
    return name_prompts(given, "input") if read is None else [name for name, _ in _name_entries(given, read)]


def read_turns(given: Any, limits: MediaLimits) -> list[Message] | None:
    """Return a turn of the user for each input; None where they are texts or token ids. Raises `ApiError` 400 that
    names what is wrong."""
    read = _find_reader(given)
    if read is None:
        return None
    entries = _name_entries(given, read)
    if len(entries) > MAX_INPUTS:
        raise bad_request(f"input has {len(given)} entries; at most {MAX_INPUTS} are allowed", "input")
    turns = [read_parts(read(entry, name), limits, name) for name, entry in entries]
    if sum(isinstance(part, MediaPart) for turn in turns for part in turn.parts) > limits.max_items:
        raise bad_request(f"input has more than {limits.max_items} pictures and videos", "input")
    return turns


def _find_reader(given: Any) -> _Reader | None:
    """Return what makes content parts of each input; None where they are texts or token ids."""
    if not isinstance(given, list) or not given:
        return None
    if any(isinstance(entry, dict) and "type" not in entry for entry in given):
        return take_item
    first = given[0]
    is_turn = isinstance(first, list) and bool(first) and isinstance(first[0], dict)
    return _take_parts if isinstance(first, dict) or is_turn else None


def _name_entries(given: Any, read: _Reader) -> list[tuple[str, Any]]:
    """Return the name and the content of each input."""
    if read is _take_parts and isinstance(given[0], dict):
        return [("input", given)]
    return [(f"input[{index}]", entry) for index, entry in enumerate(given)]


def _take_parts(entry: Any, name: str) -> list[Any]:
    if isinstance(entry, list) and entry:
        return entry
    raise bad_request(f"{name} must be a list of content parts that is not empty, got {show(entry)}", name)


def take_item(entry: Any, name: str) -> list[Any]:
    """Return the content parts of a text, or of an object with text, image or video."""
    given = {"text": entry} if isinstance(entry, str) and entry else entry
    if not isinstance(given, dict):
        raise bad_request(f"{name} must be an object with text, image or video, or a text, got {show(entry)}", name)
    given = {key: value for key, value in given.items() if value is not None}
    _check_item(given, name)
    media = [(kind, _as_url(given[key], key)) for key, kind in _MEDIA.items() if key in given]
    parts: list[Any] = [{"type": kind, kind: {"url": url}} for kind, url in media]
    return [*parts, {"type": "text", "text": given["text"]}] if "text" in given else parts


def _check_item(given: dict[str, Any], name: str) -> None:
    if unknown := sorted(map(str, given.keys() - {*_MEDIA, "text"})):
        raise bad_request(f"{name} has the unknown key {show(unknown[0])}; known are text, image, video", name)
    for key, value in given.items():
        if not isinstance(value, str) or not value:
            raise bad_request(f"{name}.{key} must be a text that is not empty, got {show(value)}", f"{name}.{key}")
    if not given:
        raise bad_request(f"{name} must have text, image or video", name)


def _as_url(source: str, kind: str) -> str:
    """Return a URL as it is, and base64 as a data URL."""
    is_url = ":" in source[:16]  # base64 has no colon
    return source if is_url else f"data:{kind}/*;base64,{source}"
