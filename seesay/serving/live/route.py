"""`/v1/live`: a WebSocket that takes frames and questions, and answers about what was seen when."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from fastapi import APIRouter, WebSocket
from starlette.responses import Response

from seesay.serving.errors import ApiError
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.socket_protocol import LIVE_PATH, SUBPROTOCOL
from seesay.serving.live.listener import Listener
from seesay.serving.live.live_messages import make_error
from seesay.serving.live.outbox import EndError
from seesay.serving.live.session import LiveSession
from seesay.serving.live.window import Window
from seesay.serving.live.worker import Worker
from seesay.serving.requests.caller import caller_of
from seesay.serving.traffic.origins import check_origin

if TYPE_CHECKING:
    from seesay.serving.requests.state import ServerState

_LAST_WORDS_S = 2.0  # time to send what was said before the end


def make_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = make_api_router("native")
    state.metrics.add_gauge("seesay_live_sessions", "live sessions that are open", lambda: state.gate.num_sessions)

    @router.get(LIVE_PATH)
    async def refuse_plain_request() -> Response:
        """Live video takes a WebSocket."""
        raise ApiError(
            426,
            f"{LIVE_PATH} takes a WebSocket (ws://…{LIVE_PATH}): connect to the server itself, as the distributor "
            "(`seesay serve proxy`, --dp) does not pass WebSockets on",
            code="websocket_required",
            headers={"Upgrade": "websocket"},
        )

    @router.websocket(LIVE_PATH)
    async def live(socket: WebSocket) -> None:
        """Serve one session."""
        check_origin(socket.scope, state.settings.cors_origins)
        caller = caller_of(socket.scope)
        state.gate.enter_session(caller.turn)
        try:
            await socket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
            most = min(4096, state.settings.media.max_items)
            await _serve(LiveSession(state, caller, Window(state.gate, caller.turn, most=most)), socket)
        finally:
            state.gate.leave_session(caller.turn)

    return router


async def _serve(session: LiveSession, socket: WebSocket) -> None:
    """Run a session until its client leaves or it ends, and close the WebSocket."""
    sender = asyncio.create_task(session.outbox.send_all(socket))
    worker = asyncio.create_task(Worker(session).work())
    try:
        session.outbox.say(session.make_ready())
        await Listener(session).listen(socket, worker, sender)
    except EndError as end:
        worker.cancel()
        with contextlib.suppress(EndError, TimeoutError):
            session.outbox.say(make_error(end.error))
            async with asyncio.timeout(_LAST_WORDS_S):
                await session.outbox.flush()
        with contextlib.suppress(RuntimeError):  # it was closed meanwhile
            await socket.close(end.code, end.error.message.encode()[:120].decode(errors="ignore"))
    finally:
        worker.cancel()
        sender.cancel()
        await asyncio.gather(worker, sender, return_exceptions=True)
        session.window.close()
