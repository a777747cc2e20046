"""The sender of a request: its id in the log, and whose turn it takes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from starlette.types import Scope

from seesay.serving.traffic.auth import turn_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """request_id: id of the HTTP request. turn: requests with equal turns count as one client; clients take turns.
    rid: the id that the body gives."""

    request_id: str | None = None
    turn: Hashable = None
    rid: str | None = None


NOBODY = Caller()


def caller_of(scope: Scope, rid: str | None = None) -> Caller:
    """Return the sender of an HTTP request that has passed the middleware."""
    return Caller(request_id=scope["state"]["request_id"], turn=turn_of(scope), rid=rid)
