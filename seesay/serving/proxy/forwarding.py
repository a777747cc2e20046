"""Passes requests on to nodes, and their answers back as they come."""

from __future__ import annotations

import asyncio
import logging
import secrets
import string
import time
from contextlib import nullcontext
from urllib.parse import quote

import aiohttp
from starlette.types import Receive, Scope, Send

from seesay.serving.anthropic import messages
from seesay.serving.errors import ApiError, Envelopes, bad_request
from seesay.serving.http.client import GONE, LOST, fetch, request
from seesay.serving.http.context import request_id_of
from seesay.serving.http.streaming import encode_json, make_last_event
from seesay.serving.ollama import replies
from seesay.serving.proxy.metrics import ProxyMetrics
from seesay.serving.proxy.nodes import Nodes
from seesay.serving.requests.submission import ClientGoneError, unless_gone
from seesay.serving.routing.affinity import Wish, read_stored_ids, read_wish
from seesay.serving.routing.node import Node
from seesay.serving.settings import ServerSettings
from seesay.serving.tracing import Headers, Sent, open_tracing
from seesay.serving.traffic.admission import Gate

logger = logging.getLogger("seesay")

MAX_LOST = 2
"""A request during whose computation so many nodes have ended is not given to another one: it may be the cause."""
_LARGE_BYTES = 256 << 10  # such a body is read in a thread
_BUSY = (429, 503)
_NOT_FOUND = (400, 404)
"""What a node answers about something that it does not store."""
_LOOP = "the distributor is among its own nodes: remove it (/nodes/remove)"
_OF_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
_NOT_SENT = _OF_CONNECTION | {b"host", b"content-length", b"expect", b"x-request-id", b"x-forwarded-for"}
_NOT_RETURNED = _OF_CONNECTION | {b"date", b"server", b"x-request-id", b"request-id"}


class Distributor:
    """The ASGI application that forwards, and the state of a distributor, named as in `ServerState`."""

    def __init__(self, settings: ServerSettings, nodes: Nodes) -> None:
        self.settings, self.answering = settings, nodes
        self._via = f"1.1 seesay-{secrets.token_hex(8)}".encode()
        self.gate = Gate(settings)
        self.metrics = ProxyMetrics()
        self.tracing = open_tracing(settings.otlp_traces_endpoint, service="seesay-proxy")
        self.envelopes = Envelopes()
        self.envelopes.register("/v1/messages", messages.make_envelope)
        self.envelopes.register("/v1/models", messages.make_envelope, header="anthropic-version")
        self.envelopes.register("/api", replies.make_envelope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b"" if scope["method"] == "GET" else await _read_body(receive)
        answer = _Answer(scope, send)
        is_large = len(body) > _LARGE_BYTES
        wish = await asyncio.to_thread(read_wish, body, answer.path) if is_large else read_wish(body, answer.path)
        await unless_gone(receive, self._forward(scope, body, answer, wish))

    async def ask_all(self, scope: Scope, body: bytes = b"") -> list[tuple[int, bytes]]:
        """Send a request to all nodes. Returns the statuses and bodies of their answers, 502 for a node that is down.
        Raises `ApiError` where all are."""
        client, method, target = self.answering.client, scope["method"], _target_of(scope)
        headers, nodes = self._headers_of(scope), list(self.answering)
        if not any(node.is_up for node in nodes):
            raise _make_error(0)

        async def ask(node: Node) -> tuple[int, bytes]:
            status, answer = 0, b""
            if node.is_up:
                status, answer = await fetch(client, node.url + target, headers, method=method, body=body)
            lost = {"error": {"message": f"{node.name} does not answer"}}
            return (status, answer) if status else (502, encode_json(lost).encode())

        return await asyncio.gather(*map(ask, nodes))

    async def _forward(self, scope: Scope, body: bytes, answer: _Answer, wish: Wish) -> None:
        tried: list[Node] = []
        num_lost = 0
        while num_lost < MAX_LOST and (node := self.answering.choose(wish, tried)) is not None:
            tried.append(node)
            try:
                status = await self._try(node, scope, body, answer, wish, is_last=not self.answering.left(tried))
                if status is None:
                    return
                reason = f"status {status}"
                if status == 503:
                    node.doubt(is_down=False)
            except LOST as error:
                is_gone = isinstance(error, GONE)
                num_lost += not is_gone
                reason = "no connection" if is_gone else "lost"
                node.doubt(is_down=is_gone)
            logger.info("%s did not answer a request: %s", node.name, reason)
            if answer.has_begun or self.answering.ending:
                await answer.fail(self.answering.ending or _make_error(MAX_LOST), self.envelopes)
                return
            self.metrics.retries.labels(reason).inc()
        raise _make_error(num_lost)

    async def _try(
        self, node: Node, scope: Scope, body: bytes, answer: _Answer, wish: Wish, *, is_last: bool
    ) -> int | None:
        """Have a node answer. Returns its status instead if it has too much to do, or has not what the request
        continues, and is not the last. Raises what is `LOST`."""
        sent_s, url, router = time.perf_counter(), node.url + _target_of(scope), self.answering.router
        headers, trace = self._headers_of(scope), scope["state"].get("trace")
        sought = [] if wish.stored_id is None or router.knows(wish.stored_id) else [wish.stored_id]
        with nullcontext(Sent(headers)) if trace is None else trace.sending(node.name, headers) as sent:
            sending = request(self.answering.client, scope["method"], url, sent.headers, body)
            async with node.running(), sending as response:
                sent.status = response.status
                if not is_last and response.status in (_BUSY + _NOT_FOUND if sought else _BUSY):
                    return response.status
                router.note_stored(sought if response.status < 400 else (), node)
                self.metrics.sent.labels(node.name, str(response.status)).inc()
                self.metrics.added.observe(sent_s - answer.arrived_s)
                if response.content_length is None:  # of a stream the client gets the headers at once
                    await answer.begin(response)
                async for piece in response.content.iter_any():
                    if not answer.has_begun:
                        await answer.begin(response)
                    if not answer.tail:
                        router.note_stored(read_stored_ids(answer.path, piece), node)
                    await answer.add(piece)
                if not answer.has_begun:
                    await answer.begin(response)
                await answer.end()
        node.note_answer(response.status, None if scope["method"] != "POST" else time.perf_counter() - answer.arrived_s)
        return None

    def _headers_of(self, scope: Scope) -> Headers:
        """Return what a node gets. Raises `ApiError` for a request that has come here before."""
        headers, via = [], []
        for pair in scope["headers"]:
            if pair[0] == b"via":
                via.append(pair[1])
            elif pair[0] not in _NOT_SENT:
                headers.append(pair)
        if any(self._via in value for value in via):
            raise ApiError(508, _LOOP, code="loop_detected")
        client = (scope.get("client") or ("",))[0].encode()  # whose turn it is, where the node has no keys
        headers += [(b"x-request-id", request_id_of(scope).encode()), (b"x-forwarded-for", client)]
        return [*headers, (b"via", b", ".join([*via, self._via]))]


class _Answer:
    """The answer to a client whose request has arrived."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.path, self.arrived_s = scope["path"], time.perf_counter()
        self.has_begun, self.tail, self._content_type = False, b"", ""
        self._scope, self._send = scope, send

    async def begin(self, response: aiohttp.ClientResponse) -> None:
        self.has_begun, self._content_type = True, response.content_type
        headers = [(name.lower(), value) for name, value in response.raw_headers]
        headers = [pair for pair in headers if pair[0] not in _NOT_RETURNED]
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def add(self, piece: bytes) -> None:
        self.tail = (self.tail + piece[-2:])[-2:]
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body"})

    async def fail(self, error: ApiError, envelopes: Envelopes) -> None:
        """End the answer with the error, or where that cannot stand there, leave it to uvicorn to close the connection,
        which tells the client. Raises the error if the answer has not begun."""
        if not self.has_begun:
            raise error
        body = envelopes.wrap(self.path, self._scope["headers"], error)
        event = make_last_event(body, content_type=self._content_type, path=self.path, tail=self.tail)
        if event is not None:
            await self.add(event)
            await self.end()


async def _read_body(receive: Receive) -> bytes:
    """Return a whole body. Starlette's `Request` takes twice as long for a small one."""
    pieces, has_more = [], True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        pieces.append(message.get("body", b""))
        has_more = message.get("more_body", False)
    return b"".join(pieces)


def _target_of(scope: Scope) -> str:
    path, query = scope["raw_path"], scope["query_string"]
    if not path.startswith(b"/"):  # behind the URL of a node, it could name another host
        raise bad_request("the target of a request must be a path")
    return quote(path + b"?" + query if query else path, safe=string.punctuation)


def _make_error(num_lost: int) -> ApiError:
    if num_lost < MAX_LOST:
        message = "no server is there to answer; try again later"
        return ApiError(503, message, kind="server_error", code="no_node", retry_after_s=5)
    message = "the server that computed this answer has ended; send the request again"
    return ApiError(502, message, kind="server_error", code="node_lost")
