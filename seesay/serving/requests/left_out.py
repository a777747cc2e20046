"""Trials of grammars before answers begin: what is refused, and what is not held of schemas, for a header."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from seesay.errors import ErrorCode, RequestError
from seesay.serving.requests.submission import unless_gone
from seesay.system.cancellation import Cancellation

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope

    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.requests.field_names import FieldNames
    from seesay.values import GenerationRequest

HEADER = "x-seesay-schema-left-out"
STREAM_WAIT_S = 1.0
"""A stream begins after so long, without the header, if its grammar is still being tried."""

_MAX_NAMED = 16
_PLAIN = re.compile(r"[^A-Za-z0-9_.\[\] /#$-]")


async def try_grammar(
    engine: AsyncEngine,
    http: Request,
    request: GenerationRequest,
    names: FieldNames,
    of_tools: tuple[str, ...],
    timeout_s: float,
) -> None:
    """Wait until the grammar of a request has been tried, for `timeout_s` at most, and note what it and `of_tools`
    leave out, for the answer's header. A trial that takes longer goes on until the end of the HTTP request. Raises
    `ApiError` 400, in the client's names, for a grammar that is refused, and `ClientGoneError`."""
    left_out = of_tools
    if request.gen_config.response_format is not None:
        http.scope["state"]["grammar_wait"] = waiting = Cancellation()
        trial = asyncio.wrap_future(engine.try_grammar(request, waiting))
        trial.add_done_callback(lambda done: done.exception())  # is retrieved, also when nobody waits any more
        await unless_gone(http.receive, asyncio.wait([trial], timeout=timeout_s))
        error = trial.exception() if trial.done() else None
        if isinstance(error, RequestError) and error.code is ErrorCode.INVALID_REQUEST:
            raise names.explain(error) from error
        program = trial.result() if trial.done() and error is None else None
        left_out = (*left_out, *(program.left_out if program is not None else ()))
    if left_out:
        http.scope["state"]["schema_left_out"] = left_out


def end_wait(scope: Scope) -> None:
    """Wait no longer for the trial of the grammar of an HTTP request."""
    waiting: Cancellation | None = scope["state"].get("grammar_wait")
    if waiting is not None:
        waiting.leave()


def show_left_out(left_out: tuple[str, ...]) -> str:
    """Return the value of the header: keywords and their places. These may hold any characters."""
    shown = [_PLAIN.sub("?", each[:120]) for each in left_out[:_MAX_NAMED]]
    more = f" and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
    return f"{', '.join(shown)}{more}"
