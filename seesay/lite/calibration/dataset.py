"""Calibration texts and conversations from a file, a folder, or the `datasets` package. They are hostile until checked:
sizes are bounded, and what is wrong names the file and line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from seesay.errors import ConfigError, RequestError
from seesay.values import IMAGE_SUFFIXES, VIDEO_SUFFIXES, MediaPart, Message, Modality, TextPart
from seesay.vl.prompts.conversation_parts import parse_messages

MAX_TEXT_BYTES = 64 << 20
"""Most that is read of one file; what lies behind is not used."""
_MAX_LINE_BYTES = 4 << 20
_MAX_FILES = 20_000
_QUESTION = "Describe this image."
_ADVICE = (
    "pass 'built-in', a .txt file, a .jsonl file with a 'text' or 'messages' in each line, or a folder with such files "
    "and pictures"
)
_HUB = {
    "ptb": ("ptb_text_only", "penn_treebank", "sentence"),
    "wikitext2": ("wikitext", "wikitext-2-raw-v1", "text"),
    "c4": ("allenai/c4", "en", "text"),
    "pileval": ("mit-han-lab/pile-val-backup", None, "text"),
}
"""LMDeploy's names: the name in `datasets`, the configuration, and the column with text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """messages: with the answers. where: the file, and the line of it, for messages."""

    messages: tuple[Message, ...]
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSet:
    """Texts, of which pieces are taken, and whole conversations. name: for messages. folder: the only one from which
    media are read; None where they are at hand. fits_any_model: conversations that a model cannot take, because it has
    no vision tower or its chat template refuses them, are left out; otherwise they are an error."""

    name: str
    texts: tuple[str, ...] = ()
    conversations: tuple[Conversation, ...] = ()
    folder: Path | None = None
    fits_any_model: bool = False


LoadCalibrationSet = Callable[[], CalibrationSet]


def open_dataset(name: str) -> LoadCalibrationSet:
    """Return what loads the calibration set at path `name`, or the one that the `datasets` package has by this name.

    What is at a path is read at once, so that an error in it comes before a model is loaded; a set of the package may
    be downloaded later. Raises `ConfigError`.
    """
    path = Path(name).expanduser()
    try:
        if path.is_dir() or path.is_file():
            found = _read_folder(path) if path.is_dir() else _read_file(path)
            return lambda: found
    except OSError as error:
        raise ConfigError(f"calib_dataset={name!r} cannot be read: {error}") from None
    if name not in _HUB:
        raise ConfigError(
            f"calib_dataset={name!r}: there is no such file or folder; {_ADVICE}, or one of {', '.join(_HUB)}"
        )
    if find_spec("datasets") is None:
        raise ConfigError(f"calib_dataset={name!r} needs the package datasets (pip install datasets); or {_ADVICE}")
    return partial(_read_hub, name)


def _read_file(path: Path) -> CalibrationSet:
    texts: list[str] = []
    conversations: list[Conversation] = []
    _add_file(path, texts, conversations)
    return _make_set(str(path), texts, conversations, path.parent)


def _read_folder(folder: Path) -> CalibrationSet:
    """Return the texts, JSON lines and pictures of a folder. A text with the name of a picture is the answer to it."""
    files = _list_files(folder)
    media = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES + VIDEO_SUFFIXES]
    stems = {file.stem for file in media}
    texts: list[str] = []
    conversations: list[Conversation] = []
    described: dict[str, str] = {}
    for file in files:
        if file.suffix == ".txt" and file.stem in stems:
            described[file.stem] = _read_text(file)
        elif file.suffix in (".txt", ".jsonl"):
            _add_file(file, texts, conversations)
    conversations += [_make_conversation(file, described.get(file.stem)) for file in media]
    return _make_set(str(folder), texts, conversations, folder)


def _list_files(folder: Path) -> list[Path]:
    entries = list(islice(folder.iterdir(), _MAX_FILES + 1))
    if len(entries) > _MAX_FILES:
        raise ConfigError(f"calib_dataset={str(folder)!r} has more than {_MAX_FILES} files")
    return sorted(file for file in entries if file.is_file())


def _make_set(name: str, texts: Sequence[str], conversations: Sequence[Conversation], folder: Path) -> CalibrationSet:
    texts = [text for text in texts if text.strip()]
    if not texts and not conversations:
        raise ConfigError(f"calib_dataset={name!r} has no text in it: {_ADVICE}")
    return CalibrationSet(name=name, texts=tuple(texts), conversations=tuple(conversations), folder=folder.resolve())


def _make_conversation(file: Path, text: str | None) -> Conversation:
    """Return a question with a picture or video, and its text as the answer."""
    is_video = file.suffix.lower() in VIDEO_SUFFIXES
    media = MediaPart(modality=Modality.VIDEO if is_video else Modality.IMAGE, source=str(file.resolve()))
    question = Message(role="user", parts=(media, TextPart(text=_QUESTION)))
    if text is None or not text.strip():
        return Conversation((question,), str(file))
    answer = Message(role="assistant", parts=(TextPart(text=text.strip()),))
    return Conversation((question, answer), str(file))


def _add_file(path: Path, texts: list[str], conversations: list[Conversation]) -> None:
    if path.suffix == ".txt":
        texts.append(_read_text(path))
    elif path.suffix == ".jsonl":
        for number, line in _read_lines(path):
            _add_line(f"{path}:{number}", path.parent, line, texts, conversations)
    else:
        raise ConfigError(f"calib_dataset={str(path)!r} must end in .txt or .jsonl, or be a folder")


def _add_line(where: str, folder: Path, line: bytes, texts: list[str], conversations: list[Conversation]) -> None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"calib_dataset: {where}: not valid JSON: {error}") from None
    entry = value if isinstance(value, dict) else {}
    if isinstance(text := entry.get("text"), str):
        _check_unicode(where, text)
        texts.append(text)
    elif conversation := _parse_conversation(where, folder, entry.get("messages")):
        conversations.append(conversation)


def _parse_conversation(where: str, folder: Path, messages: object) -> Conversation | None:
    """Return the conversation of a line; None for one without messages."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ConfigError(f"calib_dataset: {where}: must be an object with a 'text' or a list of 'messages'")
    try:
        parsed = parse_messages(messages)
    except RequestError as error:
        raise ConfigError(f"calib_dataset: {where}: {error.message}") from None
    return Conversation(tuple(_with_paths(message, folder) for message in parsed), where) if parsed else None


def _check_unicode(where: str, text: str) -> None:
    """Raise `ConfigError` for half of a surrogate pair, which JSON can have and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"calib_dataset: {where}: 'text' is not valid Unicode, character {error.start} is half of a surrogate pair"
        ) from None


def _with_paths(message: Message, folder: Path) -> Message:
    """Return the message with relative paths of media below `folder`."""
    return replace(message, parts=tuple(_with_path(part, folder) for part in message.parts))


def _with_path(part: TextPart | MediaPart, folder: Path) -> TextPart | MediaPart:
    if not isinstance(part, MediaPart) or not isinstance(part.source, str):
        return part
    if "://" in part.source[:16] or part.source.startswith("data:"):
        return part
    return replace(part, source=str(folder.resolve() / part.source))


def _read_text(path: Path) -> str:
    with path.open("rb") as stream:
        data = stream.read(MAX_TEXT_BYTES)
    return _decode(path, data)


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if len(data) == MAX_TEXT_BYTES and error.start > len(data) - 4:
            return data[: error.start].decode()  # cut inside of a character
        raise ConfigError(f"calib_dataset: {path} must be UTF-8 text, byte {error.start} is not") from None


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, of at most `MAX_TEXT_BYTES` in all, each with its number from 1."""
    number = num_bytes = 0
    with path.open("rb") as stream:
        while num_bytes < MAX_TEXT_BYTES and (line := stream.readline(_MAX_LINE_BYTES + 1)):
            if len(line) > _MAX_LINE_BYTES:
                raise ConfigError(f"calib_dataset: {path} has a line of more than {_MAX_LINE_BYTES} bytes")
            number, num_bytes = number + 1, num_bytes + len(line)
            if line.strip():
                yield number, line


def _read_hub(name: str) -> CalibrationSet:
    """Return a data set of the `datasets` package: from its cache where the hub cannot be reached."""
    path, configuration, column = _HUB[name]
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]

        rows = datasets.load_dataset(path, configuration, split="train" if name != "pileval" else "validation")
    except Exception as error:  # of many kinds, by its version and the network
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"calib_dataset={name!r} is not on this machine and cannot be loaded ({reason}): {_ADVICE}"
        ) from None
    text = "\n\n".join(_take(row[column] for row in rows))
    if not text.strip():
        raise ConfigError(f"calib_dataset={name!r} has no text in it: {_ADVICE}")
    return CalibrationSet(name=name, texts=(text,))


def _take(texts: Iterable[object]) -> Iterator[str]:
    """Yield texts up to `MAX_TEXT_BYTES` characters in all."""
    num_chars = 0
    for text in texts:
        if num_chars >= MAX_TEXT_BYTES:
            return
        if isinstance(text, str) and text.strip():
            num_chars += len(text)
            yield text
