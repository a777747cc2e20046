"""Whether the texts of single tokens add up to the text of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesay.processors.text.tokenizer import Tokenizer

_ADDING_UP = frozenset({"ByteFallback", "Fuse", "Strip", "Metaspace", "ByteLevel"})


def spells_text(tokenizer: Tokenizer) -> bool:
    """Return whether a text is what `TokenSpelling.spell_all` says of its tokens, one after another, but for a space at
    its beginning. So it is for tokens that are bytes, and for pieces that write a space as U+2581."""
    if tokenizer.has_byte_level_decoder:
        return True
    decoder = tokenizer.backend.decoder
    return decoder is not None and all(map(_adds_up, _parts(json.loads(decoder.__getstate__()))))


def _parts(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for part in decoder["decoders"]:
        yield from _parts(part)


def _adds_up(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Replace":
        return bool(part["pattern"] == {"String": "\u2581"} and part["content"] == " ")
    return part["type"] in _ADDING_UP
