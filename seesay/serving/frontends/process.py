"""A frontend process, `python -m seesay.serving.frontends.process`: the whole HTTP app, over a shared engine process.

Its first message is what to serve. It listens on the sockets that it was handed, and ends with its parent.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from seesay.engine.process.failures import describe_failure
from seesay.engine.process.kinds import Hello
from seesay.engine.process.link import receive_next
from seesay.engine.process.parent import Parent, exit_at_once
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.pulse import start_beating
from seesay.serving.frontends.questions import FrontLink
from seesay.serving.frontends.state_client import StateClient
from seesay.serving.requests.submission import Answering
from seesay.serving.traffic.metrics import ServerMetrics

if TYPE_CHECKING:
    from seesay.engine.commands import ModelStatus
    from seesay.serving.server import ServedApp

STATUS_S = 10.0
"""A supervisor that does not answer for so long is not waited for."""
_SLOW_IMPORTS = ("seesay.engine.front.engine", "seesay.serving.app", "seesay.serving.server")


def main() -> int:
    """Serve until told to stop. Returns the exit status."""
    parent = Parent(receives=messages.ToFrontend)
    link: FrontLink = parent.link
    link.send(Hello())
    for name in _SLOW_IMPORTS:  # while the engine process loads the model
        importlib.import_module(name)
    start = receive_next(link)
    parent.confirm()
    if not isinstance(start, messages.Start):
        raise TypeError(f"the first message must be Start, got {type(start).__name__}")
    status = 0
    try:
        _serve(parent, start)
    except Exception as error:
        status = 1
        link.send(describe_failure(error))
    link.close(delivers=True)
    return status


def _serve(parent: Parent, start: messages.Start) -> None:
    from seesay.config import ChatTemplateConfig, EngineConfig, MediaLimits, VisionConfig
    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.frontends.accepting import SharingServer
    from seesay.serving.frontends.connection_counts import ConnectionCounts
    from seesay.serving.server import run_server
    from seesay.serving.settings import ServerSettings
    from seesay.system.log import set_up_logging

    settings = ServerSettings(**{**start.settings, "media": MediaLimits(**start.settings["media"])})
    set_up_logging(settings.log_level, settings.max_log_len)
    template = start.chat_template_config
    clients = list[StateClient]()

    def make_shared_state(metrics: ServerMetrics, answering: Answering) -> StateClient:
        clients.append(StateClient(parent.link, engine, metrics, answering, created=start.created))
        return clients[0]

    def say_ready() -> None:
        parent.link.send(messages.Listening())
        start_beating(parent.link.send, settings.frontend_timeout_s)

    def read_status() -> ModelStatus | None:
        """Return the status of the engine, from a thread that may wait. None when no answer comes."""
        answer = clients[0].questions.wait(messages.ReadStatus, STATUS_S) if clients else None
        return None if answer is None else answer.status

    *listening, memory = parent.descriptors

    def make_server(app: ServedApp, settings: ServerSettings, *, on_ready: Callable[[], None] | None) -> SharingServer:
        server = SharingServer.make(app, settings, on_ready=on_ready)
        server.counts, server.index = ConnectionCounts(memory, start.num_frontends), start.index
        return server

    try:
        with AsyncEngine(
            start.model_path,
            backend_config=EngineConfig(**start.backend_config),
            vision_config=VisionConfig(**start.vision_config),
            chat_template_config=ChatTemplateConfig(**template) if isinstance(template, dict) else template,
            media_limits=settings.media,
            tool_call_parser=settings.tool_call_parser,
            reasoning_parser=settings.reasoning_parser,
            engine_address=start.engine_address,
            read_status=read_status,
        ) as engine:
            run_server(
                engine,
                settings,
                sockets=[socket.socket(fileno=number) for number in listening],
                on_ready=say_ready,
                make_shared_state=make_shared_state,
                make_server=make_server,
            )
    finally:
        for client in clients:
            client.close()


if __name__ == "__main__":
    exit_at_once(main())
