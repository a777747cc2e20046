"""The distributor's ASGI app: routes about its nodes, and everything else, which it forwards."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, Field
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from seesay.serving.anthropic import messages
from seesay.serving.app import add_error_handlers, close_tracing, make_cors
from seesay.serving.docs_page import DOCS_PATHS, add_docs_page
from seesay.serving.errors import ApiError, Envelopes
from seesay.serving.http.context import ContextMiddleware
from seesay.serving.http.head import HeadMiddleware
from seesay.serving.ollama import replies
from seesay.serving.proxy.forwarding import Forwarder
from seesay.serving.proxy.metrics import ProxyMetrics
from seesay.serving.proxy.node import Node, read_url
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.settings import ServerSettings
from seesay.serving.tracing import Tracing, open_tracing
from seesay.serving.traffic.admission import AdmissionMiddleware, Gate, shutting_down
from seesay.serving.traffic.auth import ADMIN_PATHS, ApiKeyMiddleware, require_admin
from seesay.serving.traffic.metric_sums import Family, Figures, add_up, read_families
from seesay.serving.traffic.metrics import CONTENT_TYPE
from seesay.version import __version__

_OWN_PATHS = DOCS_PATHS | {"/health", "/ready", "/live", "/ping", "/metrics", "/v1/models"}
_TO_ALL = (ADMIN_PATHS - {"/terminate"}) | {"/reset_caches", "/flush_cache"}


@dataclass(frozen=True, kw_only=True)
class ProxyState:
    """What belongs to a distributor's app, named as in `ServerState`."""

    settings: ServerSettings
    nodes: Nodes
    gate: Gate
    envelopes: Envelopes
    metrics: ProxyMetrics
    answering: Forwarder
    tracing: Tracing | None

    @classmethod
    def build(cls, settings: ServerSettings, nodes: Nodes) -> ProxyState:
        envelopes, metrics = Envelopes(), ProxyMetrics(nodes)
        envelopes.register("/v1/messages", messages.make_envelope)
        envelopes.register("/v1/models", messages.make_envelope, header="anthropic-version")
        envelopes.register("/api", replies.make_envelope)
        answering = Forwarder(nodes, envelopes, metrics)
        return cls(
            settings=settings,
            nodes=nodes,
            gate=Gate(settings),
            envelopes=envelopes,
            metrics=metrics,
            answering=answering,
            tracing=open_tracing(settings.otlp_traces_endpoint),
        )


_Named = Annotated[str | None, Query(description="the node's URL; or send it as `url` in the body")]


class Capability(BaseModel):
    """What a node says of itself: its models, and how many requests a second it answers."""

    models: Annotated[list[str], Field(max_length=256)] = []
    speed: Annotated[float | None, Field(gt=0)] = None


class NewNode(BaseModel):
    """A node: http://HOST:PORT or https://HOST:PORT."""

    url: str
    status: Capability | None = None


class NamedNode(BaseModel):
    url: str


def create_proxy_app(
    settings: ServerSettings,
    nodes: Nodes,
    *,
    gather_figures: Callable[[], Awaitable[Sequence[Sequence[Family]]]] | None = None,
) -> FastAPI:
    """Return the app that distributes requests among `nodes`. Of the settings, those on addresses, keys, bodies, the
    number of requests and the drain count. `gather_figures` reads the nodes' metrics, for the one page of `--dp`."""
    state = ProxyState.build(settings, nodes)
    app = FastAPI(
        title="seesay proxy",
        description="Distributes requests among servers. All routes that are not listed here are the servers'.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=_close_behind,
        middleware=[
            *make_cors(settings),
            Middleware(ContextMiddleware, envelopes=state.envelopes, metrics=state.metrics, tracing=state.tracing),
            Middleware(HeadMiddleware),
            Middleware(ApiKeyMiddleware, keys=settings.api_keys, admin_keys=settings.admin_keys),
            Middleware(AdmissionMiddleware, gate=state.gate, settings=settings),
            Middleware(_Dispatch, forwarder=state.answering),
        ],
    )
    app.state.server = state
    add_docs_page(app)
    _add_node_routes(app, nodes)
    _add_operating_routes(app, state, gather_figures)
    add_error_handlers(app, state.envelopes)
    return app


@asynccontextmanager
async def _close_behind(app: FastAPI) -> AsyncIterator[None]:
    yield
    await close_tracing(app)


class _Dispatch:
    """Forward all paths but the app's own, and tell all nodes what an operator wants of them."""

    def __init__(self, app: ASGIApp, *, forwarder: Forwarder) -> None:
        self._app, self._forwarder = app, forwarder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, is_post = scope.get("path", ""), scope.get("method") == "POST"
        if path.startswith("/nodes/") and is_post:
            _require_operator(Request(scope))  # before the body is read
        is_own = path == "/terminate" or path.startswith("/nodes/") or (path in _OWN_PATHS and not is_post)
        if scope["type"] != "http" or is_own:
            await self._app(scope, receive, send)
        elif path in _TO_ALL and is_post:
            answers = await self._forwarder.ask_all(scope, await Request(scope, receive).body())
            status, body = max(answers, key=lambda answer: answer[0], default=(503, b"{}"))
            await Response(body, status, media_type="application/json")(scope, receive, send)
        else:
            await self._forwarder(scope, receive, send)


def _require_operator(request: Request) -> None:
    """Raise `ApiError` unless the request may change the nodes: it has an admin key, or where the distributor has no
    admin keys, it comes from this machine, and neither from a page of another site nor through another proxy."""
    if request.app.state.server.settings.admin_keys:
        require_admin(request)
        return
    headers, host = request.headers, request.client.host if request.client else ""
    is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    is_foreign |= any(name in headers for name in ("forwarded", "x-forwarded-for", "via"))
    if is_foreign or not _is_loopback(host):
        require_admin(request)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _add_node_routes(app: FastAPI, nodes: Nodes) -> None:
    @app.get("/nodes/status")
    async def status() -> dict[str, Any]:
        """Return the status of each node."""
        return {node.name: node.describe() for node in nodes}

    @app.post("/nodes/add")
    async def add(body: NewNode) -> dict[str, str]:
        """Add a node. One that is known is asked for its health at once."""
        known = body.status or Capability()
        nodes.add(Node(read_url(body.url), models=known.models, speed=known.speed))
        return {"status": "ok"}

    @app.post("/nodes/remove")
    async def remove(node_url: _Named = None, body: NamedNode | None = None) -> dict[str, str]:
        """Remove a node. It ends the answers that it has begun, and gets no others."""
        nodes.remove(_find(node_url, body))
        return {"status": "ok"}

    @app.post("/nodes/terminate")
    async def terminate(http: Request, node_url: _Named = None, body: NamedNode | None = None) -> dict[str, str]:
        """Remove a node, and have it shut down: it ends the answers that it has begun."""
        node = nodes.remove(_find(node_url, body))
        headers = [pair for pair in http.headers.raw if pair[0] in (b"authorization", b"x-api-key")]
        status, _ = await node.connections.fetch(b"/terminate", headers, "POST")
        if status >= 400:
            raise ApiError(502, f"the node was removed, but did not shut down (status {status})", code="node_refuses")
        return {"status": "ok"}

    def _find(query: str | None, body: NamedNode | None) -> str:
        name = query or (body.url if body else "")
        return name if any(node.name == name for node in nodes) else read_url(name)


def _add_operating_routes(
    app: FastAPI,
    state: ProxyState,
    gather_figures: Callable[[], Awaitable[Sequence[Sequence[Family]]]] | None,
) -> None:
    @app.get("/health")
    @app.get("/ready")
    async def health() -> dict[str, Any]:
        """Report whether requests are answered: 503 while no node is up, and while the distributor shuts down."""
        if state.gate.is_draining:
            raise shutting_down()
        num_up = sum(node.is_up for node in state.nodes)
        if not num_up:
            raise ApiError(503, "no node is up", kind="server_error", code="no_node", retry_after_s=5)
        return {"status": "ok", "nodes_up": num_up}

    @app.post("/terminate")
    async def terminate(http: Request) -> dict[str, str]:
        """Shut the distributor down: it ends the answers that it has begun."""
        require_admin(http)
        os.kill(os.getpid(), signal.SIGTERM)
        return {"status": "ok"}

    @app.get("/live")
    @app.get("/ping")
    async def ping() -> Response:
        """Answer with nothing while the process lives."""
        return Response(status_code=200)

    @app.get("/v1/models")
    async def models(http: Request) -> Response:
        """List the models of all nodes."""
        return merge_models(await state.answering.ask_all(http.scope))

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the distributor's metrics in Prometheus' text format; those of `--dp` with the replicas'."""
        others = await gather_figures() if gather_figures else ()
        registry = CollectorRegistry()
        registry.register(Figures(add_up([read_families(state.metrics.registry), *others])))
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE})


def merge_models(answers: Sequence[tuple[int, bytes]]) -> Response:
    """Return the pages of models of several nodes as one."""
    pages = [json.loads(body) for status, body in answers if status == 200]
    if not pages:
        status, body = min(answers, default=(503, b'{"error": {"message": "no node is there"}}'))
        return Response(body, status, media_type="application/json")
    merged = {model["id"]: model for page in pages for model in page["data"]}
    page = {**pages[0], "data": list(merged.values())}
    if "last_id" in page and merged:  # Anthropic's form
        page |= {"first_id": next(iter(merged)), "last_id": list(merged)[-1]}
    return JSONResponse(page)
