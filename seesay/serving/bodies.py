"""JSON bodies: read within the limits of `BodyShape`, parsed and validated off the event loop when they are large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from seesay.device.interpreter import quick_switches
from seesay.serving.body_shape import MAX_VALUES, BodyShape
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.unknown_fields import drop_unknown
from seesay.thread_pool import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")

_INLINE_BYTES = 16 << 10  # parsed and checked within a millisecond or two, which a thread would not make shorter

# One thread: work on bodies is Python and holds the GIL, so that a second one would only slow down everything else.
_thread = ThreadPool(1, name="seesay-bodies")


class BodyRequest(Request):
    """A request whose `json()` is an instance of `model`, parsed from the body and validated.

    FastAPI takes it as it is. `body()` is empty from then on, so that the bytes of a large body do not stay in memory
    while it is answered.
    """

    def __init__(self, request: Request, model: type[BaseModel], max_values: int, *, ignores_unknown: bool) -> None:
        super().__init__(request.scope, request.receive)
        self._ignores_unknown = ignores_unknown
        self._model = model
        self._shape = BodyShape(max_values)
        self._content: bytearray | None = None

    async def body(self) -> bytes:
        """The raw body. Raises `ApiError` for one whose shape is not allowed."""
        if self._content is None:
            content = bytearray()
            with quick_switches:
                async for piece in self.stream():
                    self._shape.add(piece)
                    content += piece
            self._content = content
            self.scope["state"]["num_body_bytes"] = len(content)
        return self._content  # type: ignore[return-value]

    async def json(self) -> BaseModel:
        """The validated body. Raises `ApiError` 400 that names what is wrong."""
        await self.body()
        assert self._content is not None
        ignored: list[str] | None = None
        if self._ignores_unknown:
            ignored = self.scope["state"]["ignored_fields"] = []
        return await off_loop(self, _parse, self._content, self._model, ignored)


class BodyRoute(APIRoute):
    """A route of one body, which is read as `BodyRequest` says."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model = self.body_field.field_info.annotation
        assert isinstance(model, type) and issubclass(model, BaseModel), f"{self.path}: the body is not a model"

        async def handle_body(request: Request) -> Response:
            server = request.app.state.server
            ignores_unknown = server.settings.unknown_fields == "ignore"
            max_values = max(MAX_VALUES, 2 * server.engine.session_len)
            return await handle(BodyRequest(request, model, max_values, ignores_unknown=ignores_unknown))

        return handle_body


def make_api_router(tag: str, **options: Any) -> APIRouter:
    """A router whose routes read their bodies as `BodyRequest` says. Further options are those of `APIRouter`."""
    return APIRouter(tags=[tag], route_class=BodyRoute, **options)


async def off_loop(http: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `work`, whose duration grows with the body of `http`: in a thread when the body is large."""
    if http.scope["state"]["num_body_bytes"] <= _INLINE_BYTES:
        return work(*args, **kwargs)

    def work_beside_others() -> T:
        with quick_switches:
            return work(*args, **kwargs)

    return await asyncio.wrap_future(_thread.submit(work_beside_others))


def _parse(content: bytearray, model: type[BaseModel], ignored: list[str] | None) -> BaseModel:
    """Return the model that `content` spells, which is emptied. Unknown fields are ignored, and added to `ignored`,
    unless that is None."""
    try:
        value = from_json(content)
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from None
    finally:
        content.clear()
    if ignored is not None:
        ignored += drop_unknown(value, model)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise explain_invalid(error.errors(include_url=False)) from None


def explain_invalid(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first thing that is wrong with a body. Of a union's branches, the one that got furthest is meant."""
    problem = max(problems, key=lambda entry: len(entry["loc"]))
    where = _name_field(problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return bad_request(f"unknown field: {where}", where, code="unknown_parameter")
        case "missing" if where:
            return bad_request(f"the field {where} is missing", where, code="missing_required_parameter")
        case _ if not where:
            return bad_request("the body must be a JSON object (with the header Content-Type: application/json)")
        case _:
            return bad_request(f"{where}: {problem['msg'].removeprefix('Value error, ')}", where)


def _name_field(location: tuple[int | str, ...]) -> str | None:
    """`messages[0].content` for ('messages', 0, 'content', 'str'): the names of union branches are left out."""
    name = ""
    for step in location:
        if isinstance(step, int):
            name += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "int", "float", "bool", "dict", "list"):
            name += f".{step}" if name else step
    return name or None
