"""The commands of a chat: lines that begin with a slash."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seesay.commands.chat.dropped_files import complete_path, split_paths
from seesay.commands.chat.editable_conversation import Kind, Turn
from seesay.commands.chat.talk import Talk

_MAX_COMPLETIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A command, typed as a line that begins with a slash."""

    usage: str
    summary: str
    run: Callable[[Talk, str], None]
    takes_text: bool = False  # accepts a text of several lines


def complete(line: str) -> list[str]:
    """Return the completions of a line: names of commands, or paths for commands that take a path."""
    name, space, argument = line.partition(" ")
    if not line.startswith("/"):
        return []
    if not space:
        return [f"/{action} " for action in ACTIONS if action.startswith(name[1:])]
    if name[1:] not in ("image", "video", "audio", "document", "save", "load"):
        return []
    return [f"{name} {path}" for path in complete_path(argument)[:_MAX_COMPLETIONS]]


def _attach_kind(talk: Talk, kind: Kind, argument: str) -> None:
    if argument:
        talk.attach(split_paths(argument), kind)
        return
    waiting = [f"{a.kind} {a.name}" for a in talk.conversation.attached]
    talk.terminal.notice(
        f"attached to your next message: {', '.join(waiting)}" if waiting else f"usage: /{kind} PATH_OR_URL ..."
    )


def _help(talk: Talk, _: str) -> None:
    width = max(len(action.usage) for action in ACTIONS.values())
    lines = [f"  {action.usage:<{width}}  {action.summary}" for action in ACTIONS.values()]
    keys = (
        'Pasted lines are one message. So are lines between """ and """.\n'
        "A line that ends in \\ continues on the next line. Ctrl-C stops an answer, Ctrl-D exits."
    )
    talk.terminal.notice("\n".join([*lines, keys]))


def _reset(talk: Talk, _: str) -> None:
    talk.conversation.reset()
    talk.failed = None
    talk.terminal.aside("[started over]")


def _system(talk: Talk, argument: str) -> None:
    if argument:
        talk.conversation.system = None if argument == "-" else argument
    talk.terminal.aside(f"[system prompt: {talk.conversation.system or 'none'}]")


def _undo(talk: Talk, argument: str) -> None:
    if not re.fullmatch(r"\d{0,6}", argument):
        talk.fail("usage: /undo [N] takes back the last N turns")
        return
    talk.take_back(int(argument or 1))


def _retry(talk: Talk, _: str) -> None:
    if (turn := talk.last_question()) is not None:
        talk.ask(Turn(text=turn.text, media=turn.media))


def _edit(talk: Talk, argument: str) -> None:
    turn = talk.last_question()
    if turn is None:
        return
    text = argument
    try:
        if not text and talk.terminal.is_interactive:
            text = talk.terminal.read("edit> ", prefilled=turn.text).strip()
    except (EOFError, KeyboardInterrupt):
        talk.terminal.aside("")
    if text:
        talk.ask(Turn(text=text, media=(*turn.media, *talk.conversation.take_attached())))
    elif turn is not talk.failed:
        talk.conversation.turns.append(turn)


def _history(talk: Talk, _: str) -> None:
    for number, turn in enumerate(talk.conversation.turns, 1):
        media = "".join(f" [{attachment.kind} {attachment.name}]" for attachment in turn.media)
        talk.terminal.notice(f"{number}. you:{media} {turn.text}\n   model: {turn.answer.strip()}")
    if not talk.conversation.turns:
        talk.terminal.notice("[the conversation is empty]")


def _save(talk: Talk, argument: str) -> None:
    if not argument:
        talk.fail("usage: /save FILE (.json can be loaded again; any other suffix writes Markdown)")
        return
    path = Path(split_paths(argument)[0]).expanduser()
    talk.conversation.save(path)
    talk.terminal.aside(f"[saved {_count(talk.conversation.turns)} in {path}]")


def _load(talk: Talk, argument: str) -> None:
    if not argument:
        talk.fail("usage: /load FILE (a .json file written by /save)")
        return
    talk.conversation.load(Path(split_paths(argument)[0]).expanduser())
    talk.failed = None
    talk.terminal.aside(f"[loaded {_count(talk.conversation.turns)}]")


def _exit(talk: Talk, _: str) -> None:
    talk.is_over = True


def _count(turns: Sequence[Turn]) -> str:
    return f"{len(turns)} turn{'' if len(turns) == 1 else 's'}"


ACTIONS: dict[str, Action] = {
    "image": Action(
        usage="/image PATH ...",
        summary="attach pictures (paths or URLs) to your next message",
        run=lambda talk, text: _attach_kind(talk, "image", text),
    ),
    "video": Action(
        usage="/video PATH ...",
        summary="attach videos to your next message",
        run=lambda talk, text: _attach_kind(talk, "video", text),
    ),
    "audio": Action(
        usage="/audio PATH ...",
        summary="attach audio to your next message",
        run=lambda talk, text: _attach_kind(talk, "audio", text),
    ),
    "document": Action(
        usage="/document PATH ...",
        summary="attach PDFs to your next message",
        run=lambda talk, text: _attach_kind(talk, "document", text),
    ),
    "retry": Action(usage="/retry", summary="answer the last question again", run=_retry),
    "edit": Action(
        usage="/edit [TEXT]",
        summary="change the last question and answer it again",
        run=_edit,
        takes_text=True,
    ),
    "undo": Action(usage="/undo [N]", summary="take back the last turn, or the last N", run=_undo),
    "reset": Action(usage="/reset", summary="start over, but keep the system prompt", run=_reset),
    "system": Action(
        usage="/system [TEXT]",
        summary="show or set the system prompt (- removes it)",
        run=_system,
        takes_text=True,
    ),
    "history": Action(usage="/history", summary="show the conversation", run=_history),
    "save": Action(
        usage="/save FILE",
        summary="save the conversation: .json can be loaded again, else Markdown",
        run=_save,
    ),
    "load": Action(usage="/load FILE", summary="continue a conversation saved as .json", run=_load),
    "help": Action(usage="/help", summary="show this", run=_help),
    "exit": Action(usage="/exit", summary="leave", run=_exit),
    "quit": Action(usage="/quit", summary="leave", run=_exit),
}
