"""Document blocks of Anthropic's messages: PDFs become pictures of their pages, texts stay texts. Errors are 400."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seesay.config import MediaLimits
from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.requests.content import check_source
from seesay.serving.requests.document_fields import PAGE_FIELDS, make_document
from seesay.serving.requests.unknown_fields import refuse_unknown_fields
from seesay.values import MediaPart, TextPart

Part = TextPart | MediaPart
Block = Mapping[str, Any]
ReadPart = Callable[[Block, str], list[Part]]

_KEYS = ("type", "source", "title", "context", "citations", "cache_control", *PAGE_FIELDS)
_SOURCE_KEYS = {
    "base64": ("type", "media_type", "data"),
    "text": ("type", "media_type", "data"),
    "url": ("type", "url"),
    "content": ("type", "content"),
}
_MEDIA_TYPES = {"base64": ("application/pdf", "image/tiff"), "text": ("text/plain",)}


def read_document(block: Block, where: str, limits: MediaLimits, read_part: ReadPart) -> list[Part]:
    """Return the parts of a document block. `read_part` reads the blocks of a source of the type content."""
    refuse_unknown_fields(block, _KEYS, where, takes_null=True)
    for name in ("title", "context"):
        if not isinstance(block.get(name), str | None):
            raise bad_request(f"{where}.{name} must be a string, got {show(block[name])}", f"{where}.{name}")
    if block.get("citations") not in (None, {}, {"enabled": False}):
        raise bad_request(f"{where}.citations are not supported; leave them out", f"{where}.citations")
    path = f"{where}.source"
    source = block.get("source", {})
    kind = _kind_of(source, path)
    refuse_unknown_fields(source, _SOURCE_KEYS[kind], path, takes_null=True)
    _check_media_type(source, kind, path)
    context = [TextPart(text=f"{block['context']}\n")] if block.get("context") else []
    return [*context, *_read_source(block, source, where, limits, read_part)]


def _kind_of(source: object, path: str) -> str:
    kind = source.get("type") if isinstance(source, Mapping) else None
    if not isinstance(kind, str) or kind not in _SOURCE_KEYS:
        raise bad_request(
            f"{path} must be an object of type {', '.join(_SOURCE_KEYS)}, got {show(kind or source)}", f"{path}.type"
        )
    return kind


def _read_source(block: Block, source: Block, where: str, limits: MediaLimits, read_part: ReadPart) -> list[Part]:
    path = f"{where}.source"
    if source["type"] == "content":
        return _read_content(source.get("content"), f"{path}.content", read_part)
    key = "url" if source["type"] == "url" else "data"
    if not isinstance(source.get(key), str) or not source[key]:
        raise bad_request(f"{path}.{key} must be a non-empty string, got {show(source.get(key))}", f"{path}.{key}")
    if source["type"] == "text":
        title = f"[{block['title']}]\n" if block.get("title") else ""
        return [TextPart(text=f"{title}{source['data']}\n")]
    data = source[key] if key == "url" else f"data:{source['media_type']};base64,{source['data']}"
    check_source(data, limits, f"{path}.{key}")
    return [make_document(block, data, path=f"{path}.{key}", where=where, names={"filename": "title"})]


def _check_media_type(source: Mapping[str, object], kind: str, path: str) -> None:
    known = _MEDIA_TYPES.get(kind)
    if known is not None and source.get("media_type") not in known:
        raise bad_request(
            f"{path}.media_type must be {' or '.join(known)}, got {show(source.get('media_type'))}",
            f"{path}.media_type",
        )


def _read_content(content: object, where: str, read_part: ReadPart) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(text=content)]
    if not isinstance(content, list):
        raise bad_request(f"{where} must be a string or a list of blocks, got {show(content)}", where)
    parts: list[Part] = []
    for index, block in enumerate(content):
        if not isinstance(block, Mapping) or block.get("type") not in ("text", "image"):
            raise bad_request(f"{where}[{index}] must be a text or an image block", f"{where}[{index}].type")
        parts += read_part(block, f"{where}[{index}]")
    return parts
