"""The loop of a chat: read a message, run it as a command or answer it. The model and the terminal are passed in."""

from __future__ import annotations

from collections.abc import Callable

from seesay.commands.arguments.advice import suggest
from seesay.commands.chat.answering import Answerer
from seesay.commands.chat.dropped_files import kind_of, split_dropped
from seesay.commands.chat.editable_conversation import Conversation
from seesay.commands.chat.slash_commands import ACTIONS, complete
from seesay.commands.chat.talk import Talk
from seesay.commands.chat.terminal import Terminal
from seesay.errors import SeesayError

PROMPT = "you> "


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
        self._talk = Talk(model, terminal, conversation, max_new_tokens=max_new_tokens, adapt=adapt)
        self._terminal = terminal
        terminal.set_up_editing(complete)

    def run(self) -> int:
        while not self._talk.is_over:
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
        return 1 if self._talk.num_errors and not self._terminal.is_interactive else 0

    def take(self, line: str) -> None:
        """Handle one message, which may have several lines. Errors are printed, not raised."""
        if not (text := line.strip()):
            return
        try:
            self._take_text(text)
        except SeesayError as error:
            self._talk.fail(str(error))
        except OSError as error:
            self._talk.fail(f"{error.strerror or error}: {error.filename or ''}")

    def _take_text(self, text: str) -> None:
        files, question = split_dropped(text) if self._terminal.is_interactive else ([], text)
        if files:
            self._talk.attach(files)
            if question:
                self._talk.ask_text(question)
        elif text.startswith("/") and not text.startswith("//"):
            self._take_slash(text)
        else:
            self._talk.ask_text(text.removeprefix("/"))

    def _take_slash(self, text: str) -> None:
        """Run the command in the first line. Further lines are part of its text if it takes one, else a new message."""
        first, _, rest = text.partition("\n")
        name = first[1:].partition(" ")[0]
        action = ACTIONS.get(name)
        if action is None:
            self._take_unknown_slash(text, name)
            return
        action.run(self._talk, (text if action.takes_text else first)[1 + len(name) :].strip())
        if rest and not action.takes_text and not self._talk.is_over:
            self.take(rest)

    def _take_unknown_slash(self, text: str, name: str) -> None:
        first, _, rest = text.partition("\n")
        if rest:  # a text of several lines that happens to begin with a slash
            self._talk.ask_text(text)
        elif "/" in name or kind_of(name) is not None:
            self._talk.attach([first])  # reports that the file does not exist
        else:
            near = suggest(f"/{name}", [f"/{known}" for known in ACTIONS])
            advice = near or "; /help lists them, and // begins a message with a slash"
            self._talk.fail(f"unknown command /{name}{advice}")

    def ask_once(self, text: str) -> None:
        """Answer one message, without looking for commands in it. Errors are printed, not raised."""
        try:
            self._talk.ask_text(text)
        except SeesayError as error:
            self._talk.fail(str(error))

    @property
    def status(self) -> int:
        """1 if a message has failed, else 0."""
        return 1 if self._talk.num_errors else 0
