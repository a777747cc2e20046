"""Read the messages of a request and check them before any media is fetched.

`vl.messages` defines the forms that messages may have. This module decides which of them a client may use over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError, show
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.requests.document_fields import find_source
from seesay.serving.requests.turns import check_turns
from seesay.values import MediaPart, MediaPlace, Message, Modality, TextPart
from seesay.vl.prompts.conversation_parts import parse_messages, parse_parts

# Fields of assistant messages that clients send back unchanged. Empty ones are dropped.
_EMPTY_FIELDS = ("refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_UNSUPPORTED_PARTS = {"image_embeds": "send the picture itself, as image_url"}


def read_messages(messages: object, limits: MediaLimits, *, param: str = "messages") -> tuple[Message, ...]:
    """Turn OpenAI messages into `Message`s. Raises `ApiError` 400 that names the field at fault."""
    if not isinstance(messages, list) or not messages:
        raise bad_request(f"{param} must be a list with at least one message, got {show(messages)}", param)
    cleaned = [_clean(message, f"{param}[{index}]") for index, message in enumerate(messages)]
    check_turns(cleaned, param)
    try:
        parsed = parse_messages(cleaned, param)
    except RequestError as error:
        raise ApiError.from_error(error) from error
    check_media((part for message in parsed for part in message.parts if isinstance(part, MediaPart)), limits, param)
    return parsed


def read_parts(parts: Sequence[object], limits: MediaLimits, param: str) -> Message:
    """Return a message of the user with these content parts. Raises `ApiError` 400 that names the part at fault."""
    for index, part in enumerate(parts):
        _check_part(part, f"{param}[{index}]")
    try:
        message = Message(role="user", parts=parse_parts(parts, param))
    except RequestError as error:
        raise ApiError.from_error(error) from error
    check_media((part for part in message.parts if isinstance(part, MediaPart)), limits, param)
    return message


def read_pictures(urls: str | Sequence[str] | None, limits: MediaLimits, param: str) -> tuple[MediaPart, ...]:
    """Return the pictures of a field that holds a URL or a list of URLs. Raises `ApiError` 400 naming the bad one."""
    places = [param] if isinstance(urls, str) else [f"{param}[{index}]" for index in range(len(urls or ()))]
    pictures = tuple(
        MediaPart(modality=Modality.IMAGE, source=url, place=MediaPlace(source=place))
        for url, place in zip([urls] if isinstance(urls, str) else urls or (), places)
    )
    check_media(pictures, limits, param)
    return pictures


def text_of(message: Message) -> str:
    """Return the text of a message, without its pictures and videos."""
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def keep_media(messages: Iterable[Message], field: str) -> tuple[Message, ...]:
    """Return messages to store for later requests, which refer to them by `field`: errors then name that field."""
    place = MediaPlace(source=field)
    return tuple(
        replace(
            message,
            parts=tuple(replace(part, place=place) if isinstance(part, MediaPart) else part for part in message.parts),
        )
        for message in messages
    )


def check_media(media: Iterable[MediaPart], limits: MediaLimits, param: str) -> None:
    """Raise `ApiError` 400 for more pictures and videos than a request may have, and for forbidden sources."""
    media = list(media)
    if len(media) > limits.max_items:
        raise bad_request(
            f"{param} has {len(media)} pictures and videos; at most {limits.max_items} are allowed",
            param,
            code=ErrorCode.MEDIA_TOO_LARGE.value,
        )
    for part in media:
        check_source(part.source, limits, param if part.place is None else part.place.source)


def check_source(source: object, limits: MediaLimits, param: str) -> None:
    """Raise `ApiError` 400 for a media source that is not an http(s) or data URL, unless local paths are allowed."""
    if isinstance(source, list):
        for index, item in enumerate(source):
            check_source(item, limits, f"{param}[{index}]")
        return
    if not isinstance(source, str):
        raise bad_request(f"{param}: a URL must be a string, got {show(source)}", param, code="invalid_media")
    if source[:8].lower().startswith(("http://", "https://", "data:")):
        return
    folder = limits.allowed_local_media_path
    if folder is None:
        shown = source[:40] + ("…" if len(source) > 40 else "")
        raise bad_request(
            f"{param}: must be an http, https or data URL, got {shown!r}; files of the server are not read "
            "(start it with --allowed-local-media-path to allow a folder)",
            param,
            code="media_forbidden",
        )


def _check_parts(parts: Sequence[object], where: str) -> None:
    for index, part in enumerate(parts):
        _check_part(part, f"{where}[{index}]")


def _clean(message: object, where: str) -> Mapping[str, object]:
    if not isinstance(message, dict):
        raise bad_request(f"{where} must be an object with role and content, got {show(message)}", where)
    role = message.get("role")
    if role not in _ROLES:
        raise bad_request(f"{where}.role must be one of {', '.join(_ROLES)}, got {show(role)}", f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        _check_parts(content, f"{where}.content")
    cleaned = {key: value for key, value in message.items() if value or key not in _EMPTY_FIELDS}
    if role == "assistant":
        cleaned.pop("parsed", None)
        if isinstance(cleaned.get("tool_calls"), list):
            cleaned["tool_calls"] = list(map(_clean_call, cleaned["tool_calls"]))
    if role == "developer":
        cleaned["role"] = "system"  # OpenAI's newer models call it developer
    return cleaned


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict):
        return
    kind = part.get("type")
    if isinstance(kind, str) and kind in _UNSUPPORTED_PARTS:
        raise bad_request(f"{where}: {kind} is not supported; {_UNSUPPORTED_PARTS[kind]}", f"{where}.type")
    if kind == "file" and isinstance(part.get(kind), dict):
        find_source(part[kind], ("file_data",), f"{where}.file")
    if kind in ("image_url", "video_url", "audio_url", "file") and not isinstance(part.get(kind), dict | None):
        place = f"{where}.{kind}"
        source = "file_data" if kind == "file" else "a url"
        raise bad_request(f"{place} must be an object with {source}, got {show(part[kind])}", place)


def _clean_call(call: object) -> object:
    """Return a call without what clients add to the calls that they got: its index, and its arguments as objects."""
    if not isinstance(call, dict):
        return call
    cleaned = {key: value for key, value in call.items() if key != "index"}
    if isinstance(function := call.get("function"), dict):
        cleaned["function"] = {key: value for key, value in function.items() if key != "parsed_arguments"}
    return cleaned
