"""The actions on a conversation: ask, retry, edit, undo, clear, stop. Does not depend on the page's layout."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from seesay.ui.answering import Answerer, Answering
from seesay.ui.conversation import STOPPED, Turn, files_of, find_file, make_messages
from seesay.ui.details import make_details
from seesay.ui.marks import make_marked
from seesay.ui.sentences import explain

_log = logging.getLogger("seesay.ui")

_NOTES = {
    "length": "The answer was cut: it reached max tokens or the end of the model's context.",
    "stopped": STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sampling settings; their defaults are those of `seesay chat`. model: one of the server's names. top_k: 0 is
    off."""

    model: str
    system_prompt: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 50
    max_tokens: int = 512

    def fields(self) -> dict[str, Any]:
        """The settings as fields of a chat completion request."""
        return {
            "model": self.model,
            "temperature": float(self.temperature),
            "top_p": float(self.top_p),
            "top_k": int(self.top_k),
            "max_tokens": int(self.max_tokens),
            "stream_options": {"include_usage": True},
        }


class Conversation:
    """One visitor's turns, and the running answer. Only that visitor's events change it.

    id: key of the conversation in the visitor's browser; empty before the first question.
    """

    def __init__(self) -> None:
        self.turns: tuple[Turn, ...] = ()
        self.id = ""
        self._running: Answering | None = None

    @property
    def is_busy(self) -> bool:
        return self._running is not None

    def stop(self) -> None:
        """Stop the running answer, if there is one."""
        if self._running is not None:
            self._running.stop()

    def clear(self) -> None:
        """Start a new conversation."""
        self.stop()
        self._running = None
        self.turns = ()
        self.id = ""

    def restore(self, conversation_id: str, turns: Sequence[Turn]) -> None:
        """Continue a saved conversation with these turns."""
        self.clear()
        self.id = conversation_id
        self.turns = tuple(_with_details(turn, turns[:i]) for i, turn in enumerate(turns))

    def undo(self, index: int) -> Turn | None:
        """Remove turn `index` and all turns after it. Returns the turn."""
        self.stop()
        self._running = None
        taken = self.turns[index] if 0 <= index < len(self.turns) else None
        self.turns = self.turns[: max(index, 0)]
        return taken

    def ask(self, client: Answerer, settings: Settings, *, text: str, files: Sequence[str]) -> Iterator[None]:
        """Add a turn and answer it. Yields after each change to show, the last time when the answer is complete. An
        error is stored in the turn."""
        if self._running is not None:
            self.stop()
            self._end(note=STOPPED)
        self.id = self.id or secrets.token_hex(8)
        self.turns = (*self.turns, Turn(text=text.strip(), files=tuple(files)))
        try:
            request = {**settings.fields(), "messages": make_messages(self.turns, settings.system_prompt)}
        except OSError as error:
            self._running = None
            self._end(error=explain(error))
            yield
            return
        find = partial(find_file, self.turns, settings.system_prompt)
        answering = self._running = Answering(client, request)
        yield
        try:
            yield from self._follow(answering, find)
        finally:
            if self._running is answering:
                self._running = None

    def _follow(self, answering: Answering, find: Callable[[int, int], str | None]) -> Iterator[None]:
        try:
            for piece in answering.pieces():
                if self._running is not answering:  # the visitor cleared, undid or asked something else meanwhile
                    return
                self._update(answer=self.turns[-1].answer + piece)
                yield
        except Exception as error:
            if self._running is answering:
                _log.info("no answer: %s", error, exc_info=not hasattr(error, "status"))
                self._running = None
                self._end(error=explain(error, find))
                yield
            return
        if self._running is not answering:
            return
        self._running = None
        reason = answering.finish_reason or "stopped"
        self._end(note=_NOTES.get(reason, ""), seen=answering.seen())
        self.turns = (*self.turns[:-1], _with_details(self.turns[-1], self.turns[:-1]))
        yield

    def _end(self, **changes: object) -> None:
        self._update(is_done=True, **changes)

    def _update(self, **changes: Any) -> None:
        self.turns = (*self.turns[:-1], replace(self.turns[-1], **changes))


def _with_details(turn: Turn, earlier: Sequence[Turn]) -> Turn:
    if turn.seen is None:
        return turn
    files = files_of(earlier)
    marked = make_marked(turn.answer, turn.seen, [*files, *turn.files])
    return replace(turn, marked=marked, details=make_details(turn.seen, turn.files, files))
