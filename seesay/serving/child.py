"""The server process that `serve()` starts: `python -m seesay.serving.child FD`.

The parent writes the configuration as one line of JSON to standard input, and keeps that pipe open as long as it lives.
The child writes one report to the file descriptor FD: that it listens, or why it could not start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from typing import Any


def main(report: int) -> int:
    """Run the server that standard input describes. Returns the exit status."""
    orders = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, name="seesay-parent-watch", daemon=True).start()
    try:
        _run(orders, report)
    except Exception as error:
        from seesay.errors import SeesayError

        text = str(error) if isinstance(error, SeesayError) else f"{type(error).__name__}: {error}"
        _send(report, type(error).__name__, text)
        return 1
    return 0


def _send(report: int, kind: str, text: str = "") -> None:
    with contextlib.suppress(OSError):  # the parent closes the pipe after the first report
        os.write(report, json.dumps([kind, text[:4096]]).encode())


def _run(orders: dict[str, Any], report: int) -> None:
    from seesay.config import ChatTemplateConfig, EngineConfig, MediaLimits, VisionConfig
    from seesay.serving import ServerSettings
    from seesay.serving.child_process import READY
    from seesay.serving.serve_model import serve_model
    from seesay.system.log import set_up_logging

    settings = ServerSettings(**{**orders["settings"], "media": MediaLimits(**orders["settings"]["media"])})
    set_up_logging(settings.log_level, settings.max_log_len)
    template = orders["chat_template_config"]
    serve_model(
        orders["model_path"],
        settings,
        sockets=[socket.socket(fileno=number) for number in orders["sockets"]],
        on_ready=lambda device: _send(report, READY),  # noqa: ARG005
        backend_config=EngineConfig(**orders["backend_config"]),
        vision_config=VisionConfig(**orders["vision_config"]),
        chat_template_config=ChatTemplateConfig(**template) if isinstance(template, dict) else template,
    )


def _end_with_parent() -> None:
    """Send SIGTERM to this process once the parent has closed, by its end at the latest, its end of standard input."""
    while os.read(sys.stdin.fileno(), 1 << 10):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
