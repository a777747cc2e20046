"""JSON bodies: read within the limits of `BodyShape`; large ones are parsed and validated off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from seesay.serving.errors import bad_request
from seesay.serving.http.body_shape import MAX_DEPTH, MAX_VALUES, BodyShape
from seesay.serving.http.validation_errors import explain_invalid, make_not_json_error
from seesay.serving.requests.submission import ClientGoneError
from seesay.serving.requests.unknown_fields import drop_unknown
from seesay.system.thread_pool import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")

_INLINE_BYTES = 16 << 10  # parsed and validated within a millisecond or two: handing it to a thread gains nothing

_OF_BROWSERS = ("origin", "sec-fetch-site")

# One thread: parsing and validation hold the GIL, so a second thread would only slow down the others.
_thread = ThreadPool(1, name="seesay-bodies")


async def read_body(http: Request, model: type[BaseModel]) -> BaseModel:
    """Return the body of a request as an instance of `model`. Raises `ApiError`: 400 that names the field at fault, and
    what the limits on bodies raise.

    The bytes of the body do not stay in memory while the request is answered.
    """
    server = http.app.state.server
    content = await _receive(http, BodyShape(max(MAX_VALUES, 2 * server.engine.session_len)))
    http.scope["state"]["num_body_bytes"] = len(content)
    if not content or not (_is_json(http.headers.get("content-type", "")) or _is_of_an_editor(http)):
        raise make_not_json_error()
    ignored: list[str] | None = None
    if server.settings.unknown_fields == "ignore":
        ignored = http.scope["state"]["ignored_fields"] = []
    return await off_loop(http, _parse, content, model, ignored)


async def _receive(http: Request, shape: BodyShape) -> bytearray:
    """Return the raw body. Raises `ApiError` when it exceeds a limit of `shape`."""
    content = bytearray()
    num_counted = 0
    try:
        async for piece in http.stream():
            content += piece
            if len(content) > _INLINE_BYTES:
                shape.add(bytes(memoryview(content)[num_counted:]))
                num_counted = len(content)
    except ClientDisconnect:
        raise ClientGoneError from None
    # A small body can exceed one limit only.
    if not num_counted and content.count(b"[") + content.count(b"{") > MAX_DEPTH:
        shape.add(bytes(content))
    return content


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    main, _, sub = kind.partition("/")
    return main == "application" and (sub == "json" or sub.endswith("+json"))


def _is_of_an_editor(http: Request) -> bool:
    """Whether a client of Ollama's API sent the body, whose type may be any: plugins send what `curl -d` does. Not a
    browser, where a page of another origin may send such types without asking first; browsers name the origin."""
    return http.url.path.startswith("/api/") and not any(name in http.headers for name in _OF_BROWSERS)


class BodyRoute(APIRoute):
    """A route whose endpoint may take the body, as an instance of a model: then it is called as
    `endpoint(body=…, http=…)`, with the parameters of its path, and returns a response.

    FastAPI publishes the schema. The body is read here, without FastAPI's dependencies.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.body_field is None:
            return super().get_route_handler()
        model, endpoint = self.body_field.field_info.annotation, self.endpoint
        assert isinstance(model, type) and issubclass(model, BaseModel), f"{self.path}: the body is not a model"

        async def handle(http: Request) -> Response:
            response: Response = await endpoint(**http.path_params, body=await read_body(http, model), http=http)
            return response

        self.handle_body = handle
        return handle


class BodyRoutesMiddleware:
    """Pass POST requests to the `BodyRoute` of their path at once: matching them with all routes one after the other
    takes longer than reading a short body. The app's router answers the others."""

    def __init__(self, app: ASGIApp, *, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            route.path: route
            for route in routes
            if isinstance(route, BodyRoute) and route.body_field is not None and not route.param_convertors
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path"):
            route = self._routes.get(scope["path"])
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        response = await route.handle_body(Request(scope, receive))
        await response(scope, receive, send)


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
        raise explain_invalid(error.errors(include_url=False), value) from None
