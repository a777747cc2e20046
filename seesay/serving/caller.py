"""Who sent a request: the id that it has in the log, and in whose turn it is answered."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from starlette.types import Scope

from seesay.serving.auth import turn_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """request_id: of the HTTP request. turn: callers with an equal one are one, and take turns with others."""

    request_id: str | None = None
    turn: Hashable = None


NOBODY = Caller()


def caller_of(scope: Scope) -> Caller:
    """Who sent an HTTP request that has passed the middleware."""
    return Caller(request_id=scope["state"]["request_id"], turn=turn_of(scope))
