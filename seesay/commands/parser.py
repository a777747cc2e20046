"""The command line's parser: what is wrong is one line, with the nearest known word."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

from seesay.commands.advice import suggest

EXIT_USAGE = 2

# What users of LMDeploy type, by the words before and the word itself, and what they are looking for.
_ELSEWHERE = {
    ("", "lite"): "weights are not quantized here: `seesay serve api_server MODEL` serves the checkpoint as it is",
    (
        "",
        "convert",
    ): "nothing is converted: `seesay chat MODEL` and `seesay serve api_server MODEL` load checkpoints of "
    "Hugging Face's layout",
    ("", "serve_api"): "it is `seesay serve api_server MODEL`",
    ("serve", "proxy"): "there is no proxy here: put a load balancer that asks /health before several "
    "`seesay serve api_server`",
    ("serve", "triton_client"): "it is `seesay serve api_client URL`, for a `seesay serve api_server`",
}
_BACKENDS = ("torch", "pytorch", "turbomind")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Uses the width there is, up to what reads well."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, 108)
        super().__init__(prog, max_help_position=34, width=width)


class Parser(argparse.ArgumentParser):
    """Exits with status 2 after one line that says what is wrong. Subcommands have the same class."""

    def error(self, message: str) -> NoReturn:
        """Print one line, without the usage, and exit."""
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self._refuse_command(str(value), list(action.choices))
        super()._check_value(action, value)

    def _refuse_command(self, word: str, known: list[str]) -> NoReturn:
        before = self.prog.partition(" ")[2]
        if (before, word) in _ELSEWHERE:
            self.error(f"{word}: {_ELSEWHERE[before, word]}")
        hint = suggest(word, known) or f"; there are {', '.join(known)}"
        self.error(f"unknown command {word!r}{hint}")

    def refuse_extra(self, extra: list[str], *, command: argparse.ArgumentParser, model: object) -> NoReturn:
        """Say what is wrong with the arguments that `command` did not take. Called on the parser of the whole."""
        word = next((word for word in extra if word.startswith("-") and word != "-"), None)
        prog = command.prog
        if word is None:
            if model in _BACKENDS:
                self.exit(EXIT_USAGE, f"{prog}: error: {model}: give the model alone: `{prog} {extra[0]}`\n")
            self.exit(EXIT_USAGE, f"{prog}: error: unexpected argument {extra[0]!r}\n")
        name = word.partition("=")[0]
        hint = suggest(name, command._option_string_actions)
        others = [other.prog for other in _walk(self) if name in other._option_string_actions]
        if not hint and others:
            hint = f"; `{others[0]}` has it"
        self.exit(EXIT_USAGE, f"{prog}: error: unknown option {name!r}{hint or f' (`{prog} --help` lists them)'}\n")


def _walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of all its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _walk(child)
