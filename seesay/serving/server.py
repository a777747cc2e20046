"""Run the app under uvicorn and shut it down gracefully: running answers are finished, new requests are refused."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Protocol, Self

import uvicorn

from seesay.errors import ConfigError
from seesay.serving.app import create_app
from seesay.serving.errors import ApiError
from seesay.serving.http.connections import AcceptingServer
from seesay.serving.http.http_protocol import BoundedHttpProtocol
from seesay.serving.http.listener import cannot_listen, open_sockets, port_of
from seesay.serving.http.socket_protocol import MAX_MESSAGE_BYTES, BoundedSocketProtocol
from seesay.serving.settings import ServerSettings
from seesay.serving.traffic.admission import Gate, shutting_down
from seesay.serving.traffic.draining import log_first_signal
from seesay.system.log import set_up_logging

if TYPE_CHECKING:
    from starlette.datastructures import State
    from starlette.types import Receive, Scope, Send

    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.requests.submission import Answering
    from seesay.serving.stored.shared_state import SharedState
    from seesay.serving.traffic.metrics import ServerMetrics

logger = logging.getLogger("seesay")

_SWITCH_INTERVAL_S = 1e-3
"""The event loop waits no longer for the GIL while another thread runs Python. Python's default is 5 ms."""
_COLLECTION_THRESHOLDS = 10_000, 20, 20
"""A request makes a few hundred objects that the garbage collector counts, and nearly all of them end without it. With
Python's thresholds (700, 10, 10) it took a tenth of a frontend's time."""
_LAST_WORDS_S = 2.0  # time to send errors to the requests that were not finished when the drain ended


class Ended(Protocol):
    """What answers requests: how many, and how to end them all."""

    @property
    def num_running(self) -> int: ...

    def end_all(self, error: ApiError) -> None: ...


class DrainedState(Protocol):
    """What `DrainingServer` has to know of an app."""

    @property
    def settings(self) -> ServerSettings: ...

    @property
    def gate(self) -> Gate: ...

    @property
    def answering(self) -> Ended: ...


class ServedApp(Protocol):
    """An app: of its state, `server` is a `DrainedState`; `has_sockets`, where it is there, is whether it has routes
    for WebSockets."""

    state: State

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class MakeServer(Protocol):
    """Makes the server of an app."""

    def __call__(
        self, app: ServedApp, settings: ServerSettings, *, on_ready: Callable[[], None] | None
    ) -> DrainingServer: ...


def run_server(
    engine: AsyncEngine,
    settings: ServerSettings | None = None,
    *,
    sockets: list[socket.socket] | None = None,
    on_ready: Callable[[], None] | None = None,
    make_shared_state: Callable[[ServerMetrics, Answering], SharedState] | None = None,
    make_server: MakeServer | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return. A second SIGINT skips the drain. The engine stays open.

    sockets: those of `open_sockets`; None opens them. on_ready: called once the server listens. make_shared_state: as
    of `create_app`. make_server: as `DrainingServer.make`, which None is.

    Raises `ConfigError` for certificates that cannot be read and for an address in use.
    """
    settings = settings or ServerSettings()
    set_up_logging(settings.log_level, settings.max_log_len)
    app = create_app(engine, settings, make_shared_state=make_shared_state)
    server = (make_server or DrainingServer.make)(app, settings, on_ready=on_ready)
    opening = open_sockets(settings.host, settings.port) if sockets is None else nullcontext(sockets)
    with opening as listening, quick_turns():
        server.run(listening)


@contextmanager
def quick_turns() -> Iterator[None]:
    """For the time of the block, keep the turns of the event loop short: what exists by now is not visited by the
    garbage collector, which looks at new objects more seldom, and another thread gives the GIL back earlier."""
    gc.collect()
    gc.freeze()  # a collection that visits all modules and the engine's objects keeps the GIL for 0.1 s
    thresholds = gc.get_threshold()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(min(interval_s, _SWITCH_INTERVAL_S))
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class DrainingServer(AcceptingServer):
    """A server that drains when it receives a signal. It keeps listening and answers new requests with 503.
    Running answers get `drain_timeout_s` to finish; after that they end with an error instead of being cut off."""

    def __init__(
        self, config: uvicorn.Config, state: DrainedState, *, on_ready: Callable[[], None] | None = None
    ) -> None:
        super().__init__(config)
        self._state = state
        self._on_ready = on_ready
        self._drain_deadline = float("inf")  # of time.monotonic()

    @classmethod
    def make(cls, app: ServedApp, settings: ServerSettings, *, on_ready: Callable[[], None] | None = None) -> Self:
        """Return a server for an app of `create_app`: call `run` or await `serve`, with sockets that are bound.
        `on_ready` is called once it listens."""
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=BoundedHttpProtocol,
            loop="asyncio",  # uvloop takes one new connection in a turn: hundreds that come at once waited for seconds
            ws=BoundedSocketProtocol if getattr(app.state, "has_sockets", False) else "none",
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,  # frames are compressed already
            log_level=settings.log_level.lower() if settings.log_level.upper() != "DEBUG" else "info",
            access_log=False,  # ContextMiddleware logs requests with their ids
            server_header=False,
            timeout_graceful_shutdown=int(settings.drain_timeout_s + _LAST_WORDS_S) + 1,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
            ssl_keyfile_password=settings.ssl_keyfile_password,
        )
        if settings.ssl_certfile:
            try:
                config.load()
            except OSError as error:
                raise ConfigError(f"ssl_certfile={settings.ssl_certfile!r}: {error}") from error
        return cls(config, app.state.server, on_ready=on_ready)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen. Raises `ConfigError` when another process has taken the port meanwhile."""
        try:
            await super().startup(sockets)
        except OSError as error:
            raise cannot_listen(self.config.host, port_of(sockets or ()), error) from error
        if self.started:
            logger.info("running on %s:%d", self.config.host, port_of(sockets or ()) or self.config.port)
            if self._on_ready is not None:
                self._on_ready()

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._state.gate.is_draining

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal by draining. uvicorn's own handler would raise the signal again at the end, and the engine
        would not be closed."""
        if not self.is_draining:
            has_running = self._state.answering.num_running > 0
            log_first_signal(sig, self._state.settings.drain_timeout_s, has_running=has_running)
            self.drain()
        elif sig == signal.SIGINT:
            if num_running := self._state.answering.num_running:
                logger.warning("SIGINT again: %d requests are cut off", num_running)
            # uvicorn logs the traceback of every task that is cancelled now. The next `uvicorn.Config` sets the level.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self.force_exit = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop listening and end. uvicorn calls it ten times a second."""
        gate = self._state.gate
        if gate.is_draining and gate.num_inside == 0:
            self.should_exit = True
        elif time.monotonic() > self._drain_deadline:  # a request ignored its error: uvicorn cancels its task
            self.config.timeout_graceful_shutdown = 1
            self.should_exit = True
        return await super().on_tick(counter)

    def drain(self) -> None:
        """Refuse new requests, end running ones after `drain_timeout_s`, then end the server. Call it from the event
        loop's thread; a signal handler is allowed."""
        self._state.gate.is_draining = True
        self._drain_deadline = time.monotonic() + self._state.settings.drain_timeout_s + _LAST_WORDS_S
        answering = self._state.answering
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the event loop is not running, so no request is
        loop.call_soon_threadsafe(
            loop.call_later, self._state.settings.drain_timeout_s, answering.end_all, shutting_down()
        )
