"""Handlers of the page's events: they change the conversation and return what to show. Independent of the layout.

`submit`, `retry`, `edit`, `choose_example`, `undo_turn` and `clear_chat` return or yield new values for the chat, the
input box and the record that the browser stores. The docstrings of the others say what they return.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from seesay.ui.answering import Answerer
from seesay.ui.chat import Conversation, Settings
from seesay.ui.chat_messages import make_messages, turn_index
from seesay.ui.download import make_download
from seesay.ui.escaping import unescape
from seesay.ui.export import export_json, export_markdown
from seesay.ui.history import record_of
from seesay.ui.imported import read_conversation
from seesay.ui.record import make_record, read_record
from seesay.ui.sentences import explain
from seesay.ui.uploads import Uploads

Example = tuple[str, str, tuple[str, ...]]
"""A question, the name of its icon, and the names of its files."""

FindClient = Callable[[gr.Request], Answerer | None]
"""Returns the server as the visitor of a request may use it. None if he is not signed in."""

_RECORD_INTERVAL_S = 1.0
_READY: dict[str, Any] = {"submit_btn": True, "stop_btn": False}
_log = logging.getLogger("seesay.ui")


def make_title(models: Sequence[str]) -> str:
    """Return HTML of the page's title: with the model, if there is one and no choice."""
    name = escape(models[0]) if len(models) == 1 else ""
    return f'<div class="seesay-title"><h1>seesay</h1><span title="{name}">{name}</span></div>'


class Handlers:
    """The handlers of one page that need its server or settings, for all its visitors. `read_settings` turns the values
    of the controls into settings."""

    def __init__(
        self,
        find_client: FindClient,
        read_settings: Callable[[Sequence[Any]], Settings],
        *,
        examples: Sequence[Example],
        examples_folder: Path,
        uploads: Uploads,
    ) -> None:
        self._find_client = find_client
        self._read_settings = read_settings
        self._examples = examples
        self._examples_folder = examples_folder
        self._uploads = uploads

    def _answer(
        self, talk: Conversation, request: gr.Request, values: Sequence[object], text: str, files: Sequence[str]
    ) -> Iterator[Any]:
        client, settings = self._client_of(request), self._read_settings(values)
        if not settings.model:  # the page does not know the models yet
            settings = replace(settings, model=client.available_models[0])
        update = gr.update(submit_btn=False, stop_btn=True)
        recorded_at = 0.0
        for _ in talk.ask(client, settings, text=text, files=files):
            record: Any = gr.skip()
            if not talk.is_busy or time.monotonic() - recorded_at >= _RECORD_INTERVAL_S:
                record, recorded_at = make_record(talk.id, talk.turns), time.monotonic()
            yield make_messages(talk.turns), update, record
            update = gr.skip()

    def _client_of(self, request: gr.Request) -> Answerer:
        client = self._find_client(request)
        if client is None:
            raise gr.Error("You are signed out: reload the page.", print_exception=False)
        return client

    def load(self, request: gr.Request) -> Any:
        """Return the page's title, and the choice of models, for a visitor who has just signed in."""
        models = self._client_of(request).available_models
        return make_title(models), gr.update(choices=models, value=models[0], visible=len(models) > 1)

    def submit(
        self, value: dict[str, Any] | None, talk: Conversation, request: gr.Request, *values: object
    ) -> Iterator[Any]:
        text, files = (value or {}).get("text") or "", (value or {}).get("files") or []
        if not (text.strip() or files):
            yield gr.skip(), gr.skip(), gr.skip()
            return
        emptied = {"value": None}
        for messages, update, record in self._answer(talk, request, values, text, files):
            yield messages, {**update, **emptied}, record
            emptied = {}

    def retry(self, talk: Conversation, data: gr.RetryData, request: gr.Request, *values: object) -> Iterator[Any]:
        turn = talk.undo(turn_index(data))
        if turn is not None:
            yield from self._answer(talk, request, values, turn.text, turn.files)

    def edit(self, talk: Conversation, data: gr.EditData, request: gr.Request, *values: object) -> Iterator[Any]:
        turn = talk.undo(turn_index(data))
        if turn is not None:
            yield from self._answer(talk, request, values, unescape(str(data.value)), turn.files)

    def choose_example(
        self, talk: Conversation, data: gr.SelectData, request: gr.Request, *values: object
    ) -> Iterator[Any]:
        text, _, files = self._examples[int(data.index) % len(self._examples)]
        yield from self._answer(talk, request, values, text, [str(self._examples_folder / file) for file in files])

    def restore(self, talk: Conversation, data: gr.EventData) -> Any:
        """Continue a stored conversation, or one from a file. Returns values for the chat, the input box, the record
        and the system prompt."""
        given = record_of(data)
        if isinstance(given, Mapping) and "path" in given:
            return self._import(talk, given["path"])
        try:
            talk.restore(*read_record(given, accepts=self._uploads.accepts))
        except ValueError as error:
            _log.info("a conversation cannot be restored: %s", error)
            raise gr.Error("This conversation cannot be read.", print_exception=False) from None
        return make_messages(talk.turns), gr.update(**_READY), gr.skip(), gr.skip()

    def _import(self, talk: Conversation, path: object) -> object:
        try:
            if not isinstance(path, str) or not self._uploads.accepts(path):
                raise ValueError("it was not uploaded")
            system_prompt, turns = read_conversation(Path(path).read_bytes(), self._uploads.write)
        except (OSError, ValueError) as error:
            raise gr.Error(f"This file cannot be imported: {escape(str(error))}.", print_exception=False) from None
        talk.restore(secrets.token_hex(8), turns)
        prompt = system_prompt or gr.skip()
        return make_messages(talk.turns), gr.update(**_READY), make_record(talk.id, talk.turns), prompt

    def export(self, talk: Conversation, data: gr.EventData, *values: object) -> Any:
        """Write the conversation to a file. Returns what makes the browser save it."""
        settings = self._read_settings(values)
        try:
            if record_of(data)["format"] == "json":
                file = export_json(talk.turns, model=settings.model, system_prompt=settings.system_prompt)
            else:
                file = export_markdown(talk.turns, model=settings.model)
            return make_download(self._uploads.write(file.name, file.content))
        except OSError as error:
            _log.info("a conversation cannot be exported: %s", error)
            raise gr.Error(explain(error), print_exception=False) from None


def end_answer(talk: Conversation) -> Any:
    """Let the next question be sent, once the event of the one before has ended: Gradio ignores it until then."""
    return gr.skip() if talk.is_busy else gr.update(**_READY)


def undo_turn(talk: Conversation, data: gr.UndoData) -> Any:
    turn = talk.undo(turn_index(data))
    update = gr.update(**_READY)
    if turn is not None:
        update["value"] = {"text": turn.text, "files": [path for path in turn.files if Path(path).is_file()]}
    return make_messages(talk.turns), update, make_record(talk.id, talk.turns)


def clear_chat(talk: Conversation) -> Any:
    forgotten = make_record(talk.id, ()) if talk.id else gr.skip()
    talk.clear()
    return [], gr.update(**_READY), forgotten


def begin_another(talk: Conversation) -> Any:
    talk.clear()
    return [], gr.update(**_READY)


def add_photo(path: str | None, value: dict[str, Any] | None) -> Any:
    if path is None:
        return gr.skip(), gr.skip(), gr.skip()
    files = [*((value or {}).get("files") or []), path]
    added = {"text": (value or {}).get("text") or "", "files": files}
    return gr.update(value=added), gr.update(value=None, visible=False), False


def stop_answer(talk: Conversation) -> None:
    talk.stop()
