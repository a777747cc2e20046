"""The loop of a chat: read a message, run it as a command or answer it. The model and the terminal are passed in."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from seesay.commands.arguments.advice import suggest
from seesay.commands.chat.answering import Answerer, Counts, Piece
from seesay.commands.chat.dropped_files import complete_path, kind_of, split_dropped, split_paths
from seesay.commands.chat.editable_conversation import Attachment, Conversation, Kind, Turn
from seesay.commands.chat.terminal import Terminal
from seesay.errors import SeesayError
from seesay.values import split_place

PROMPT = "you> "
_MAX_COMPLETIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Action:
    """A command, typed as a line that begins with a slash."""

    usage: str
    summary: str
    run: Callable[[ChatLoop, str], None]
    takes_text: bool = False  # accepts a text of several lines


class ChatLoop:
    """Chat until the input ends. `run` returns the exit status: 1 if input came from a pipe and a message failed."""

    def __init__(
        self,
        model: Answerer,
        terminal: Terminal,
        conversation: Conversation,
        *,
        max_new_tokens: int = 512,
        adapt: Callable[[str], str] = str,
    ) -> None:
        """max_new_tokens: longest answer of `model`. adapt: rewrites error messages for the command line."""
        self.conversation = conversation
        self._max_new_tokens = max_new_tokens
        self._adapt = adapt
        self._model = model
        self._terminal = terminal
        self._failed: Turn | None = None  # the last question, if it was not answered; /retry asks it again
        self._is_over = False
        self._num_errors = 0
        terminal.set_up_editing(self._complete)

    def run(self) -> int:
        while not self._is_over:
            try:
                line = self._terminal.read(PROMPT)
            except EOFError:
                self._terminal.aside("")
                break
            except KeyboardInterrupt:
                if not self._terminal.is_interactive:
                    raise
                self._terminal.aside("\n(press Ctrl-D or type /exit to leave)")
                continue
            self.take(line)
        return 1 if self._num_errors and not self._terminal.is_interactive else 0

    def take(self, line: str) -> None:
        """Handle one message, which may have several lines. Errors are printed, not raised."""
        if not (text := line.strip()):
            return
        try:
            self._take_text(text)
        except SeesayError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"{error.strerror or error}: {error.filename or ''}")

    def _take_text(self, text: str) -> None:
        files, question = split_dropped(text) if self._terminal.is_interactive else ([], text)
        if files:
            self._attach(files)
            if question:
                self._ask_text(question)
        elif text.startswith("/") and not text.startswith("//"):
            self._take_slash(text)
        else:
            self._ask_text(text.removeprefix("/"))

    def _ask_text(self, text: str) -> None:
        self.ask(Turn(text=text, media=self.conversation.take_attached()))

    def _take_slash(self, text: str) -> None:
        """Run the command in the first line. Further lines are part of its text if it takes one, else a new message."""
        first, _, rest = text.partition("\n")
        name = first[1:].partition(" ")[0]
        action = ACTIONS.get(name)
        if action is None:
            self._take_unknown_slash(text, name)
            return
        action.run(self, (text if action.takes_text else first)[1 + len(name) :].strip())
        if rest and not action.takes_text and not self._is_over:
            self.take(rest)

    def _take_unknown_slash(self, text: str, name: str) -> None:
        first, _, rest = text.partition("\n")
        if rest:  # a text of several lines that happens to begin with a slash
            self._ask_text(text)
        elif "/" in name or kind_of(name) is not None:
            self._attach([first])  # reports that the file does not exist
        else:
            near = suggest(f"/{name}", [f"/{known}" for known in ACTIONS])
            self._fail(f"unknown command /{name}{near or '; /help lists them, and // begins a message with a slash'}")

    def ask_once(self, text: str) -> None:
        """Answer one message, without looking for commands in it. Errors are printed, not raised."""
        try:
            self._ask_text(text)
        except SeesayError as error:
            self._fail(str(error))

    @property
    def status(self) -> int:
        """1 if a message has failed, else 0."""
        return 1 if self._num_errors else 0

    # --- questions --------------------------------------------------------------------------------------------------

    def ask(self, turn: Turn) -> None:
        """Answer a question, and add it to the conversation unless it failed. Ctrl-C stops the answer.

        Raises SeesayError if the model cannot answer.
        """
        self._failed = turn
        meter = _Meter()
        turn.answer = ""
        is_stopped = False
        try:
            self._write_answer(turn, meter)
        except KeyboardInterrupt:
            if not self._terminal.is_interactive:
                raise
            is_stopped = True
        finally:
            if turn.answer and not turn.answer.endswith("\n"):
                self._terminal.write("\n")
        if is_stopped:
            self._terminal.aside("[stopped]")
        if turn.answer or not is_stopped:
            self.conversation.turns.append(turn)
            self._failed = None
        if meter.is_cut:
            self._terminal.notice(f"[cut off{self._explain_cut(meter.counts)}]")
        if (counts := meter.describe()) is not None:
            self._terminal.aside(counts)

    def _write_answer(self, turn: Turn, meter: _Meter) -> None:
        with closing(self._model.answer(self.conversation.messages(turn))) as pieces:
            for piece in pieces:
                meter.note(piece)
                turn.answer += piece.text
                self._terminal.write(piece.text)

    def _explain_cut(self, counts: Counts | None) -> str:
        if counts is not None and counts.completion_tokens < self._max_new_tokens:
            return ": the context is full; /undo or /reset makes room"
        return " at the length limit; raise it with --max-new-tokens"

    def _fail(self, message: str) -> None:
        self._num_errors += 1
        self._terminal.error(self._adapt(self._name_files(message)))

    def _name_files(self, message: str) -> str:
        """Put file names into an error message of a request: the request carried the files as data URLs, and its
        places mean nothing to the person at the terminal."""
        asked = [turn for turn in (*self.conversation.turns, self._failed) if turn is not None]
        for attachment in (attachment for turn in asked for attachment in turn.media):
            if attachment.source != attachment.url:
                message = message.replace(f"data URL of {len(attachment.url)} characters", repr(attachment.name))
        place, text = split_place(message)
        if place is None:
            return message
        name = self._find_name(asked, *place)
        return text if name is None or name in text else f"{name}: {text}"

    def _find_name(self, turns: Sequence[Turn], message_index: int, part_index: int) -> str | None:
        """Return the name of the attachment at a place in the request of `turns`."""
        index = (message_index - (1 if self.conversation.system else 0)) // 2
        media = turns[index].media if 0 <= index < len(turns) else ()
        return repr(media[part_index].name) if part_index < len(media) else None

    # --- attachments ------------------------------------------------------------------------------------------------

    def _attach(self, sources: Sequence[str], kind: Kind | None = None) -> None:
        found = [Attachment.read(kind or kind_of(source) or "image", source) for source in sources]
        self.conversation.attached += found
        for attachment in found:
            self._terminal.aside(f"[{attachment.kind} {attachment.name}: attached to your next message]")

    def _attach_kind(self, kind: Kind, argument: str) -> None:
        if argument:
            self._attach(split_paths(argument), kind)
            return
        waiting = [f"{a.kind} {a.name}" for a in self.conversation.attached]
        self._terminal.notice(
            f"attached to your next message: {', '.join(waiting)}" if waiting else f"usage: /{kind} PATH_OR_URL ..."
        )

    # --- actions ----------------------------------------------------------------------------------------------------

    def _help(self, _: str) -> None:
        width = max(len(action.usage) for action in ACTIONS.values())
        lines = [f"  {action.usage:<{width}}  {action.summary}" for action in ACTIONS.values()]
        keys = (
            'Pasted lines are one message. So are lines between """ and """.\n'
            "A line that ends in \\ continues on the next line. Ctrl-C stops an answer, Ctrl-D exits."
        )
        self._terminal.notice("\n".join([*lines, keys]))

    def _reset(self, _: str) -> None:
        self.conversation.reset()
        self._failed = None
        self._terminal.aside("[started over]")

    def _system(self, argument: str) -> None:
        if argument:
            self.conversation.system = None if argument == "-" else argument
        self._terminal.aside(f"[system prompt: {self.conversation.system or 'none'}]")

    def _undo(self, argument: str) -> None:
        if not re.fullmatch(r"\d{0,6}", argument):
            self._fail("usage: /undo [N] takes back the last N turns")
            return
        self._take_back(int(argument or 1))

    def _take_back(self, num: int) -> list[Turn]:
        turns = self.conversation.turns
        taken = turns[max(0, len(turns) - num) :]
        del turns[len(turns) - len(taken) :]
        self._failed = None
        if not taken:
            self._terminal.notice("[there is no turn to take back]")
        for turn in reversed(taken):
            self._terminal.aside(f"[took back: {_shorten(turn.text)}]")
        return taken

    def _last_question(self) -> Turn | None:
        """Return the last question, and remove it from the conversation if it is in it."""
        if self._failed is not None:
            return self._failed
        if not self.conversation.turns:
            self._terminal.notice("[no question has been asked yet]")
            return None
        return self.conversation.turns.pop()

    def _retry(self, _: str) -> None:
        if (turn := self._last_question()) is not None:
            self.ask(Turn(text=turn.text, media=turn.media))

    def _edit(self, argument: str) -> None:
        turn = self._last_question()
        if turn is None:
            return
        text = argument
        try:
            if not text and self._terminal.is_interactive:
                text = self._terminal.read("edit> ", prefilled=turn.text).strip()
        except (EOFError, KeyboardInterrupt):
            self._terminal.aside("")
        if text:
            self.ask(Turn(text=text, media=(*turn.media, *self.conversation.take_attached())))
        elif turn is not self._failed:
            self.conversation.turns.append(turn)

    def _history(self, _: str) -> None:
        for number, turn in enumerate(self.conversation.turns, 1):
            media = "".join(f" [{attachment.kind} {attachment.name}]" for attachment in turn.media)
            self._terminal.notice(f"{number}. you:{media} {turn.text}\n   model: {turn.answer.strip()}")
        if not self.conversation.turns:
            self._terminal.notice("[the conversation is empty]")

    def _save(self, argument: str) -> None:
        if not argument:
            self._fail("usage: /save FILE (.json can be loaded again; any other suffix writes Markdown)")
            return
        path = Path(split_paths(argument)[0]).expanduser()
        self.conversation.save(path)
        self._terminal.aside(f"[saved {_count(self.conversation.turns)} in {path}]")

    def _load(self, argument: str) -> None:
        if not argument:
            self._fail("usage: /load FILE (a .json file written by /save)")
            return
        self.conversation.load(Path(split_paths(argument)[0]).expanduser())
        self._failed = None
        self._terminal.aside(f"[loaded {_count(self.conversation.turns)}]")

    def _exit(self, _: str) -> None:
        self._is_over = True

    # --- completion -------------------------------------------------------------------------------------------------

    def _complete(self, line: str) -> list[str]:
        """Return the completions of a line: names of commands, or paths for commands that take a path."""
        name, space, argument = line.partition(" ")
        if not line.startswith("/"):
            return []
        if not space:
            return [f"/{action} " for action in ACTIONS if action.startswith(name[1:])]
        if name[1:] not in ("image", "video", "audio", "document", "save", "load"):
            return []
        return [f"{name} {path}" for path in complete_path(argument)[:_MAX_COMPLETIONS]]


ACTIONS: dict[str, _Action] = {
    "image": _Action(
        usage="/image PATH ...",
        summary="attach pictures (paths or URLs) to your next message",
        run=lambda loop, text: loop._attach_kind("image", text),
    ),
    "video": _Action(
        usage="/video PATH ...",
        summary="attach videos to your next message",
        run=lambda loop, text: loop._attach_kind("video", text),
    ),
    "audio": _Action(
        usage="/audio PATH ...",
        summary="attach audio to your next message",
        run=lambda loop, text: loop._attach_kind("audio", text),
    ),
    "document": _Action(
        usage="/document PATH ...",
        summary="attach PDFs to your next message",
        run=lambda loop, text: loop._attach_kind("document", text),
    ),
    "retry": _Action(usage="/retry", summary="answer the last question again", run=ChatLoop._retry),
    "edit": _Action(
        usage="/edit [TEXT]",
        summary="change the last question and answer it again",
        run=ChatLoop._edit,
        takes_text=True,
    ),
    "undo": _Action(usage="/undo [N]", summary="take back the last turn, or the last N", run=ChatLoop._undo),
    "reset": _Action(usage="/reset", summary="start over, but keep the system prompt", run=ChatLoop._reset),
    "system": _Action(
        usage="/system [TEXT]",
        summary="show or set the system prompt (- removes it)",
        run=ChatLoop._system,
        takes_text=True,
    ),
    "history": _Action(usage="/history", summary="show the conversation", run=ChatLoop._history),
    "save": _Action(
        usage="/save FILE",
        summary="save the conversation: .json can be loaded again, else Markdown",
        run=ChatLoop._save,
    ),
    "load": _Action(usage="/load FILE", summary="continue a conversation saved as .json", run=ChatLoop._load),
    "help": _Action(usage="/help", summary="show this", run=ChatLoop._help),
    "exit": _Action(usage="/exit", summary="leave", run=ChatLoop._exit),
    "quit": _Action(usage="/quit", summary="leave", run=ChatLoop._exit),
}


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
        kinds = [(counts.media_tokens, "from pictures"), (counts.cached_tokens, "cached")]
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


def _count(turns: Sequence[Turn]) -> str:
    return f"{len(turns)} turn{'' if len(turns) == 1 else 's'}"


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
