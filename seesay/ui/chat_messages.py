"""Turn turns into the messages of Gradio's chat."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from seesay.ui.conversation import Turn, is_audio, is_document, is_video
from seesay.ui.escaping import escape_answer, escape_question
from seesay.ui.thumbnails import make_address, make_link, make_player

_WAITING = '<span class="seesay-wait" role="status" aria-label="The answer is coming"><i></i><i></i><i></i></span>'

_COPY = 'class="seesay-copy" title="Copy" aria-label="Copy the answer"'
_COPY_ICON = (
    '<svg viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.8" '
    'aria-hidden="true"><rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15V6a2 2 0 0 1 2-2h8"/></svg>'
)


def make_messages(turns: Sequence[Turn]) -> list[Any]:
    """Return two messages per turn: message i belongs to turn i // 2."""
    messages = []
    for turn in turns:
        # Gradio can edit a question only if it begins and ends with a text; style.css hides the second text.
        text = escape_question(turn.text)
        strip = [gr.HTML(make_strip(turn))] if turn.files else []
        question: list[Any] = [text, *strip, ""] if turn.text and strip else strip or [text]
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": _make_answer(turn)})
    return messages


def turn_index(data: Any) -> int:
    """Return the index of the turn to which a message of the chat belongs."""
    index = data.index[0] if isinstance(data.index, (tuple, list)) else data.index
    return int(index) // 2


def make_strip(turn: Turn) -> str:
    """Return HTML of a question's files side by side. It holds the question's text as typed, for the copy button that
    chat.js adds: Gradio has one only for questions without pictures."""
    shots = "".join(_make_shot(path) for path in turn.files)
    size = "one" if len(turn.files) == 1 else "many"
    return f'<div class="seesay-strip seesay-{size}" data-question="{escape(turn.text)}">{shots}</div>'


def _make_shot(path: str) -> str:
    name = escape(Path(path).name)
    if not Path(path).is_file():
        return f'<span class="seesay-gone">{name} is gone</span>'
    address = make_address(path)
    if is_document(path):
        return make_link(path)
    if is_audio(path):
        return make_player(path)
    if is_video(path):
        return f'<video src="{address}" aria-label="{name}" controls muted playsinline preload="metadata"></video>'
    return (
        f'<button type="button" class="seesay-shot" aria-label="Enlarge {name}" title="{name}">'
        f'<img src="{address}" alt=""></button>'
    )


def _make_answer(turn: Turn) -> list[Any]:
    if turn.error is not None:
        return [gr.HTML(f'<div class="seesay-error" role="alert">{escape(turn.error)}</div>')]
    if not turn.answer and not turn.is_done:
        return [gr.HTML(_WAITING)]
    answer: list[Any] = [escape_answer(turn.answer)] if turn.answer else []
    if turn.marked:
        answer = [gr.HTML(turn.marked)]
    return [*answer, gr.HTML(make_below(turn))] if turn.is_done else answer


def make_below(turn: Turn) -> str:
    """Return HTML below an answer that is complete: its copy button, which holds its Markdown, its note and details."""
    copy = f'<button type="button" {_COPY} data-copy="{escape(turn.answer)}">{_COPY_ICON}</button>'
    note = f'<div class="seesay-note">{escape(turn.note)}</div>' if turn.note else ""
    return f'<div class="seesay-below">{copy if turn.answer else ""}{note}{turn.details}</div>'
