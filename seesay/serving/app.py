"""The FastAPI app: the routes of every API over one engine, and the middleware around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from seesay.serving.anthropic import messages
from seesay.serving.batches.worker import running_batches
from seesay.serving.docs_page import add_docs_page
from seesay.serving.errors import ApiError, Envelopes
from seesay.serving.http.bodies import BodyRoutesMiddleware
from seesay.serving.http.context import ContextMiddleware, HttpMetrics, make_error_response
from seesay.serving.http.head import HeadMiddleware
from seesay.serving.http.validation_errors import explain_invalid
from seesay.serving.live import route as live
from seesay.serving.native import abort, generate, interactive, tokens
from seesay.serving.ollama import describing, replies
from seesay.serving.openai import batches, chat, completions, embeddings, files, ranking, transcriptions
from seesay.serving.openai.answer_models import ErrorResponse
from seesay.serving.openai.responses import conversations, response_reply
from seesay.serving.operating import adapters, admin, models, operations, probes
from seesay.serving.operating.published import publish_schemas
from seesay.serving.operating.simple_schemas import add_simple_document
from seesay.serving.requests.state import ServerState
from seesay.serving.settings import ServerSettings
from seesay.serving.tracing import Tracing
from seesay.serving.traffic.admission import AdmissionMiddleware, Gate
from seesay.serving.traffic.auth import ApiKeyMiddleware
from seesay.version import __version__

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.requests.submission import Answering
    from seesay.serving.stored.shared_state import SharedState
    from seesay.serving.traffic.metrics import ServerMetrics

_ROUTES = (
    models,
    chat,
    completions,
    response_reply,
    conversations,
    embeddings,
    ranking,
    transcriptions,
    files,
    batches,
    messages,
    interactive,
    live,
    generate,
    tokens,
    abort,
    replies,
    describing,
    operations,
    probes,
    admin,
    adapters,
)


def create_app(
    engine: AsyncEngine,
    settings: ServerSettings | None = None,
    *,
    make_shared_state: Callable[[ServerMetrics, Answering], SharedState] | None = None,
) -> FastAPI:
    """Return the ASGI app of the server. It answers with `engine`, which the caller closes.

    `app.state.server` is the `ServerState`, `app.state.has_sockets` says that a route takes WebSockets, and
    `app.state.checked_app` answers requests that have passed the checks of keys and of the queue. Build the engine with
    `media_limits=settings.media`: the engine enforces the limits on pictures and videos. `make_shared_state`: makes the
    shared state that several frontends share, of this frontend's metrics and requests.
    """
    state = ServerState.build(engine, settings or ServerSettings(), make_shared_state)
    routers = [module.make_router(state) for module in _ROUTES]
    routes = [route for router in routers for route in router.routes]
    app = FastAPI(
        title="seesay",
        description="See images and video, say text: a vision-language model behind the OpenAI and Anthropic APIs.",
        version=__version__,
        docs_url=None,  # `docs_page` serves Swagger UI from the package
        redoc_url=None,
        middleware=[*make_layers(state), Middleware(BodyRoutesMiddleware, routes=routes)],
        lifespan=_run_beside,
        responses={"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}},
    )
    app.state.server = state
    app.state.has_sockets = True  # a distributor has none
    app.state.checked_app = ContextMiddleware(
        BodyRoutesMiddleware(app, routes=routes), envelopes=state.envelopes, metrics=state.metrics
    )
    add_docs_page(app)
    for router in routers:
        app.include_router(router)
    add_error_handlers(app, state.envelopes)
    publish_schemas(app, state)
    add_simple_document(app)
    return app


@asynccontextmanager
async def _run_beside(app: FastAPI) -> AsyncIterator[None]:
    """Run batches while the app is served, and send what is left of traces at the end."""
    async with running_batches(app):
        yield
    await close_tracing(app.state.server)


async def close_tracing(state: AppState) -> None:
    """Send the spans of the app's requests that were not sent yet."""
    if (tracing := state.tracing) is not None:
        await asyncio.to_thread(tracing.close)


class AppState(Protocol):
    """What the middleware has to know of an app."""

    @property
    def settings(self) -> ServerSettings: ...

    @property
    def gate(self) -> Gate: ...

    @property
    def envelopes(self) -> Envelopes: ...

    @property
    def metrics(self) -> HttpMetrics: ...

    @property
    def tracing(self) -> Tracing | None: ...


def make_layers(state: AppState) -> list[Middleware]:
    """Return the middleware of servers and distributors, outermost first. CORS is outermost, so that errors carry its
    headers too. Keys come before admission, so that the body of a request with a wrong key is not read."""
    settings = state.settings
    return [
        *_make_cors(settings),
        Middleware(ContextMiddleware, envelopes=state.envelopes, metrics=state.metrics, tracing=state.tracing),
        Middleware(HeadMiddleware),
        Middleware(ApiKeyMiddleware, keys=settings.api_keys, admin_keys=settings.admin_keys),
        Middleware(AdmissionMiddleware, gate=state.gate, settings=settings),
    ]


def _make_cors(settings: ServerSettings) -> list[Middleware]:
    """Return the middleware for browser pages of other origins, if the settings allow any."""
    if not settings.cors_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=settings.cors_methods,
            allow_headers=settings.cors_headers,
            allow_credentials=settings.cors_credentials,
            expose_headers=["x-request-id", "x-seesay-ignored", "x-seesay-schema-left-out"],
        )
    ]


def add_error_handlers(app: FastAPI, envelopes: Envelopes) -> None:
    """Answer what routes raise, and what FastAPI refuses, in the envelope of the path."""

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = [{**problem, "loc": problem["loc"][1:]} for problem in error.errors()]
        return make_error_response(request.scope, explain_invalid(problems), envelopes)

    async def on_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if not isinstance(error, ApiError):
            error = _explain_http(request, error)
        return make_error_response(request.scope, error, envelopes)

    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http_error)


def _explain_http(request: Request, error: HTTPException) -> ApiError:
    """Return the error for a request that the framework refused, such as an unknown path."""
    path = request.url.path
    messages = {404: f"no route for {path}", 405: f"{request.method} is not allowed for {path}"}
    return ApiError(
        error.status_code,
        messages.get(error.status_code, str(error.detail)),
        code={404: "not_found", 405: "method_not_allowed"}.get(error.status_code),
        headers={
            # `HeadMiddleware` answers HEAD wherever GET is taken.
            name: f"{value}, HEAD" if name.lower() == "allow" and "GET" in value and "HEAD" not in value else value
            for name, value in (error.headers or {}).items()
        },
    )
