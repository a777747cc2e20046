"""`--config FILE`: options of a command from a YAML file. Options on the command line win."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from seesay.commands.arguments.advice import suggest

_MAX_BYTES = 1 << 20
_POSITIONAL = {"model": "model_path"}
"""Positional arguments by the name that they have in a file."""


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add `--config` to a parser that others inherit."""
    parser.add_argument(
        "--config", type=Path, default=argparse.SUPPRESS, metavar="FILE",
        help="a YAML file with options, such as 'session-len: 8192'; the command line wins",
    )  # fmt: skip


def use_config_file(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Make the options in the file that `argv` names the defaults of the command that it names. Exits with status 2
    and one line for a file that cannot be read, or that has an option which the command has not."""
    path = _find_path(argv)
    if path is None:
        return
    command = _find_command(parser, argv)
    for name, value in _read(path, command).items():
        action = _find_action(command, name, path)
        command.set_defaults(**{action.dest: _convert(command, action, name, value, path)})
        action.required = False


def _find_path(argv: Sequence[str]) -> Path | None:
    for index, word in enumerate(argv):
        if word == "--config" and index + 1 < len(argv):
            return Path(argv[index + 1])
        if word.startswith("--config="):
            return Path(word.partition("=")[2])
    return None


def _find_command(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.ArgumentParser:
    for word in argv:
        children = [each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        if children and word in children[0]:
            parser = children[0][word]
    return parser


def _read(path: Path, command: argparse.ArgumentParser) -> Mapping[str, object]:
    import yaml

    try:
        if path.stat().st_size > _MAX_BYTES:
            _fail(command, path, f"larger than {_MAX_BYTES} bytes")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        _fail(command, path, error.strerror or str(error))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        _fail(command, path, " ".join(str(error).split()))
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        _fail(command, path, "must be a mapping of options to values, such as 'session-len: 8192'")
    return content


def _find_action(command: argparse.ArgumentParser, name: str, path: Path) -> argparse.Action:
    option = "--" + name.replace("_", "-")
    action = command._option_string_actions.get(option)
    if name in _POSITIONAL:
        action = next((each for each in command._actions if each.dest == _POSITIONAL[name]), action)
    if action is None or option in ("--config", "--help"):
        _fail(command, path, f"unknown option {name!r}{suggest(option, command._option_string_actions)}")
    return action


def _convert(command: argparse.ArgumentParser, action: argparse.Action, name: str, value: Any, path: Path) -> Any:
    """Return a value as the command line would give it."""
    takes_many = action.nargs in ("*", "+") or isinstance(action, argparse._AppendAction)
    if (misfit := _find_misfit(action, value, takes_many=takes_many)) is not None:
        _fail(command, path, f"{name} must be {misfit}, got {value!r}")
    if isinstance(value, bool):
        return value
    try:
        found = [_convert_text(command, action, str(each)) for each in (value if isinstance(value, list) else [value])]
    except argparse.ArgumentError as error:
        _fail(command, path, f"{name}: {error.message}")
    return found if takes_many else found[0]


def _find_misfit(action: argparse.Action, value: Any, *, takes_many: bool) -> str | None:
    """Return what the value of an option must be, where it is of another kind."""
    if action.nargs == 0:
        return None if isinstance(value, bool) else "true or false"
    if isinstance(value, bool):
        return None if isinstance(action, argparse.BooleanOptionalAction) else "a value"
    if isinstance(value, dict) or (isinstance(value, list) and not takes_many):
        return "one value or a list" if takes_many else "one value"
    return None


def _convert_text(command: argparse.ArgumentParser, action: argparse.Action, text: str) -> Any:
    value = command._get_value(action, text)
    command._check_value(action, value)
    return value


def _fail(command: argparse.ArgumentParser, path: Path, message: str) -> NoReturn:
    command.exit(2, f"{command.prog}: error: --config {path}: {message}\n")
