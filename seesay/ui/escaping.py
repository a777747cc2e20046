"""Escape texts of users and models for Gradio's chat, so that it shows them without rendering HTML, images or diagrams.

The chat renders Markdown, while its edit box and copy button use the Markdown source. Every escape is therefore marked
with an invisible character, by which `unescape`, and page.js in the browser, remove it again.
"""

from __future__ import annotations

import re

MARK = "\u2064"
"""INVISIBLE PLUS: has no glyph, does not end a word, and does not occur in real texts."""

_ADDED = re.compile(rf"{MARK}\\?")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_LINE_START = re.compile(r"^(?=[ \t])", re.MULTILINE)
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=[#A-Za-z])")
_INLINE_IMAGE = re.compile(r"!(\[[^\[\]]*\])\(")
_IMAGE = re.compile(r"!(?=\[)")
_DIAGRAM = re.compile(r"([`~]{3}[ \t]*)(?=mermaid)", re.IGNORECASE)


def escape_question(text: str) -> str:
    """Return Markdown that shows `text` literally."""
    return _LINE_START.sub(MARK, _PUNCTUATION.sub(rf"{MARK}\\\1", text.replace(MARK, "")))


def escape_answer(text: str) -> str:
    """Keep the Markdown of `text`, but show its HTML and images literally, and its diagrams as code."""
    text = text.replace(MARK, "")
    text = _TAG.sub(f"<{MARK}", text)
    text = _ENTITY.sub(f"&{MARK}", text)
    text = _INLINE_IMAGE.sub(rf"!\1{MARK}(", text)
    text = _IMAGE.sub(f"!{MARK}", text)  # reference-style or nested images become links
    return _DIAGRAM.sub(rf"\1{MARK}", text)


def unescape(text: str) -> str:
    """Return the text that was passed to `escape_question` or `escape_answer`."""
    return _ADDED.sub("", text)
