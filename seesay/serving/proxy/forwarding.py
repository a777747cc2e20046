"""Passes requests on to nodes, and their answers back as they come."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import AbstractContextManager, nullcontext

from starlette.types import Receive, Scope, Send

from seesay.serving.errors import ApiError, Envelopes
from seesay.serving.http.context import request_id_of
from seesay.serving.http.streaming import encode_json, make_event
from seesay.serving.proxy.affinity import Wish, read_wish
from seesay.serving.proxy.metrics import ProxyMetrics
from seesay.serving.proxy.node import Node
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.proxy.upstream import Exchange, Headers, NodeLostError
from seesay.serving.requests.submission import ClientGoneError, unless_gone
from seesay.serving.tracing import Sent

logger = logging.getLogger("seesay")

MAX_LOST = 2
"""A request during whose computation so many nodes have ended is not given to another one: it may be the cause."""
_MAX_PLAIN_BODY_BYTES = 1 << 20  # of methods other than POST, which admission limits
_LARGE_BYTES = 256 << 10  # such a body is read in a thread
_OF_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
_NOT_SENT = _OF_CONNECTION | {b"host", b"content-length", b"expect", b"x-request-id", b"x-forwarded-for"}
_NOT_RETURNED = _OF_CONNECTION | {b"date", b"server", b"x-request-id", b"request-id"}
_STORING = ("/v1/responses", "/v1/conversations", "/v1/files", "/v1/batches")
_STORED_ID = re.compile(rb'"(?:id|output_file_id|error_file_id)": ?"((?:resp_|conv_|file-|batch_)[\w-]{1,80})"')
_NAMED_EVENTS = ("/v1/messages", "/v1/responses")


class Forwarder:
    """The ASGI application that forwards."""

    def __init__(self, nodes: Nodes, envelopes: Envelopes, metrics: ProxyMetrics) -> None:
        self._nodes, self._envelopes, self._metrics = nodes, envelopes, metrics

    @property
    def num_running(self) -> int:
        """Requests that nodes answer now."""
        return sum(node.num_running for node in self._nodes)

    def end_all(self, error: ApiError) -> None:
        """End every request that is being answered with `error`."""
        for node in self._nodes:
            node.connections.end(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive, _MAX_PLAIN_BODY_BYTES if scope["method"] != "POST" else None)
        arrived_s = time.perf_counter()
        wish = await _read_wish(scope, body)
        await unless_gone(receive, self._forward(scope, bytes(body), send, wish, arrived_s))

    async def ask_all(self, scope: Scope, body: bytes = b"") -> list[tuple[int, bytes]]:
        """Send a request to all nodes that are up. Returns the statuses and bodies of their answers."""
        return await asyncio.gather(*(self._ask(scope, body, node) for node in self._nodes if node.is_up))

    async def _ask(self, scope: Scope, body: bytes, node: Node) -> tuple[int, bytes]:
        try:
            return await node.connections.fetch(_target_of(scope), _headers_of(scope), scope["method"], body)
        except NodeLostError as error:
            return 502, encode_json({"error": {"message": f"{node.name}: {error}"}}).encode()

    async def _forward(self, scope: Scope, body: bytes, send: Send, wish: Wish, arrived_s: float) -> None:
        tried: list[Node] = []
        num_lost = 0
        while num_lost < MAX_LOST and (node := self._nodes.choose(wish, tried)) is not None:
            tried.append(node)
            with node.running(), _sending(scope, node) as sent:
                try:
                    exchange = await node.connections.send(scope["method"], _target_of(scope), sent.headers, body)
                except NodeLostError as error:
                    num_lost += error.was_sent
                    self._note_failure(node, str(error), is_down=error.is_gone)
                    continue
                sent.status = exchange.answer.status
                try:
                    if exchange.answer.status == 503 and self._nodes.choose(wish, tried) is not None:
                        self._note_failure(node, "status 503", is_down=False)
                        continue
                    self._metrics.observe_sent(node.name, exchange.answer.status, exchange.sent_s - arrived_s)
                    await self._pass_on(scope, exchange, send, node)
                    if scope["method"] == "POST" and exchange.answer.status < 500:
                        node.latencies_s.append(time.perf_counter() - arrived_s)
                    return
                finally:
                    node.connections.free(exchange)
        raise _make_error(num_lost)

    def _note_failure(self, node: Node, reason: str, *, is_down: bool) -> None:
        node.doubt(is_down=is_down)
        self._metrics.observe_retry(reason)
        logger.warning("%s did not answer a request: %s", node.name, reason)

    async def _pass_on(self, scope: Scope, exchange: Exchange, send: Send, node: Node) -> None:
        answer = exchange.answer
        headers = [pair for pair in answer.headers if pair[0] not in _NOT_RETURNED]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        tail = b""
        try:
            while piece := await exchange.read():
                if not tail and scope["path"].startswith(_STORING):
                    self._note_stored(piece, node)
                tail = (tail + piece[-2:])[-2:]
                await send({"type": "http.response.body", "body": piece, "more_body": not answer.is_complete})
                if answer.is_complete:
                    return
        except (NodeLostError, ApiError) as error:
            logger.warning("%s ended within an answer: %s", node.name, error)
            node.doubt(is_down=False)
            event = self._render_error(scope, dict(headers).get(b"content-type", b""), tail, error)
            if event is None:
                return  # uvicorn closes the connection, which tells the client
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body"})

    def _note_stored(self, beginning: bytes, node: Node) -> None:
        for found in _STORED_ID.findall(beginning):
            self._nodes.note_stored(found.decode(), node)

    def _render_error(self, scope: Scope, kind: bytes, tail: bytes, error: Exception) -> bytes | None:
        """Return the error as the last event of a stream; None where it cannot stand there."""
        if not isinstance(error, ApiError):
            message = "the server that computed this answer has ended; send the request again"
            error = ApiError(502, message, kind="server_error", code="node_lost")
        body = self._envelopes.wrap(scope["path"], scope["headers"], error)
        if kind.startswith(b"text/event-stream") and tail in (b"", b"\n\n"):
            return make_event(body, name="error" if scope["path"].startswith(_NAMED_EVENTS) else None)
        if kind.startswith(b"application/x-ndjson") and tail[-1:] in (b"", b"\n"):
            return encode_json(body).encode() + b"\n"
        return None


async def _read_body(receive: Receive, max_bytes: int | None) -> bytearray:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if max_bytes is not None and len(body) > max_bytes:
            raise ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
        if not message.get("more_body", False):
            return body


async def _read_wish(scope: Scope, body: bytearray) -> Wish:
    if scope["path"].startswith(tuple(f"{path}/" for path in _STORING)):
        return Wish(stored_id=scope["path"].split("/")[3])
    if not body:
        return Wish()
    return read_wish(body) if len(body) < _LARGE_BYTES else await asyncio.to_thread(read_wish, body)


def _target_of(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


def _headers_of(scope: Scope) -> Headers:
    headers = [pair for pair in scope["headers"] if pair[0] not in _NOT_SENT]
    client = (scope.get("client") or ("",))[0].encode()  # whose turn it is, where the node has no keys
    return [*headers, (b"x-request-id", request_id_of(scope).encode()), (b"x-forwarded-for", client)]


def _sending(scope: Scope, node: Node) -> AbstractContextManager[Sent]:
    """Return the context in which a request is sent to a node: a span, where requests are traced."""
    headers, trace = _headers_of(scope), scope["state"].get("trace")
    return nullcontext(Sent(headers)) if trace is None else trace.sending(node.name, headers)


def _make_error(num_lost: int) -> ApiError:
    if num_lost < MAX_LOST:
        message = "no server is there to answer; try again later"
        return ApiError(503, message, kind="server_error", code="no_node", retry_after_s=5)
    message = "the servers that computed this answer have ended"
    return ApiError(502, message, kind="server_error", code="node_lost")
