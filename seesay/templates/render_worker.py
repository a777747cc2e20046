"""The program of the process that renders chat templates. It reads requests from standard input, answers on standard
output, and ends when its parent ends.

An untrusted template runs under limits of the operating system: memory, processor time per request, no files. It gets
plain JSON values, and Transformers' syntax and helpers: trim_blocks, lstrip_blocks, loop controls, the `generation`
tag, tojson, raise_exception, strftime_now. This module runs as a script, and imports the standard library and jinja2
only.

A request is a length (u64, little-endian) and JSON: {"key": …, "source": …, "context": …}. `source` is compiled and
stored under `key`; with a `context` it is rendered. An answer is a length, the letter of an `Outcome` and UTF-8 text.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

TEXT, SYNTAX, RAISED, UNSAFE, LIMIT, FAILED = b"TSRULF"
"""First byte of an answer: the rest is the output, or the message of one of `sandbox.RenderError`'s kinds."""
IS_LAST = 0x80
"""Set in the first byte if the process ends after this answer."""

_WATCH_S = 2.0
_MAX_MESSAGE_CHARS = 2000


def main(settings: Mapping[str, Any]) -> NoReturn:
    """Answer requests. `settings`: sys_path, memory_bytes, cpu_s, max_chars, and kept_bytes, the memory above which the
    process ends after an answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the timer of cpu_s kills the process
    _end_with(os.getppid())
    source, target = os.dup(0), os.dup(1)
    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - before anything is imported
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    sys.path += [path for path in settings["sys_path"] if path not in sys.path]
    renderer = _Renderer(settings["max_chars"])
    statm = os.open("/proc/self/statm", os.O_RDONLY)  # getrusage's maximum would include the parent's memory
    _limit(resource.RLIMIT_AS, settings["memory_bytes"])
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 32)
    while (request := _read(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, settings["cpu_s"])
        kind, body = _answer(renderer, request)
        del request
        signal.setitimer(signal.ITIMER_PROF, 0)
        held = int(os.pread(statm, 256, 0).split()[1]) * resource.getpagesize()
        is_last = kind == LIMIT or held > settings["kept_bytes"]
        _write(target, bytes([kind | IS_LAST * is_last]), body)
        del body
        if is_last:
            break
    os._exit(0)


def _end_with(parent: int) -> None:
    """End soon after the parent, even while a template is rendered or a fork of the parent holds our pipes open."""

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, _WATCH_S, _WATCH_S)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _read(source: int) -> bytearray | None:
    """Return the next request, or None at the end of the input."""
    header = _read_exactly(source, 8)
    return None if header is None else _read_exactly(source, int.from_bytes(header, "little"))


def _read_exactly(source: int, size: int) -> bytearray | None:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = os.readv(source, [view[done:]])
        if not count:
            return None
        done += count
    return data


def _write(target: int, first: bytes, body: bytes) -> None:
    try:
        head = (1 + len(body)).to_bytes(8, "little") + first
        written = os.writev(target, [head, body])  # a pipe takes the head as a whole
        view = memoryview(body)[written - len(head) :]
        while view:
            view = view[os.write(target, view) :]
    except BrokenPipeError:
        os._exit(0)


def _answer(renderer: _Renderer, request: bytearray) -> tuple[int, bytes]:
    try:
        message = json.loads(request.decode("utf-8", "surrogatepass"))
        return renderer.answer(message["key"], message.get("source"), message.get("context"))
    except MemoryError:
        pass  # answer below, after the frames that hold the memory are gone
    return LIMIT, b"it used too much memory"


class _Renderer:
    """Compile templates in one environment, and keep them by key."""

    def __init__(self, max_chars: int) -> None:
        import jinja2

        self._jinja2 = jinja2
        self._environment = make_environment()
        self._templates: dict[str, Any] = {}
        self._max_chars = max_chars

    def answer(self, key: str, source: str | None, context: Mapping[str, object] | None) -> tuple[int, bytes]:
        errors = self._jinja2.exceptions
        text = ""
        try:
            if source is not None:
                try:
                    self._templates[key] = self._environment.from_string(source)
                except errors.TemplateSyntaxError as error:
                    return SYNTAX, _message(error)
            if context is not None:
                text = self._render(self._templates[key], context)
        except MemoryError:
            raise
        except _TooLongError as error:
            return LIMIT, _message(error)
        except errors.SecurityError as error:
            return UNSAFE, _message(error)
        except errors.TemplateError as error:
            return RAISED, _message(error)
        except Exception as error:  # a template may raise anything
            return (SYNTAX if context is None else FAILED), _message(error, type(error).__name__)
        return TEXT, text.encode("utf-8", "surrogatepass")

    def _render(self, template: Any, context: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in template.generate(context):
            size += len(piece)
            if size > self._max_chars:
                raise _TooLongError(f"it wrote more than {self._max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)


class _TooLongError(Exception):
    """The output is too long. Not a TemplateError, so that a template cannot catch or raise it."""


def _message(error: Exception, name: str = "") -> bytes:
    text = str(error)[:_MAX_MESSAGE_CHARS]
    return (f"{name}: {text}" if name else text).encode("utf-8", "replace")


def make_environment() -> Any:
    """Return a jinja environment that is configured like Transformers' for chat templates."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks answers for training. Here it outputs its body unchanged."""

        tags = {"generation"}  # noqa: RUF012 - jinja's own protocol

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own tojson escapes HTML characters, unlike the texts that models were trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
