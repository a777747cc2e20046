"""Errors as sentences for people who look at a page, not at a terminal."""

from __future__ import annotations

import re

from seesay.errors import SeesayError
from seesay.serving.client import APIError

# Where in the request something was wrong means nothing to those who did not write it.
_PLACE = re.compile(r"^(messages|input)(\[\d+\])?(\.\w+(\[\d+\])?)*:?\s+")
_NAMELESS = re.compile(r"\bdata URL of [\d,]+ characters")
_BY_STATUS = {
    401: "The server wants an API key: start the WebUI with --api-key, or set SEESAY_API_KEY.",
    413: "This is too much for one request: send smaller pictures or a shorter clip, or clear the conversation.",
    429: "The server has too much to do: wait a moment, then press retry.",
    503: "The server is not taking questions now: wait a moment, then press retry.",
}


def explain(error: Exception) -> str:
    """Why there is no answer, as one sentence or two."""
    if isinstance(error, OSError) and not isinstance(error, SeesayError):
        return "A file of this conversation is gone: clear the conversation and upload it again."
    if not isinstance(error, SeesayError):
        return f"Something went wrong in the WebUI ({type(error).__name__}): its log says more."
    if isinstance(error, APIError) and error.status in _BY_STATUS:
        return _BY_STATUS[error.status]
    text = _PLACE.sub("", " ".join(str(error).split())) or "the server gave no reason"
    text = _NAMELESS.sub("this file", text)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
