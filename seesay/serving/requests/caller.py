"""The sender of a request: its id in the log, whose turn it takes, and how far the request has come."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from starlette.types import Scope

from seesay.serving.tracing import RequestTrace
from seesay.serving.traffic.auth import turn_of


@dataclass(slots=True)
class Progress:
    """is_queued: whether a request waits for its turn alone, for nothing is wrong with it as far as is known."""

    is_queued: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """request_id: id of the HTTP request. turn: requests with equal turns count as one client; clients take turns.
    rid: the id that the body gives. answer_id: the id of the answer, where it has one. trace: the span of the HTTP
    request, where requests are traced. progress: told by what answers."""

    request_id: str | None = None
    turn: Hashable = None
    rid: str | None = None
    answer_id: str | None = None
    trace: RequestTrace | None = field(default=None, compare=False)
    progress: Progress | None = field(default=None, compare=False)


NOBODY = Caller()


def caller_of(scope: Scope, rid: str | None = None, answer_id: str | None = None) -> Caller:
    """Return the sender of an HTTP request that has passed the middleware."""
    state = scope["state"]
    progress = state.setdefault("progress", Progress())
    return Caller(
        request_id=state["request_id"],
        turn=turn_of(scope),
        rid=rid,
        answer_id=answer_id,
        trace=state.get("trace"),
        progress=progress,
    )


def is_queued(scope: Scope) -> bool:
    """Return whether an HTTP request waits for its turn alone."""
    progress = scope.get("state", {}).get("progress")
    return isinstance(progress, Progress) and progress.is_queued()
