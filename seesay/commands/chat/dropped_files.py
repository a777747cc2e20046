"""Paths in a line of a chat. Terminals type the paths of files that are dropped on them, quoted as in a shell."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

from seesay.commands.chat.editable_conversation import Kind
from seesay.values import AUDIO_SUFFIXES, IMAGE_SUFFIXES, VIDEO_SUFFIXES

_WORD = re.compile(r"""((?:'[^'\n]*'|"(?:[^"\\\n]|\\.)*"|\\.|[^\s\\'"])+)(?:\s+|$)""")


def split_dropped(line: str) -> tuple[list[str], str]:
    """Return (media files at the beginning of a line, text after them).

    A path in front of a text is a file if it is absolute, a file URL, or a quoted path of an existing file. A line of
    nothing but paths may also have relative paths of existing files. Absolute paths need not exist: the caller reports
    those that do not.
    """
    if is_existing_media(line):
        return [line], ""
    files: list[str] = []
    are_plain = True  # whether all files may stand in front of a text
    at = 0
    while (word := _WORD.match(line, at)) is not None:
        source = shlex.split(word[1])[0]
        is_plain = _is_plain(word[1], source)
        if kind_of(source) is None or not (is_plain or is_existing_media(source)):
            break
        are_plain = are_plain and is_plain
        files.append(source)
        at = word.end()
    rest = line[at:]
    return (files, rest) if are_plain or not rest else ([], line)


def _is_plain(word: str, source: str) -> bool:
    """Return whether a word may be a file in front of a text; `source` is the word without its quotes."""
    return _is_address(word) or (word[0] in "'\"" and is_existing_media(source))


def split_paths(text: str) -> list[str]:
    """Return the paths in the argument of a command: quoted as in a shell, or a single path with unquoted spaces."""
    if _is_file(text):
        return [text]
    try:
        return shlex.split(text) or [text]
    except ValueError:
        return [text]


def complete_path(text: str) -> list[str]:
    """Return the completions of the last of the paths in `text`, with backslashes before spaces and quotes, so that
    `split_paths` reads them as one path. Folders end with a slash."""
    head, last = _split_last(text)
    path = Path(re.sub(r"\\(.)", r"\1", last)).expanduser()
    is_folder = last.endswith("/") or not last
    with contextlib.suppress(OSError, RuntimeError):
        found = sorted((path if is_folder else path.parent).iterdir())
        names = [each for each in found if is_folder or each.name.startswith(path.name)]
        return [f"{head}{_escape(str(each))}{'/' if each.is_dir() else ''}" for each in names]
    return []


def _split_last(text: str) -> tuple[str, str]:
    """Return (the paths before the last one with the space behind them, the last path)."""
    spaces = list(re.finditer(r"(?<!\\) ", text))
    at = spaces[-1].end() if spaces else 0
    return text[:at], text[at:]


def _escape(path: str) -> str:
    return re.sub(r"([\s\\'\"])", r"\\\1", path)


def kind_of(path: str) -> Kind | None:
    """Return the kind of media that the name of a file promises."""
    name = path.partition("?")[0].lower()
    if name.endswith(VIDEO_SUFFIXES):
        return "video"
    if name.endswith(AUDIO_SUFFIXES):
        return "audio"
    if name.endswith(".pdf"):
        return "document"
    return "image" if name.endswith(IMAGE_SUFFIXES) else None


def is_existing_media(path: str) -> bool:
    """Return whether `path` is an existing file whose name is that of a picture, video, audio or document."""
    return kind_of(path) is not None and _is_file(path)


def _is_address(word: str) -> bool:
    """Return whether a word, with its quotes, is a file URL or an absolute path. Two slashes begin a message."""
    bare = word.lstrip("'\"")
    return bare[:5].lower() == "file:" or (bare.startswith(("/", "~/")) and not word.startswith("//"))


def _is_file(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user after ~, a null character
        return False
