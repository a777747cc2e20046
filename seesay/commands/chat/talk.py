"""A conversation at a terminal: questions, attachments and errors. Knows nothing of how a line is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from seesay.commands.chat.answering import Answerer, Counts, Piece
from seesay.commands.chat.dropped_files import kind_of
from seesay.commands.chat.editable_conversation import Attachment, Conversation, Kind, Turn
from seesay.commands.chat.terminal import Terminal
from seesay.values import split_place


class Talk:
    """The conversation with one model.

    failed: the last question, if it was not answered; /retry asks it again. num_errors: those that were reported.
    is_over: whether the user has left.
    """

    def __init__(
        self,
        model: Answerer,
        terminal: Terminal,
        conversation: Conversation,
        *,
        max_new_tokens: int,
        adapt: Callable[[str], str],
    ) -> None:
        """max_new_tokens: longest answer of `model`. adapt: rewrites error messages for the command line."""
        self.conversation = conversation
        self.terminal = terminal
        self.failed: Turn | None = None
        self.num_errors = 0
        self.is_over = False
        self._max_new_tokens = max_new_tokens
        self._adapt = adapt
        self._model = model

    def ask_text(self, text: str) -> None:
        """Ask with what is attached, as `ask` does."""
        self.ask(Turn(text=text, media=self.conversation.take_attached()))

    def ask(self, turn: Turn) -> None:
        """Answer a question, and add it to the conversation unless it failed. Ctrl-C stops the answer.

        Raises SeesayError if the model cannot answer.
        """
        self.failed = turn
        meter = _Meter()
        turn.answer = ""
        is_stopped = False
        try:
            self._write_answer(turn, meter)
        except KeyboardInterrupt:
            if not self.terminal.is_interactive:
                raise
            is_stopped = True
        finally:
            if turn.answer and not turn.answer.endswith("\n"):
                self.terminal.write("\n")
        if is_stopped:
            self.terminal.aside("[stopped]")
        if turn.answer or not is_stopped:
            self.conversation.turns.append(turn)
            self.failed = None
        if meter.is_cut:
            self.terminal.notice(f"[cut off{self._explain_cut(meter.counts)}]")
        if (counts := meter.describe()) is not None:
            self.terminal.aside(counts)

    def _write_answer(self, turn: Turn, meter: _Meter) -> None:
        with closing(self._model.answer(self.conversation.messages(turn))) as pieces:
            for piece in pieces:
                meter.note(piece)
                turn.answer += piece.text
                self.terminal.write(piece.text)

    def _explain_cut(self, counts: Counts | None) -> str:
        if counts is not None and counts.completion_tokens < self._max_new_tokens:
            return ": the context is full; /undo or /reset makes room"
        return " at the length limit; raise it with --max-new-tokens"

    def fail(self, message: str) -> None:
        """Report an error."""
        self.num_errors += 1
        self.terminal.error(self._adapt(self._name_files(message)))

    def _name_files(self, message: str) -> str:
        """Put file names into an error message of a request: the request carried the files as data URLs, and its
        places mean nothing to the person at the terminal."""
        asked = [turn for turn in (*self.conversation.turns, self.failed) if turn is not None]
        for attachment in (attachment for turn in asked for attachment in turn.media):
            if attachment.source != attachment.url:
                message = message.replace(f"data URL of {len(attachment.url)} characters", repr(attachment.name))
        place, text = split_place(message)
        if place is None:
            return message
        message_index, part_index = place
        name = _find_name(asked, (message_index - bool(self.conversation.system)) // 2, part_index)
        return text if name is None or name in text else f"{name}: {text}"

    def attach(self, sources: Sequence[str], kind: Kind | None = None) -> None:
        """Attach files or URLs to the next question. Raises SeesayError for one that cannot be read."""
        found = [Attachment.read(kind or kind_of(source) or "image", source) for source in sources]
        self.conversation.attached += found
        for attachment in found:
            self.terminal.aside(f"[{attachment.kind} {attachment.name}: attached to your next message]")

    def take_back(self, num: int) -> None:
        """Take the last `num` turns out of the conversation."""
        turns = self.conversation.turns
        taken = turns[max(0, len(turns) - num) :]
        del turns[len(turns) - len(taken) :]
        self.failed = None
        if not taken:
            self.terminal.notice("[there is no turn to take back]")
        for turn in reversed(taken):
            self.terminal.aside(f"[took back: {_shorten(turn.text)}]")

    def last_question(self) -> Turn | None:
        """Return the last question, and remove it from the conversation if it is in it."""
        if self.failed is not None:
            return self.failed
        if not self.conversation.turns:
            self.terminal.notice("[no question has been asked yet]")
            return None
        return self.conversation.turns.pop()


class _Meter:
    """Measure the time to first token and the pace of an answer."""

    def __init__(self) -> None:
        self._started_at = time.perf_counter()
        self._first_at: float | None = None
        self._last_at = self._started_at
        self.counts: Counts | None = None
        self.is_cut = False

    def note(self, piece: Piece) -> None:
        if piece.text:
            self._last_at = time.perf_counter()
            self._first_at = self._first_at or self._last_at
        self.counts = piece.counts or self.counts
        self.is_cut = self.is_cut or piece.is_cut

    def describe(self) -> str | None:
        """Return a one-line summary, or None if the answer was not completed."""
        counts = self.counts
        if counts is None:
            return None
        num_seen = counts.media_tokens - counts.audio_tokens
        kinds = [(num_seen, "from pictures"), (counts.audio_tokens, "from audio"), (counts.cached_tokens, "cached")]
        shares = ", ".join(f"{num} {kind}" for num, kind in kinds if num)
        parts = [
            f"{counts.prompt_tokens} tokens in{f' ({shares})' if shares else ''}",
            f"{counts.completion_tokens} out",
        ]
        if self._first_at is not None:
            parts.append(f"first after {self._first_at - self._started_at:.2f} s")
            seconds = self._last_at - self._first_at
            if seconds > 0 and counts.completion_tokens > 1:
                parts.append(f"{(counts.completion_tokens - 1) / seconds:.0f} tokens/s")
        return f"[{', '.join(parts)}]"


def _find_name(turns: Sequence[Turn], index: int, part_index: int) -> str | None:
    """Return the name of the attachment at a place in the question `index` of `turns`."""
    media = turns[index].media if 0 <= index < len(turns) else ()
    return repr(media[part_index].name) if part_index < len(media) else None


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
