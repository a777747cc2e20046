"""Logits processors that requests name, instead of bringing a function: imported where the engine runs.

Importing a module runs its code, so the engine's owner says which names may be imported, by a regular expression that
a whole name must match. Without one there are none.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from seesay.errors import ErrorCode, RequestError, describe, show
from seesay.llm.plans.sampling_params import NamedProcessor
from seesay.llm.running.sampling_row import LogitsProcessor

_MAX_NAME_CHARS = 256
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)[:.]([A-Za-z_]\w*)", re.ASCII)


class ProcessorImports:
    """Finds the processors of requests. Used by several threads."""

    def __init__(self, pattern: str | None) -> None:
        self._pattern = None if pattern is None else re.compile(pattern)

    def find(self, given: Iterable[LogitsProcessor | NamedProcessor]) -> tuple[LogitsProcessor, ...]:
        """Return the functions of a request's processors. Raises `RequestError` for a name that is not allowed or does
        not lead to a function."""
        return tuple([self._import(each) if isinstance(each, NamedProcessor) else each for each in given])

    def _import(self, named: NamedProcessor) -> LogitsProcessor:
        name = named.name
        found = _NAME.fullmatch(name) if len(name) <= _MAX_NAME_CHARS else None
        if found is None:
            raise _refuse(name, "is not of the form 'package.module:function'")
        if self._pattern is None:
            raise _refuse(name, "is not allowed: this engine imports none (logits_processor_pattern)")
        if self._pattern.fullmatch(name) is None:
            raise _refuse(name, "is not allowed: it does not match logits_processor_pattern")
        try:
            processor = getattr(importlib.import_module(found[1]), found[2])
            if named.arguments is not None:
                processor = _call(processor, json.loads(named.arguments))
        except (Exception, SystemExit) as error:
            raise _refuse(name, f"cannot be imported: {describe(error)}") from error
        if not callable(processor):
            raise _refuse(name, f"is not a function but a {type(processor).__name__}")
        function: LogitsProcessor = processor
        return function


def _call(make: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return make(*arguments["args"], **arguments["kwargs"])


def _refuse(name: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"logits_processors: {show(name)} {why}", "logits_processors")
