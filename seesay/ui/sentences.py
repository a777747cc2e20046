"""Errors as sentences for visitors of the page."""

from __future__ import annotations

import re
from collections.abc import Callable

from seesay.errors import SeesayError
from seesay.serving.client import APIError
from seesay.values import split_place

# The place of a fault in the request, such as messages[0].content. Visitors did not write the request.
_PLACE = re.compile(r"^(messages|input)(\[\d+\])?(\.\w+(\[\d+\])?)*:?\s+")
_NAMELESS = re.compile(r"\bdata URL of [\d,]+ characters")
_BY_STATUS = {
    401: "The server requires an API key: start the WebUI with --api-key, or set SEESAY_API_KEY.",
    413: "The request is too large: send smaller pictures or a shorter video, or clear the conversation.",
    429: "The server is busy: wait a moment, then press retry.",
    503: "The server is not available right now: wait a moment, then press retry.",
}


def explain(error: Exception, find_file: Callable[[int, int], str | None] = lambda *_: None) -> str:
    """Return why there is no answer, in one or two sentences. `find_file` returns the name of the file that is part j
    of message i of the request."""
    if isinstance(error, OSError) and not isinstance(error, SeesayError):
        return "A file of this conversation no longer exists: clear the conversation and upload it again."
    if not isinstance(error, SeesayError):
        return f"Something went wrong in the WebUI ({type(error).__name__}): see its log."
    if isinstance(error, APIError) and error.status in _BY_STATUS:
        return _BY_STATUS[error.status]
    place, text = split_place(" ".join(str(error).split()))
    text = _name_file(text, None if place is None else find_file(*place))
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _name_file(text: str, name: str | None) -> str:
    """Return a server's message with the name of the visitor's file in it, if there is one."""
    text = _PLACE.sub("", text) or "the server gave no reason"
    text = _NAMELESS.sub(lambda _: "this file" if name is None else repr(name), text)
    return text if name is None or repr(name) in text else f"{name!r}: {text}"
