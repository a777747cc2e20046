"""A conversation as a file: as Markdown with its pictures and videos beside it, or as JSON that an OpenAI server takes.
Values only: no Gradio, no HTTP."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from seesay.ui.conversation import Turn, is_audio, is_document, is_video, make_messages

ExportFormat = Literal["markdown", "json"]

_MAX_NAME = 40
_NOT_IN_NAMES = re.compile(r"[^\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file for the visitor to save. `name` has letters, digits and `._-` only."""

    name: str
    content: bytes


def export_markdown(turns: Sequence[Turn], *, model: str) -> ExportedFile:
    """Return the conversation as Markdown; with its files in a ZIP archive, if there are any.

    Failed and stopped turns are included. Raises OSError if a file of the conversation no longer exists.
    """
    names = _name_files(turns)
    text = "\n\n".join([f"# Conversation with {model}", *(_write_turn(turn, names) for turn in turns)]) + "\n"
    name = _name_conversation(turns)
    if not names:
        return ExportedFile(name=f"{name}.md", content=text.encode())
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("conversation.md", text)
        for path, file in names.items():
            # Media are compressed already.
            writer.writestr(file, Path(path).read_bytes(), zipfile.ZIP_STORED)
    return ExportedFile(name=f"{name}.zip", content=archive.getvalue())


def export_json(turns: Sequence[Turn], *, model: str, system_prompt: str) -> ExportedFile:
    """Return the conversation as the body of a chat completion request, with its files as data URLs.

    Turns without an answer are left out. Raises OSError if a file of the conversation no longer exists.
    """
    said = [replace(turn, is_done=True) for turn in turns]
    body = {"model": model, "messages": make_messages(said, system_prompt)}
    content = json.dumps(body, ensure_ascii=False, indent=1).encode()
    return ExportedFile(name=f"{_name_conversation(turns)}.json", content=content)


def _write_turn(turn: Turn, names: dict[str, str]) -> str:
    files = [f"{_mark_of(path)}[{_show_name(path)}]({names[path]})" for path in turn.files]
    question = ["\n".join(f"> {line}".rstrip() for line in turn.text.splitlines())] if turn.text else []
    answer = [turn.answer] if turn.answer else []
    remark = turn.error or turn.note
    return "\n\n".join(["## Question", *files, *question, "## Answer", *answer, *([f"*{remark}*"] if remark else [])])


def _mark_of(path: str) -> str:
    """Return what makes Markdown show a file that is a picture."""
    return "" if is_video(path) or is_audio(path) or is_document(path) else "!"


def _name_files(turns: Sequence[Turn]) -> dict[str, str]:
    """Return the name in the archive of each file. A file of several turns has one."""
    paths = dict.fromkeys(path for turn in turns for path in turn.files)
    return {path: f"files/{number:02d}-{_clean(Path(path).name)}" for number, path in enumerate(paths, 1)}


def _name_conversation(turns: Sequence[Turn]) -> str:
    words = _clean(turns[0].text.lower().strip(), "-").strip("-.")[:_MAX_NAME].rstrip("-.") if turns else ""
    return f"seesay-{words or 'conversation'}"


def _clean(name: str, instead: str = "_") -> str:
    return _NOT_IN_NAMES.sub(instead, name)


def _show_name(path: str) -> str:
    return re.sub(r"([\\\[\]])", r"\\\1", Path(path).name)
