"""The command-line parser. It reports an error in one line and suggests the nearest known word."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

from seesay.commands.arguments.advice import suggest

EXIT_USAGE = 2

# Commands of LMDeploy that do not exist here, as (parent command, word), and what to use instead.
_ELSEWHERE = {
    ("lite", "blocked_fp8"): "use `seesay lite fp8`, which has a scale for each output in place of one for each block",
    (
        "",
        "convert",
    ): "no conversion is needed: `seesay chat MODEL` and `seesay serve api_server MODEL` load checkpoints in the "
    "Hugging Face layout",
    ("", "serve_api"): "use `seesay serve api_server MODEL`",
    ("serve", "triton_client"): "use `seesay serve api_client URL` with a `seesay serve api_server`",
}
_REFUSED = {
    "bench": {
        "--cancel-rate": "every answer is measured to its end",
        "--disable-stream": "times to the first token are those of a stream",
        "--no-stream-output": "times to the first token are those of a stream",
        "--max-prefill-iters": "a step has --max-prefill-token-num tokens of prompts at most",
        "--num-tokens-per-iter": "a step has --max-prefill-token-num tokens of prompts at most",
        "--multi": "give all rates to --request-rate, such as 2,4,8",
        "--request-rate-range": "give all rates to --request-rate, such as 2,4,8",
        "--served-model-name": "give the name that the server knows to --model, and a folder to --tokenizer",
        "--skip-detokenize": "tokens are made and read as a server does",
        "--skip-tokenize": "tokens are made and read as a server does",
        "--use-uvloop": "the engine's loop has its own thread, which no event loop slows down",
    }
}
"""Options of LMDeploy's and vLLM's benchmarks that mean nothing here, by the first word of the command, and why."""
_BACKENDS = ("torch", "pytorch", "turbomind")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Use the width of the terminal, up to 108 columns."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns - 2, 108)
        super().__init__(prog, max_help_position=34, width=width)


class Parser(argparse.ArgumentParser):
    """Report an error in one line and exit with status 2. Options may be spelled with underscores, as LMDeploy's
    manual has some. Subcommands use the same class."""

    def error(self, message: str) -> NoReturn:
        """Print one line, without the usage, and exit."""
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")

    def _parse_optional(self, arg_string: str) -> Any:
        name, equals, value = arg_string.partition("=")
        known = name.replace("_", "-")
        is_known = name.startswith("--") and known in self._option_string_actions
        return super()._parse_optional(f"{known}{equals}{value}" if is_known else arg_string)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self._refuse_command(str(value), list(action.choices))
        super()._check_value(action, value)

    def _refuse_command(self, word: str, known: list[str]) -> NoReturn:
        before = self.prog.partition(" ")[2]
        if (before, word) in _ELSEWHERE:
            self.error(f"{word}: {_ELSEWHERE[before, word]}")
        others = f"; known commands are {', '.join(known)}"
        if before == "serve":
            others = f"; to serve a model: `{self.prog} api_server {shlex.quote(word)}`{others}"
        hint = suggest(word, known) or others
        self.error(f"unknown command {word!r}{hint}")

    def refuse_extra(self, extra: list[str], *, command: argparse.ArgumentParser, model: object) -> NoReturn:
        """Report the arguments `extra`, which `command` does not know, and exit. Called on the root parser."""
        word = next((word for word in extra if word.startswith("-") and word != "-"), None)
        if word is not None:
            problem = f"unknown option {self._describe_unknown(word.partition('=')[0], command)}"
        elif model in _BACKENDS:
            problem = f"{model}: give the model alone: `{command.prog} {extra[0]}`"
        else:
            problem = f"unexpected argument {extra[0]!r}"
        self.exit(EXIT_USAGE, f"{command.prog}: error: {problem}\n")

    def _describe_unknown(self, name: str, command: argparse.ArgumentParser) -> str:
        """Return an unknown option with advice: a similar one, or a command that has it."""
        reasons = _REFUSED.get(" ".join(command.prog.split()[1:2]), {})
        if name in reasons:
            return f"{name!r}: {reasons[name]}"
        others = [other.prog for other in _walk(self) if name in other._option_string_actions]
        hint = suggest(name, command._option_string_actions)
        if not hint:
            hint = f"; it is an option of `{others[0]}`" if others else f" (`{command.prog} --help` lists them)"
        return f"{name!r}{hint}"


def _walk(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and the parsers of all its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _walk(child)
