"""What people and models write, as text that Gradio's chat shows and does not execute: no HTML, no images, no diagrams.

The chat renders Markdown, and its edit box and copy button take the Markdown itself. So what is added to a text here is
marked by an invisible character, by which `unescape`, and page.js in the browser, take it out again.
"""

from __future__ import annotations

import re

MARK = "\u2064"
"""INVISIBLE PLUS: has no glyph, ends no word, and stands in nobody's text."""

_ADDED = re.compile(rf"{MARK}\\?")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_LINE_START = re.compile(r"^(?=[ \t])", re.MULTILINE)
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=[#A-Za-z])")
_INLINE_IMAGE = re.compile(r"!(\[[^\[\]]*\])\(")
_IMAGE = re.compile(r"!(?=\[)")
_DIAGRAM = re.compile(r"([`~]{3}[ \t]*)(?=mermaid)", re.IGNORECASE)


def escape_question(text: str) -> str:
    """Markdown that shows `text` as it is."""
    return _LINE_START.sub(MARK, _PUNCTUATION.sub(rf"{MARK}\\\1", text.replace(MARK, "")))


def escape_answer(text: str) -> str:
    """`text` with its Markdown, but its HTML and images shown as they are written, and its diagrams as code."""
    text = text.replace(MARK, "")
    text = _TAG.sub(f"<{MARK}", text)
    text = _ENTITY.sub(f"&{MARK}", text)
    text = _INLINE_IMAGE.sub(rf"!\1{MARK}(", text)
    text = _IMAGE.sub(f"!{MARK}", text)  # by reference, or nested: a link remains
    return _DIAGRAM.sub(rf"\1{MARK}", text)


def unescape(text: str) -> str:
    """What was given to `escape_question` or `escape_answer`."""
    return _ADDED.sub("", text)
