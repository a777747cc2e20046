"""Writes each request that was computed, and its answer, to a file, as a line of JSON that `seesay replay` repeats.

Prompts and answers are token ids, which anybody who has the model reads as text. API keys, salts, addresses and names
of files are never written; of media the hash, or on demand the files.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seesay.config import EngineConfig, GenerationConfig
from seesay.config.generation import UNLIMITED_TOKENS
from seesay.engine.front.live_answer import LiveAnswer, OutputSink
from seesay.engine.front.request_facts import wants_answer
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ConfigError, RequestError, SeesayError
from seesay.processors.media.media_file import as_file
from seesay.system.thread_pool import ThreadPool
from seesay.values import GenerationRequest, Modality, MultimodalInput, OutputDelta
from seesay.values.records import MediaRecord, RequestRecord
from seesay.version import __version__

if TYPE_CHECKING:
    from seesay.vl.media.media_items import PreparedMedia

logger = logging.getLogger("seesay")

MAX_BYTES = 16 << 30
"""Most that one process adds to a recording, media included."""
MAX_WAITING_BYTES = 256 << 20
"""Most that waits to be written. What comes meanwhile is left out."""
_BYTES_PER_TOKEN = 8
_MAX_NAMES = 1 << 16
_LEFT_OUT = ("n", "best_of", "output_logits", "output_last_hidden_state")
"""Options that are one answer's own, or change none of its tokens."""
_MediaFile = tuple[str, bytes | Path]
"""The name of a file, and its content or path."""


class Recorder:
    """Appends to `path`. with_media: the files of media are kept in the folder `path`.media, by their SHA-256. Thread-
    safe; only a thread of its own writes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        with_media: bool,
        model: str,
        weights: bytes,
        eos: Collection[int],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """eos: the tokens that end any answer of the model. max_bytes: the most to add to the recording."""
        self._max_bytes = max_bytes
        self._path = Path(path)
        self._folder = media_folder(self._path) if with_media else None
        self._model, self._weights, self._eos = model, name_weights(weights), eos
        self._names: dict[Hashable, str] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._num_waiting = self._num_written = self._num_lost = 0
        self._thread = ThreadPool(1, name="seesay-record")

    def close(self) -> None:
        """Write what waits."""
        self._thread.close()
        if self._num_lost:
            logger.warning("%s: %d requests are missing", self._path, self._num_lost)

    def watch(
        self,
        asked: Mapping[int, GenerationRequest],
        prepared: Mapping[int, tuple[TokenRequest, LiveAnswer] | RequestError],
        media: Sequence[PreparedMedia],
    ) -> None:
        """Record what comes of requests for one prompt with these media."""
        watched = [(asked[i], *found) for i, found in prepared.items() if not isinstance(found, RequestError)]
        watched = [entry for entry in watched if wants_answer(entry[0])]
        try:
            if watched:
                self._watch(watched, media)
        except Exception:
            logger.exception("%s: a request cannot be recorded", self._path)

    def _watch(
        self, watched: Sequence[tuple[GenerationRequest, TokenRequest, LiveAnswer]], media: Sequence[PreparedMedia]
    ) -> None:
        problem = ""
        files: list[_MediaFile] = []
        try:
            files = [_read_file(item) for item in media]
        except (SeesayError, OSError) as error:  # a file that is gone, frames that are not in one
            problem = str(error)
        records = () if problem else _make_media(watched[0][1].prompt, media, files)
        for request, token_request, answer in watched:
            facts = self._describe(request, token_request, answer, problem) | {"media": records}
            kept = self._find_template_ids(token_request) if request.gen_config.include_stop_str_in_output else ()
            answer.on_output = _Watch(self, facts, files if self._folder else (), kept, answer.on_output)
            files = []  # once is enough

    def _describe(
        self, request: GenerationRequest, token_request: TokenRequest, answer: LiveAnswer, problem: str
    ) -> dict[str, Any]:
        prompt = token_request.prompt
        options = self._read_options(request, token_request, answer)
        if any(callable(processor) for processor in options.get("logits_processors", ())):
            del options["logits_processors"]
            problem = problem or "it has logits_processors that are functions of the program that asked"
        return {
            "version": __version__,
            "model": self._model,
            "weights": self._weights,
            "arrived_at": time.time() - (time.perf_counter() - answer.times.received_at),
            "tokens": _shrink(prompt),
            "num_prompt_tokens": len(prompt.token_ids),
            "num_continued": prompt.num_answer_tokens,
            "options": options,
            "kept_tokens": request.kept_tokens,
            "adapter": request.adapter_name,
            "priority": token_request.priority,
            "streams": request.streams,
            "owner": self._name(request.owner),
            "salt": self._name(request.cache_salt or None),
            "unrepeatable": problem,
        }

    def _read_options(
        self, request: GenerationRequest, token_request: TokenRequest, answer: LiveAnswer
    ) -> dict[str, Any]:
        """Return the options of a request for the same answer to token ids: what its chat template adds, and what was
        drawn for it, are options like others."""
        config, params = request.gen_config, token_request.params
        options = {
            each.name: value
            for each in fields(GenerationConfig)
            if each.name not in _LEFT_OUT and (value := getattr(config, each.name)) != each.default
        }
        ids = (*params.stop_token_ids, *self._find_template_ids(token_request))
        options |= {"max_new_tokens": params.max_new_tokens, "stop_token_ids": ids}
        options |= {"stop_words": sorted(answer.detokenizer.stop_words)} if answer.detokenizer.stops_at_words else {}
        if not params.greedy:
            options["random_seed"] = params.seed
        if token_request.thought is not None and config.max_thinking_tokens is None:
            options["max_thinking_tokens"] = UNLIMITED_TOKENS  # a thought before the grammar
        return options

    def _find_template_ids(self, token_request: TokenRequest) -> tuple[int, ...]:
        """Return the tokens by which the chat template ends an answer."""
        params = token_request.params
        return () if params.ignore_eos else tuple(i for i in params.eos_token_ids if i not in self._eos)

    def _name(self, who: Hashable | None) -> str:
        """Return a number in place of an owner or a salt."""
        if who is None:
            return ""
        with self._lock:
            if who not in self._names:
                if len(self._names) >= _MAX_NAMES:
                    self._names.clear()
                self._names[who] = f"{os.getpid()}-{next(self._numbers)}"
            return self._names[who]

    # --- writing ------------------------------------------------------------------------------------------------------

    def add(self, facts: Mapping[str, Any], files: Sequence[_MediaFile]) -> None:
        """Let the thread write a record and its files. Waits for nothing."""
        size = _BYTES_PER_TOKEN * (len(facts["tokens"]) + len(facts["answer"])) + sum(map(_count_bytes, files))
        with self._lock:
            is_lost = (
                self._num_waiting + size > MAX_WAITING_BYTES
                or self._num_written + self._num_waiting + size > self._max_bytes
            )
            self._num_waiting += 0 if is_lost else size
            self._num_lost += is_lost
            is_first = is_lost and self._num_lost == 1
        if is_first:
            logger.warning("%s: there is no room for all requests any more, some are missing", self._path)
        if not is_lost:
            try:
                self._thread.submit(self._write, facts, files, size)
            except RuntimeError:  # closed, or no thread can be started
                self._num_lost += 1

    def _write(self, facts: Mapping[str, Any], files: Sequence[_MediaFile], size: int) -> None:
        try:
            for name, content in files:
                self._keep_file(name, content)
            append(self._path, write_line(RequestRecord(**facts)))
        except OSError as error:
            self._num_lost += 1
            logger.warning("%s: a request cannot be recorded: %s", self._path, error)
        with self._lock:
            self._num_waiting -= size
            self._num_written += size

    def _keep_file(self, name: str, content: bytes | Path) -> None:
        assert self._folder is not None
        target = self._folder / name
        if target.exists():
            return
        self._folder.mkdir(mode=0o700, exist_ok=True)
        unfinished = target.with_name(f".{name}.{os.getpid()}")
        with open(unfinished, "wb", opener=_open_private) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, file)
        unfinished.rename(target)


def make_recorder(config: EngineConfig, model: str, weights: bytes, eos: Collection[int]) -> Recorder | None:
    """Return what records requests, if a configuration asks for it. See `Recorder`."""
    path, with_media = config.record, config.record_media
    if path is None:
        return None
    return Recorder(path, with_media=with_media, model=model, weights=weights, eos=eos)


class _Watch:
    """Passes on what comes of a request, and records it when that ends."""

    def __init__(
        self,
        recorder: Recorder,
        facts: dict[str, Any],
        files: Sequence[_MediaFile],
        kept_stops: Sequence[int],
        pass_on: OutputSink,
    ) -> None:
        """kept_stops: tokens that end this answer, and are the last one of it when it is repeated."""
        self._recorder, self._facts, self._files, self._pass_on = recorder, facts, files, pass_on
        self._kept_stops = kept_stops
        self._answer: list[int] = []
        self._began_at = time.perf_counter()

    def __call__(self, delta: OutputDelta) -> None:
        self._answer.extend(delta.token_ids)
        try:
            self._pass_on(delta)
        finally:
            if delta.finish_reason is not None:
                self._recorder.add(self._facts | self._read_end(delta), self._files)

    def _read_end(self, delta: OutputDelta) -> dict[str, Any]:
        error, timings = delta.error, delta.timings
        kept = [delta.stop_reason] if delta.stop_reason in self._kept_stops else []
        return {
            "answer": [*self._answer, *kept],
            "finish_reason": delta.finish_reason,
            "error": "" if error is None else str(getattr(error, "code", "internal_error")),
            "first_token_s": 0.0 if timings is None else timings.time_to_first_token_s,
            "total_s": time.perf_counter() - self._began_at if timings is None else timings.total_s,
        }


def name_weights(digest: bytes) -> str:
    """Return how a recording names weights with this digest."""
    return digest.hex()[:16]


def media_folder(path: Path) -> Path:
    """Return the folder of the media of a recording."""
    return path.with_name(f"{path.name}.media")


def check_path(path: str | os.PathLike[str]) -> None:
    """Raise `ConfigError` unless a recording can be written there; makes an empty file. A last line that is cut off,
    of a process that was killed, is ended, so that the next one is not part of it."""
    try:
        append(Path(path), b"")
        append(Path(path), b"\n" if _is_cut_off(Path(path)) else b"")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"record={os.fspath(path)!r} cannot be written: {reason}") from None


def _is_cut_off(path: Path) -> bool:
    with open(path, "rb", opener=_open_private) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read(1) not in (b"", b"\n")


def append(path: Path, data: bytes) -> None:
    """Append to a regular file, by one call, so that other processes may do so meanwhile. Only its owner may read it
    then. Raises OSError, also for a link."""
    with open(path, "ab", buffering=0, opener=_open_private) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        os.fchmod(file.fileno(), 0o600)
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def write_line(record: RequestRecord) -> bytes:
    """Return the line of a record. Options that are not JSON are left out, and make it unrepeatable."""
    try:
        return _dump(record)
    except (TypeError, ValueError, RecursionError) as error:
        return _dump(replace(record, options={}, media=(), unrepeatable=f"its options are not JSON: {error}"))


def _dump(record: RequestRecord) -> bytes:
    empty: tuple[object, ...] = ("", 0, None, (), {})
    shown = {each.name: getattr(record, each.name) for each in fields(record)}
    shown = {name: value for name, value in shown.items() if value is False or value not in empty}
    return json.dumps(shown, separators=(",", ":"), allow_nan=False, default=_as_json).encode() + b"\n"


def _as_json(value: object) -> Any:
    if isinstance(value, MediaRecord):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # NumPy's numbers
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")


def _shrink(prompt: MultimodalInput) -> list[int]:
    """Return the tokens of a prompt, with one in place of each media item."""
    token_ids: list[int] = prompt.token_ids.tolist()
    tokens: list[int] = []
    done = 0
    for item in prompt.items:
        start, stop = item.span
        tokens += [*token_ids[done:start], 0]
        done = stop
    return tokens + token_ids[done:]


_KINDS: Mapping[Modality, Literal["video", "audio"]] = {Modality.VIDEO: "video", Modality.AUDIO: "audio"}


def _make_media(
    prompt: MultimodalInput, media: Sequence[PreparedMedia], files: Sequence[_MediaFile]
) -> tuple[MediaRecord, ...]:
    records = []
    num_dropped = 0
    for item, prepared, (name, _) in zip(prompt.items, media, files, strict=True):
        assert prepared.opened is not None
        start, stop = item.span
        records.append(
            MediaRecord(
                position=start - num_dropped,
                modality=_KINDS.get(prepared.modality, "image"),
                sha256=name,
                num_tokens=stop - start,
                options=dict(prepared.opened.part.options),
            )
        )
        num_dropped += stop - start - 1
    return tuple(records)


def _read_file(item: PreparedMedia) -> _MediaFile:
    """Return the file of a media item, by its hash. Raises `RequestError` for frames and samples that are in none."""
    assert item.opened is not None
    content = as_file(item.opened.media)
    if content is None:
        raise ConfigError("the frames of a video, and samples of audio that are not in a file, are not recorded")
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest(), content
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), content


def _count_bytes(file: _MediaFile) -> int:
    return len(file[1]) if isinstance(file[1], bytes) else 0
