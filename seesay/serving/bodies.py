"""JSON bodies: read within the limits of `BodyShape`; large ones are parsed and validated off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from seesay.serving.body_shape import MAX_VALUES, BodyShape
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.unknown_fields import drop_unknown
from seesay.thread_pool import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")

_MAX_NAME_CHARS = 80
_INLINE_BYTES = 16 << 10  # parsed and validated within a millisecond or two: handing it to a thread gains nothing

# One thread: parsing and validation hold the GIL, so a second thread would only slow down the others.
_thread = ThreadPool(1, name="seesay-bodies")


class BodyRequest(Request):
    """A request whose `json()` returns an instance of `model`, parsed from the body and validated.

    FastAPI passes that instance to the route. `json()` empties `body()`, so that the bytes of a large body do not stay
    in memory while the request is answered.
    """

    def __init__(self, request: Request, model: type[BaseModel], max_values: int, *, ignores_unknown: bool) -> None:
        super().__init__(request.scope, request.receive)
        self._ignores_unknown = ignores_unknown
        self._model = model
        self._shape = BodyShape(max_values)
        self._content: bytearray | None = None

    async def body(self) -> bytes:
        """Return the raw body. Raises `ApiError` when it exceeds a limit of `BodyShape`."""
        if self._content is None:
            content = bytearray()
            async for piece in self.stream():
                self._shape.add(piece)
                content += piece
            self._content = content
            self.scope["state"]["num_body_bytes"] = len(content)
        return self._content  # type: ignore[return-value]

    async def json(self) -> BaseModel:
        """Return the validated body. Raises `ApiError` 400 that names the field at fault."""
        await self.body()
        assert self._content is not None
        ignored: list[str] | None = None
        if self._ignores_unknown:
            ignored = self.scope["state"]["ignored_fields"] = []
        return await off_loop(self, _parse, self._content, self._model, ignored)


class BodyRoute(APIRoute):
    """A route that reads its body as a `BodyRequest`."""

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
    """Return a router of `BodyRoute`s. Further options are those of `APIRouter`."""
    return APIRouter(tags=[tag], route_class=BodyRoute, **options)


async def off_loop(http: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `work`, whose duration grows with the body of `http`. Runs in a thread for a large body."""
    if http.scope["state"]["num_body_bytes"] <= _INLINE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.wrap_future(_thread.submit(work, *args, **kwargs))


def _parse(content: bytearray, model: type[BaseModel], ignored: list[str] | None) -> BaseModel:
    """Parse `content` into `model`, and empty `content`. Unknown fields are an error if `ignored` is None; otherwise
    they are dropped and their names added to `ignored`."""
    try:
        value = from_json(content)
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    finally:
        content.clear()
    if ignored is not None:
        ignored += drop_unknown(value, model)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise explain_invalid(error.errors(include_url=False)) from None


def explain_invalid(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """Return the error for an invalid body. It reports one problem: the most deeply nested, which for a union is that
    of the branch that matched furthest."""
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
    """Return `messages[0].content` for ('messages', 0, 'content', 'str'). Names of union branches are left out."""
    name = ""
    for step in location:
        if isinstance(step, int):
            name += f"[{step}]"
        elif (step := step[:_MAX_NAME_CHARS]).isidentifier() and step not in (
            "str",
            "int",
            "float",
            "bool",
            "dict",
            "list",
        ):
            name += f".{step}" if name else step
    return name or None
