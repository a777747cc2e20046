"""Runs a template that nobody vouches for: no attribute escapes, bounded output, bounded intermediate values and time.

Same syntax and helpers as Transformers gives to chat templates: trim_blocks, lstrip_blocks, loop controls, the
`generation` tag, tojson, raise_exception, strftime_now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import filters, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARS = 32 << 20
MAX_SECONDS = 20.0
# No chat template pads, repeats or counts beyond this.
MAX_INTEGER = 1 << 20

_deadline: ContextVar[float] = ContextVar("template_deadline", default=float("inf"))


class TemplateLimitError(Exception):
    """A template wrote too much or ran too long. Not a TemplateError, so that no template can catch or imitate it."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks answers for training: here its body, unchanged."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own protocol

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedCode(CodeGenerator):
    """Sends `a ~ b` through the environment, as the sandbox does for arithmetic."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.join_bounded((")
        for argument in node.nodes:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))")


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    code_generator_class = _BoundedCode
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_time()
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | list | tuple | bytes) and isinstance(times, int):
                    _check_size(len(sized) * times)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_size(abs(left).bit_length() * abs(right))  # in bits: long before memory, time is gone
        elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_size(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("a chat template may not format strings with %")
        return super().call_binop(context, operator, left, right)

    def join_bounded(self, parts: tuple[Any, ...]) -> str:
        _check_time()
        texts = [str(part) for part in parts]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        _check_time()
        _check_integers(args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, str):
            _check_size(len(result))
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_time()
        return super().getitem(obj, argument)


def _check_time() -> None:
    if time.monotonic() > _deadline.get():
        raise TemplateLimitError(f"it ran longer than {MAX_SECONDS:g} s")


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise TemplateLimitError(f"it wrote more than {MAX_CHARS} characters")


def _check_integers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_INTEGER for value in (*args, *kwargs.values())):
        raise TemplateLimitError(f"it counts beyond {MAX_INTEGER}")


def _bounded_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _check_time()
        _check_integers(args, kwargs)
        return function(*args, **kwargs)

    return bounded


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _make_environment() -> _BoundedEnvironment:
    environment = _BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    # These two build padding of any asked width.
    environment.filters["center"] = _bounded_filter(filters.do_center)
    environment.filters["indent"] = _bounded_filter(filters.do_indent)
    environment.filters.pop("format")
    environment.filters["tojson"] = _bounded_filter(_tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class BoundedTemplate:
    """A compiled template. Raises `jinja2.TemplateError` when `source` is not valid."""

    __slots__ = ("_template",)

    def __init__(self, source: str) -> None:
        self._template = _make_environment().from_string(source)

    def render(self, context: Mapping[str, Any]) -> str:
        """The output. Raises TemplateLimitError, SecurityError, TemplateError, or whatever Python error it caused."""
        token = _deadline.set(time.monotonic() + MAX_SECONDS)
        try:
            pieces: list[str] = []
            size = 0
            for piece in self._template.generate(context):
                size += len(piece)
                _check_size(size)
                _check_time()
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _deadline.reset(token)
