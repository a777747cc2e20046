"""The sender of a request: its id in the log, and whose turn it takes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from starlette.types import Scope

from seesay.serving.tracing import RequestTrace
from seesay.serving.traffic.auth import turn_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """request_id: id of the HTTP request. turn: requests with equal turns count as one client; clients take turns.
    rid: the id that the body gives. trace: the span of the HTTP request, where requests are traced."""

    request_id: str | None = None
    turn: Hashable = None
    rid: str | None = None
    trace: RequestTrace | None = field(default=None, compare=False)


NOBODY = Caller()


def caller_of(scope: Scope, rid: str | None = None) -> Caller:
    """Return the sender of an HTTP request that has passed the middleware."""
    state = scope["state"]
    return Caller(request_id=state["request_id"], turn=turn_of(scope), rid=rid, trace=state.get("trace"))
