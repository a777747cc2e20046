"""`seesay completion`: scripts that complete commands and options in a shell, generated from the parser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seesay.commands.command import Command

_EXAMPLES = """\
  seesay completion bash > ~/.local/share/bash-completion/completions/seesay
  seesay completion zsh > ~/.zfunc/_seesay        with  fpath+=~/.zfunc  before compinit in ~/.zshrc
  seesay completion fish > ~/.config/fish/completions/seesay.fish
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One option with all its spellings. `choices` is empty if it takes any value."""

    names: tuple[str, ...]
    summary: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A command: its words, its subcommands with their summaries, its options."""

    words: tuple[str, ...]
    children: tuple[tuple[str, str], ...]
    choices: tuple[str, ...]
    options: tuple[_Option, ...]


def make_command(make_parser: Callable[[], argparse.ArgumentParser]) -> Command:
    """Return the command that prints completion scripts for the parser of `make_parser`."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell that will run the script")

    def run(arguments: argparse.Namespace) -> int:
        sys.stdout.write(_SCRIPTS[arguments.shell](list(_walk(make_parser(), ()))))
        return 0

    return Command(
        name="completion",
        summary="print a completion script for bash, zsh or fish",
        add_arguments=add_arguments,
        run=run,
        examples=_EXAMPLES,
    )


def _walk(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[_Node]:
    children: list[tuple[str, str]] = []
    below: list[_Node] = []
    choices: list[str] = []
    found: list[_Option] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                children.append((name, summaries.get(name, "")))
                below += _walk(child, (*words, name))
        elif action.option_strings:
            found.append(
                _Option(
                    names=tuple(action.option_strings),
                    summary=action.help or "",
                    takes_value=action.nargs != 0,
                    choices=tuple(map(str, action.choices or ())),
                )
            )
        else:
            choices += map(str, action.choices or ())
    yield _Node(words=words, children=tuple(children), choices=tuple(choices), options=tuple(found))
    yield from below


# --- bash ------------------------------------------------------------------------------------------------------------


def _bash(nodes: Sequence[_Node]) -> str:
    paths = "|".join("'" + " ".join(node.words) + "'" for node in nodes if node.words)
    words, values = [], []
    for node in nodes:
        path = " ".join(node.words)
        offered = [name for name, _ in node.children] + list(node.choices)
        options = [name for option in node.options for name in option.names]
        words.append(f"        '{path}') words='{' '.join(offered)}' options='{' '.join(options)}' ;;")
        for option in node.options:
            if option.takes_value:
                patterns = "|".join(f"'{path}':{name}" for name in option.names)
                values.append(f"        {patterns}) words='{' '.join(option.choices)}' ;;")
    return f"""\
# bash completion for seesay. Made by: seesay completion bash
_seesay() {{
    local cur prev path word words options i
    cur="${{COMP_WORDS[COMP_CWORD]}}"
    prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    path=''
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        case "${{path:+$path }}$word" in
        {paths}) path="${{path:+$path }}$word" ;;
        esac
    done
    words=' '
    case "$path:$prev" in
{chr(10).join(values)}
    esac
    if [[ "$words" == ' ' ]]; then
        words=''
        options=''
        case "$path" in
{chr(10).join(words)}
        esac
        if [[ "$cur" == -* ]]; then
            words="$options"
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    if [[ ${{#COMPREPLY[@]}} -eq 0 && "$cur" != -* ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}}
complete -o filenames -F _seesay seesay
"""


# --- zsh -------------------------------------------------------------------------------------------------------------


def _zsh(nodes: Sequence[_Node]) -> str:
    functions = "\n".join(_zsh_function(node) for node in nodes)
    return f"""\
#compdef seesay
# zsh completion for seesay. Made by: seesay completion zsh

{functions}
if [[ "$funcstack[1]" == _seesay ]]; then
    _seesay "$@"
else
    compdef _seesay seesay
fi
"""


def _zsh_function(node: _Node) -> str:
    arguments = [_zsh_option(option, name) for option in node.options for name in option.names]
    if not node.children:
        rest = f"'1: :({' '.join(node.choices)})'" if node.choices else "'*: :_files'"
        return (
            f"{_zsh_name(node.words)}() {{\n    _arguments \\\n"
            + "".join(f"        {line} \\\n" for line in arguments)
            + f"        {rest}\n}}\n"
        )
    listed = "\n".join(f"        {_quote(f'{_escape(name)}:{_escape(summary)}')}" for name, summary in node.children)
    calls = "\n".join(f"        {name}) {_zsh_name((*node.words, name))} ;;" for name, _ in node.children)
    lines = "".join(f"        {line} \\\n" for line in arguments)
    return f"""\
{_zsh_name(node.words)}() {{
    local context state state_descr line curcontext="$curcontext"
    typeset -A opt_args
    local -a commands
    commands=(
{listed}
    )
    _arguments -C \\
{lines}        '1: :->command' \\
        '*:: :->rest'
    case "$state" in
    command) _describe -t commands 'command' commands ;;
    rest)
        case "$line[1]" in
{calls}
        esac
        ;;
    esac
}}
"""


def _zsh_name(words: tuple[str, ...]) -> str:
    return "_".join(("_seesay", *words))


def _zsh_option(option: _Option, name: str) -> str:
    text = f"{name}[{_escape(option.summary).replace('[', '(').replace(']', ')')}]"
    if option.takes_value:
        values = f"({' '.join(option.choices)})" if option.choices else "_files"
        text += f": :{values}"
    return _quote(f"*{text}")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:").replace("%%", "%")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --- fish ------------------------------------------------------------------------------------------------------------


def _fish(nodes: Sequence[_Node]) -> str:
    lines = ["# fish completion for seesay. Made by: seesay completion fish", "complete -c seesay -e"]
    for node in nodes:
        condition = _fish_condition(node)
        if node.children or node.choices:
            lines.append(f"complete -c seesay -n {_fish_quote(condition)} -f")
        for name, summary in (*node.children, *((choice, "") for choice in node.choices)):
            lines.append(f"complete -c seesay -n {_fish_quote(condition)} -a {name} -d {_fish_quote(summary)}")
        for option in node.options:
            lines.append(f"complete -c seesay -n {_fish_quote(condition)} {_fish_option(option)}")
    return "\n".join(lines) + "\n"


def _fish_condition(node: _Node) -> str:
    parts = [f"__fish_seen_subcommand_from {word}" for word in node.words]
    if node.children:
        parts.append(f"not __fish_seen_subcommand_from {' '.join(name for name, _ in node.children)}")
    return "; and ".join(parts)


def _fish_option(option: _Option) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
    values = (
        f" -x -a {_fish_quote(' '.join(option.choices))}" if option.choices else " -r" if option.takes_value else ""
    )
    return f"{names}{values} -d {_fish_quote(option.summary.replace('%%', '%'))}"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: dict[str, Callable[[Sequence[_Node]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
