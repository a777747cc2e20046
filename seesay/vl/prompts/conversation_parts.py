"""Turns everything that `pipe(...)` accepts into requests. Nothing is fetched, decoded or rendered here.

A prompt is a text, OpenAI messages (a list of dicts), `(text, media)` or `(media, text)`; a list of those is a batch.
Of two texts the second is the media, unless the first looks more like media than the second does.
A bad prompt becomes a `RequestError` in the result, so that its siblings are answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NoReturn

from seesay.config import GenerationConfig
from seesay.errors import ErrorCode, RequestError, show
from seesay.processors.media.sources import is_base64_media
from seesay.values import (
    AUDIO_SUFFIXES,
    DOCUMENT_SUFFIXES,
    IMAGE_SUFFIXES,
    VIDEO_SUFFIXES,
    AudioSamples,
    GenerationRequest,
    MediaPart,
    MediaPlace,
    Message,
    Modality,
    TextPart,
    VideoFrames,
)
from seesay.vl.constants import AUDIO_TOKEN, DETAILS, IMAGE_TOKEN, VIDEO_TOKEN

Part = TextPart | MediaPart

_ROLES = ("system", "user", "assistant", "tool", "developer")
_NOT_CALLERS = ("assistant", "tool")
"""Roles whose texts the caller of the pipeline seldom wrote."""
_MESSAGE_EXTRAS = ("name", "tool_calls", "tool_call_id", "reasoning_content")
_ACCEPTED = "a text, OpenAI messages (a list of dicts), (text, image), or (text, [images])"
_URL = re.compile(r"\s*(https?|file)://", re.IGNORECASE)
_DATA_URL = re.compile(r"data:[^\s,]*,", re.IGNORECASE)
_MODALITIES = {IMAGE_TOKEN: Modality.IMAGE, VIDEO_TOKEN: Modality.VIDEO, AUDIO_TOKEN: Modality.AUDIO}
_TOKENS = re.compile("|".join(map(re.escape, _MODALITIES)))
_BY_NAME = {
    Modality.DOCUMENT: ((".pdf",), "data:application/pdf"),
    Modality.VIDEO: (VIDEO_SUFFIXES, "data:video/"),
    Modality.AUDIO: (AUDIO_SUFFIXES, "data:audio/"),
}
_BY_TYPE: Mapping[type, Modality] = {AudioSamples: Modality.AUDIO, VideoFrames: Modality.VIDEO}
_SOURCES = {
    "image_url": (Modality.IMAGE, "url"),
    "video_url": (Modality.VIDEO, "url"),
    "image_data": (Modality.IMAGE, "data"),
    "file": (Modality.DOCUMENT, "file_data"),
}
_AUDIO_FORMATS = ("wav", "mp3", "flac", "ogg", "opus", "aac", "m4a", "webm")


def parse_prompts(
    prompts: Any,
    gen_config: GenerationConfig | Sequence[GenerationConfig] | None = None,
    *,
    do_preprocess: bool = True,
) -> tuple[list[GenerationRequest | RequestError], bool]:
    """Return (a request or its error for each prompt, whether the answer is a list).

    do_preprocess: apply the chat template. Without it a prompt is a raw text, in which special tokens are honoured and
    `IMAGE_TOKEN` marks the places of media.

    Raises ValueError when `gen_config` is a list of another length than the prompts.
    """
    is_list = isinstance(prompts, list) and not (prompts and all(isinstance(p, Mapping) for p in prompts))
    items = prompts if is_list else [prompts]
    configs = _one_each(gen_config, len(items))
    requests: list[GenerationRequest | RequestError] = []
    for item, config in zip(items, configs):
        try:
            requests.append(_parse_item(item, config, do_preprocess=do_preprocess))
        except RequestError as error:
            requests.append(error)
    return requests, is_list


def parse_messages(messages: Iterable[Mapping[str, object]], where: str = "messages") -> tuple[Message, ...]:
    """Return OpenAI messages as values. Media stay where their parts are; `IMAGE_TOKEN` in a text is text.

    Raises RequestError naming what is wrong and where. `where` is the name of the list of messages.
    """
    return tuple(_parse_message(message, f"{where}[{index}]") for index, message in enumerate(messages))


def _one_each(gen_config: GenerationConfig | Sequence[GenerationConfig] | None, num: int) -> list[GenerationConfig]:
    if gen_config is None or isinstance(gen_config, GenerationConfig):
        return [gen_config or GenerationConfig()] * num
    if not isinstance(gen_config, list | tuple):
        raise TypeError(f"gen_config must be a GenerationConfig or a list of them, not {type(gen_config).__name__}")
    configs = list(gen_config)
    if len(configs) != num:
        raise ValueError(f"gen_config: {len(configs)} for {num} prompts; give one for all or one for each")
    for config in configs:
        if not isinstance(config, GenerationConfig):
            raise TypeError(f"gen_config must be a GenerationConfig or a list of them, not {type(config).__name__}")
    return configs


def _parse_placed(messages: Iterable[Mapping[str, object]]) -> tuple[Message, ...]:
    """Return the messages of the pipeline's caller, who wrote their texts: `IMAGE_TOKEN` is a marker, as in a tuple."""
    return tuple(_place_in_message(message, f"messages[{i}]") for i, message in enumerate(parse_messages(messages)))


def _parse_item(item: object, config: GenerationConfig, *, do_preprocess: bool) -> GenerationRequest:
    if isinstance(item, str):
        return _parse_text(item, [], config, ("the prompt", "in a tuple, (text, media)"), do_preprocess=do_preprocess)
    if isinstance(item, tuple):
        return _parse_text(*_parse_pair(item), config, ("the text", "in the tuple"), do_preprocess=do_preprocess)
    if isinstance(item, Mapping):
        item = [item]
    if isinstance(item, list) and not item:
        _fail(f"the prompt is an empty list; it must be {_ACCEPTED}")
    if isinstance(item, list) and all(isinstance(message, Mapping) for message in item):
        if not do_preprocess:
            _fail("with do_preprocess=False a prompt is a text, or (text, media); these are messages")
        return GenerationRequest(prompt=_parse_placed(item), gen_config=config)
    _fail(f"a prompt must be {_ACCEPTED}; this one is {_describe(item)}")


def _parse_text(
    text: str, media: list[MediaPart], config: GenerationConfig, names: tuple[str, str], *, do_preprocess: bool
) -> GenerationRequest:
    """Return the request of a text with media. `names`: what messages call the text, and the place of the media."""
    if not do_preprocess:
        _find_marked([text], media, *names)
        return GenerationRequest(prompt=text, media=tuple(media), gen_config=config)
    parts = _place([*media, TextPart(text=text)], *names)
    return GenerationRequest(prompt=(Message(role="user", parts=parts),), gen_config=config)


# --- (text, media) ---------------------------------------------------------------------------------------------------


def _parse_pair(pair: tuple[object, ...]) -> tuple[str, list[MediaPart]]:
    if len(pair) != 2:
        _fail(f"a tuple prompt has two elements, (text, image) or (text, [images]); this one has {len(pair)}")
    first, second = pair
    if isinstance(first, str) and not (isinstance(second, str) and _media_rank(first) > _media_rank(second)):
        text, media = first, second
    elif isinstance(second, str):
        text, media = second, first
    else:
        _fail(
            "one element of a tuple prompt must be the text; "
            f"the first is {_describe(first)}, the second {_describe(second)}"
        )
    if media is None:
        _fail("the image of a tuple prompt is None; leave the tuple out to ask without an image")
    sources = list(media) if isinstance(media, list | tuple) else [media]
    return text, [_make_media(source) for source in sources]


def _media_rank(text: str) -> int:
    """Return how likely a string is media and not the question about it, 0 to 3. A question has blanks, and may end in
    the name of a file."""
    is_word = not re.search(r"\s", text.strip())
    is_url = _URL.match(text) is not None
    has_suffix = text.lower().endswith(IMAGE_SUFFIXES + VIDEO_SUFFIXES + DOCUMENT_SUFFIXES + AUDIO_SUFFIXES)
    if (is_url and is_word) or _DATA_URL.match(text) or is_base64_media(text):
        return 3
    if (has_suffix and (is_word or is_url)) or _is_file(text):
        return 2
    return int(has_suffix or is_word)


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a text that is too long for a path
        return False


def _make_media(source: object) -> MediaPart:
    name = str(source) if isinstance(source, str | PurePath) else ""
    address = name.partition("?")[0].lower() if "://" in name else name.lower()
    modality = _BY_TYPE.get(type(source), Modality.IMAGE)
    for kind, (suffixes, beginning) in _BY_NAME.items():
        if address.endswith(suffixes) or name.startswith(beginning):
            modality = kind
    return MediaPart(modality=modality, source=source)


def _place_in_message(message: Message, where: str) -> Message:
    """Return a message with its media at their markers. A model's answer and a tool's without media are plain text."""
    if message.role in _NOT_CALLERS and not any(isinstance(part, MediaPart) for part in message.parts):
        return message
    return replace(message, parts=_place(message.parts, where, "in the same message"))


def _place(parts: Sequence[Part], where: str, place: str) -> tuple[Part, ...]:
    """Move media to the places of `IMAGE_TOKEN`, `VIDEO_TOKEN` and `AUDIO_TOKEN` in the texts of the same message.

    Media of a modality whose token is absent stay where they are. Raises RequestError as `_find_marked` does.
    """
    media = [part for part in parts if isinstance(part, MediaPart)]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    placed = _find_marked(texts, media, where, place)
    if not placed:
        return tuple(parts)
    queues = _sort_by_token(media, placed)
    moved = chain.from_iterable(_place_part(part, queues) for part in parts)
    return tuple(part for part in moved if isinstance(part, MediaPart) or part.text)


def _sort_by_token(media: Sequence[MediaPart], placed: Iterable[Modality]) -> dict[Modality, Iterator[MediaPart]]:
    """Return the media by the modality whose token stands for them."""
    return {modality: iter([part for part in media if part.modality.stands_as is modality]) for modality in placed}


def _place_part(part: Part, queues: Mapping[Modality, Iterator[MediaPart]]) -> Iterable[Part]:
    """Return what stands in the place of a part: media that stand in a text are left out where they were."""
    if isinstance(part, TextPart):
        return _fill_places(part.text, queues)
    return () if part.modality.stands_as in queues else (part,)


def _fill_places(text: str, queues: Mapping[Modality, Iterator[MediaPart]]) -> Iterator[Part]:
    """Yield the texts between the tokens of a text, and the next medium of a queue for each token."""
    done = 0
    for match in _TOKENS.finditer(text):
        yield TextPart(text=text[done : match.start()])
        yield replace(next(queues[_MODALITIES[match[0]]]), is_placed=True)
        done = match.end()
    yield TextPart(text=text[done:])


def _find_marked(texts: Sequence[str], media: Sequence[MediaPart], where: str, place: str) -> frozenset[Modality]:
    """Return the modalities whose tokens are in `texts`. Raises RequestError when there are not as many as media.
    `where` is the name of the texts, and `place` says where their media must be given."""
    marked: set[Modality] = set()
    for token, modality in _MODALITIES.items():
        num_tokens = sum(text.count(token) for text in texts)
        num_media = sum(part.modality.stands_as is modality for part in media)
        if num_tokens and num_tokens != num_media:
            _fail(
                f"{where} has {num_tokens} {token} for {num_media} {modality.value}(s); the numbers must be equal: "
                f"give one {modality.value} for each {place}, or change the text"
            )
        if num_tokens:
            marked.add(modality)
    return frozenset(marked)


# --- OpenAI messages -----------------------------------------------------------------------------------------------


def _parse_message(message: Mapping[str, object], where: str) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        _fail(f"{where} has no role ({', '.join(_ROLES)})", f"{where}.role")
    if role not in _ROLES:
        _fail(f"{where} has the unknown role {show(role)}; known are {', '.join(_ROLES)}", f"{where}.role")
    extra = _read_extra(message, where)
    return Message(role=role, parts=_read_content(message.get("content"), extra, where), extra=extra)


def _read_extra(message: Mapping[str, object], where: str) -> dict[str, object]:
    """Return the fields of a message beside role and content. Empty ones are left out: clients send back the empty
    fields of the answers they got."""
    extra = {key: value for key, value in message.items() if key not in ("role", "content") and value is not None}
    for key in extra:
        if key not in _MESSAGE_EXTRAS:
            _fail(
                f"{where} has the unknown key {show(key)}; known are role, content, {', '.join(_MESSAGE_EXTRAS)}",
                f"{where}.{str(key)[:60]}",
            )
    return extra


def _read_content(content: object, extra: Mapping[str, object], where: str) -> tuple[Part, ...]:
    if content is None:
        if not extra.get("tool_calls"):
            _fail(f"{where} has no content", f"{where}.content")
        return ()
    if isinstance(content, str):
        return (TextPart(text=content),)
    if isinstance(content, list | tuple):
        return tuple(parse_parts(content, f"{where}.content"))
    _fail(f"{where}.content must be a text or a list of parts; it is {_describe(content)}", f"{where}.content")


def parse_parts(parts: Sequence[object], where: str) -> tuple[Part, ...]:
    """Return the parts of a message's content. Errors name `where` and the index of the part at fault."""
    return tuple(_parse_part(part, f"{where}[{index}]") for index, part in enumerate(parts))


def _parse_part(part: object, where: str) -> Part:
    if isinstance(part, str):
        return TextPart(text=part)
    if not isinstance(part, Mapping):
        _fail(f"{where} must be an object with a type; it is {_describe(part)}", where)
    kind = part.get("type")
    if kind == "text":
        _refuse_unknown(part, ("type", "text"), where)
        if not isinstance(part.get("text"), str):
            _fail(f"{where}.text must be a text; it is {_describe(part.get('text'))}", f"{where}.text")
        return TextPart(text=part["text"])
    if isinstance(kind, str) and kind in _SOURCES:
        _refuse_unknown(part, ("type", kind), where)
        return _parse_media_object(part.get(kind), *_SOURCES[kind], f"{where}.{kind}")
    if kind in ("image", "video", "document"):
        return _parse_inline_media(part, Modality(kind), where)
    if kind in ("audio", "audio_url", "input_audio"):
        return parse_audio(part, kind, where)
    known = "text, image_url, image, image_data, video_url, video, audio_url, audio, input_audio, file, document"
    _fail(f"{where} has the unknown type {show(kind)}; known are {known}", f"{where}.type")


def _parse_media_object(value: object, modality: Modality, source_key: str, where: str) -> MediaPart:
    """`{"url": …, option: …}`, or the source alone."""
    path = f"{where}.{source_key}" if isinstance(value, Mapping) else where
    if not isinstance(value, Mapping):
        value = {source_key: value}
    if value.get(source_key) is None:
        _fail(f"{where} has no {source_key}", f"{where}.{source_key}")
    return _make_part(modality, value[source_key], value, (source_key,), path=path, where=where)


def _parse_inline_media(part: Mapping[str, object], modality: Modality, where: str) -> MediaPart:
    """`{"type": "image", "image": source, option: …}`, as Qwen and Transformers write it."""
    keys = [key for key in (modality.value, "url", "path", "base64") if part.get(key) is not None]
    if len(keys) != 1:
        _fail(f"{where} must have exactly one of {modality.value}, url, path, base64; it has {keys or 'none'}", where)
    return _make_part(modality, part[keys[0]], part, ("type", keys[0]), path=f"{where}.{keys[0]}", where=where)


def parse_audio(part: Mapping[str, object], kind: str, where: str) -> MediaPart:
    """`{"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}`, `{"type": "audio_url", "audio_url":
    {"url": …}}`, or `{"type": "audio", "audio": source}`. Audio has no options."""
    if kind == "audio":
        _refuse_unknown(part, ("type", "audio", "url", "path", "base64"), where)
        return _parse_inline_media(part, Modality.AUDIO, where)
    _refuse_unknown(part, ("type", kind), where)
    value, place = part.get(kind), f"{where}.{kind}"
    if kind == "audio_url":
        if isinstance(value, Mapping):
            _refuse_unknown(value, ("url",), place)
        return _parse_media_object(value, Modality.AUDIO, "url", place)
    if not isinstance(value, Mapping):
        _fail(f"{place} must be an object with data and format; it is {_describe(value)}", place)
    _refuse_unknown(value, ("data", "format"), place)
    data, form = value.get("data"), value.get("format")
    if not isinstance(data, str) or not data:
        _fail(f"{place}.data must be base64; it is {_describe(data)}", f"{place}.data")
    if form not in _AUDIO_FORMATS:
        _fail(f"{place}.format must be {', '.join(_AUDIO_FORMATS)}, got {show(form)}", f"{place}.format")
    source = f"data:audio/{form};base64,{data}"
    return MediaPart(modality=Modality.AUDIO, source=source, place=MediaPlace(source=f"{place}.data", parent=place))


def _make_part(
    modality: Modality, source: object, holder: Mapping[str, object], reserved: Sequence[str], *, path: str, where: str
) -> MediaPart:
    """Return a media part. All keys of `holder` that are not reserved are options, which decoding and the model's
    family check later. None means the default. `path` is that of the source, `where` that of `holder`."""
    options = {key: value for key, value in holder.items() if key not in reserved and value is not None}
    if "nframes" in options and "num_frames" in options:  # the first is qwen-vl-utils' spelling
        _fail(f"{where} has both nframes and num_frames, which mean the same", f"{where}.nframes")
    keys = dict(zip(options, options))
    detail = options.pop("detail", "auto")
    if detail not in DETAILS:
        _fail(f"{where}.detail must be {', '.join(DETAILS)}, got {show(detail)}", f"{where}.detail")
    if detail == "low":
        options["detail"] = detail
    place = MediaPlace(source=path, parent=where, keys=keys)
    return MediaPart(modality=modality, source=source, options=options, place=place)


def _refuse_unknown(part: Mapping[str, object], known: Sequence[str], where: str) -> None:
    unknown = (str(key) for key, value in part.items() if key not in known and value is not None)
    if (first := min(unknown, default=None)) is not None:
        _fail(f"{where} has the unknown key {show(first)}; known are {', '.join(known)}", f"{where}.{first[:60]}")


def _describe(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _fail(message: str, param: str = "prompts") -> NoReturn:
    raise RequestError(ErrorCode.INVALID_REQUEST, message, param)
