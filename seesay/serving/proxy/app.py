"""The distributor's app: routes about its nodes, and everything else, which it forwards."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from seesay.serving.app import add_error_handlers, close_tracing, make_layers
from seesay.serving.docs_page import DOCS_PATHS, SIMPLE_DOCUMENT, add_docs_page
from seesay.serving.errors import ApiError
from seesay.serving.http.client import fetch
from seesay.serving.http.context import make_error_response
from seesay.serving.http.listener import read_url
from seesay.serving.operating.models import merge_pages
from seesay.serving.operating.probes import make_ping_router
from seesay.serving.proxy.forwarding import Distributor
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.routing.node import Node
from seesay.serving.server import DrainingServer, quick_turns
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.admission import shutting_down
from seesay.serving.traffic.auth import ADMIN_PATHS, require_admin
from seesay.serving.traffic.metric_sums import Family, Figures, add_up
from seesay.serving.traffic.metrics import CONTENT_TYPE
from seesay.version import __version__

_TO_ALL = (ADMIN_PATHS - {"/terminate"}) | {"/reset_caches", "/flush_cache"}
_READ = DOCS_PATHS | {SIMPLE_DOCUMENT, "/health", "/ready", "/live", "/ping", "/metrics", "/v1/models"}
_TOLD = {*_TO_ALL, "/terminate", "/abort_request"}
_OWN = frozenset(("GET", path) for path in _READ) | frozenset(("POST", path) for path in _TOLD)
"""The app's routes, beside those about nodes."""

GatherFigures = Callable[[], Awaitable[Sequence[Sequence[Family]]]]
"""Reads the nodes' metrics, for the one page of `--dp`."""


_Named = Annotated[str, Query(description="the node's URL; or send it as `url` in the body")]


class Capability(BaseModel):
    """What a node says of itself: its models, and how many requests a second it answers."""

    models: Annotated[list[str], Field(max_length=256)] = []
    speed: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None


class NodeBody(BaseModel):
    """A node: http://HOST:PORT or https://HOST:PORT."""

    url: str = ""
    status: Capability = Capability()
    is_repeated: bool = False  # a server says again from time to time that it is there


_NO_BODY = NodeBody()


async def serve_nodes(
    settings: ServerSettings,
    nodes: Nodes,
    *,
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
    gather_figures: GatherFigures | None = None,
) -> None:
    """Distribute requests among `nodes`, and those that are added later, until SIGTERM or SIGINT; then drain and
    return. `sockets`: those of `open_sockets`."""
    app = create_proxy_app(settings, nodes, gather_figures=gather_figures)
    try:
        with quick_turns():
            await DrainingServer.make(app, settings, on_ready=on_ready).serve(sockets)
    finally:
        await close_tracing(app.state.server)
        await nodes.close()


def create_proxy_app(
    settings: ServerSettings, nodes: Nodes, *, gather_figures: GatherFigures | None = None
) -> ProxyApp:
    """Return the app that distributes requests among `nodes`. Of the settings, those on addresses, keys, bodies, the
    number of requests and the drain count."""
    distributor = Distributor(settings, nodes)
    app = FastAPI(
        title="seesay proxy",
        description="Distributes requests among servers. All routes that are not listed here are the servers'.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
    )
    app.state.server = distributor
    add_docs_page(app)
    add_error_handlers(app, distributor.envelopes)
    app.include_router(make_ping_router())
    _add_node_routes(app, nodes)
    _add_operating_routes(app, distributor, gather_figures)
    _add_routes_of_all(app, distributor)
    return ProxyApp(app, distributor)


class ProxyApp:
    """The layers of a server around the app of the distributor's own routes and the distributor, which gets all other
    requests: FastAPI's routing, and what it wraps around that, took a sixth of their time."""

    def __init__(self, app: FastAPI, distributor: Distributor) -> None:
        self.state = app.state
        self._app, self._distributor = app, distributor
        self._layered: ASGIApp = self._dispatch
        for layer in reversed(make_layers(distributor)):
            self._layered = layer.cls(self._layered, *layer.args, **layer.kwargs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._layered(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or (scope["method"], path) in _OWN or path.startswith("/nodes/"):
            await self._app(scope, receive, send)
            return
        try:
            await self._distributor(scope, receive, send)
        except HTTPException as error:
            await make_error_response(scope, error, self._distributor.envelopes)(scope, receive, send)


def _add_node_routes(app: FastAPI, nodes: Nodes) -> None:
    @app.get("/nodes/status")
    async def status() -> dict[str, Any]:
        """Return the status of each node."""
        return {node.name: node.describe() for node in nodes}

    @app.post("/nodes/add")
    async def add(body: NodeBody) -> dict[str, str]:
        """Add a node. One that is known is asked for its health at once."""
        node = Node(read_url(body.url), models=frozenset(body.status.models), speed=body.status.speed)
        nodes.add(node, is_repeated=body.is_repeated)
        return {"status": "ok"}

    @app.post("/nodes/remove")
    async def remove(node_url: _Named = "", body: NodeBody = _NO_BODY) -> dict[str, str]:
        """Remove a node. It ends the answers that it has begun, and gets no others."""
        nodes.remove(node_url or body.url)
        return {"status": "ok"}

    @app.post("/nodes/terminate")
    async def terminate(http: Request, node_url: _Named = "", body: NodeBody = _NO_BODY) -> dict[str, str]:
        """Remove a node, and have it shut down: it ends the answers that it has begun."""
        node = nodes.get(node_url or body.url)
        headers = [pair for pair in http.headers.raw if pair[0] in (b"authorization", b"x-api-key")]
        code, answer = await fetch(nodes.client, f"{node.url}/terminate", headers, method="POST")
        if code != 200:
            said = answer[:500].decode(errors="replace") or "nothing"
            message = f"the node did not shut down, and is still one; it said (status {code}): {said}"
            raise ApiError(502, message, kind="server_error", code="node_refuses")
        nodes.remove(node.name)
        return {"status": "ok"}


def _add_operating_routes(app: FastAPI, distributor: Distributor, gather_figures: GatherFigures | None) -> None:
    @app.get("/health")
    @app.get("/ready")
    async def health() -> dict[str, Any]:
        """Report whether requests are answered: 503 while no node is up, and while the distributor shuts down."""
        if distributor.gate.is_draining:
            raise shutting_down()
        num_up = sum(node.is_up for node in distributor.answering)
        if not num_up:
            raise ApiError(503, "no node is up", kind="server_error", code="no_node", retry_after_s=5)
        return {"status": "ok", "nodes_up": num_up}

    @app.post("/terminate")
    async def terminate(http: Request) -> dict[str, str]:
        """Shut the distributor down: it ends the answers that it has begun."""
        require_admin(http)
        os.kill(os.getpid(), signal.SIGTERM)
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the distributor's metrics in Prometheus' text format; those of `--dp` with the replicas'."""
        others = await gather_figures() if gather_figures else ()
        registry = CollectorRegistry()
        registry.register(Figures(add_up([distributor.metrics.read(distributor.answering), *others])))
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE})


def _add_routes_of_all(app: FastAPI, distributor: Distributor) -> None:
    @app.get("/v1/models")
    async def models(http: Request) -> Response:
        """List the models of all nodes."""
        answers = await distributor.ask_all(http.scope)
        if pages := [json.loads(body) for status, body in answers if status == 200]:
            return JSONResponse(merge_pages(pages))
        status, body = min(answers)
        return Response(body, status, media_type="application/json")

    @app.post("/abort_request")
    async def abort(http: Request) -> Response:
        """End requests of the caller at all nodes, and return how many."""
        answers = await distributor.ask_all(http.scope, await http.body())
        if counted := [json.loads(body)["num_aborted"] for status, body in answers if status == 200]:
            return JSONResponse({"num_aborted": sum(counted)})
        status, body = min(answers)
        return Response(body, status, media_type="application/json")

    async def command(http: Request) -> Response:
        """Tell all nodes what an operator wants of them."""
        answers = await distributor.ask_all(http.scope, await http.body())
        status, body = max(answers, key=lambda answer: answer[0])
        return Response(body, status, media_type="application/json")

    for path in sorted(_TO_ALL):
        app.add_api_route(path, command, methods=["POST"])
