"""The server process that `serve()` starts: `python -m seesay.serving.child FD`.

Its orders come as one line of JSON on standard input, which stays open as long as whoever gave them lives. Why it could
not start goes to the file descriptor FD.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def main(report: int) -> int:
    """Run the server that standard input asks for; returns the exit status."""
    orders = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, name="seesay-parent-watch", daemon=True).start()
    try:
        _run(orders)
    except Exception as error:
        from seesay.errors import SeesayError

        text = str(error) if isinstance(error, SeesayError) else f"{type(error).__name__}: {error}"
        os.write(report, json.dumps([type(error).__name__, text]).encode()[: 1 << 15])
        return 1
    return 0


def _run(orders: dict[str, Any]) -> None:
    from seesay.config import ChatTemplateConfig, EngineConfig, MediaLimits, VisionConfig
    from seesay.engine import AsyncEngine
    from seesay.log import set_up_logging
    from seesay.serving import ServerSettings, run_server

    given: dict[str, Any] = {name: _restore(value) for name, value in orders["settings"].items()}
    given["media"] = MediaLimits(**given["media"])
    settings = ServerSettings(**given)
    set_up_logging(settings.log_level, settings.max_log_len)
    template = orders["chat_template_config"]
    with AsyncEngine(
        orders["model_path"],
        backend_config=EngineConfig(**orders["backend_config"]),
        vision_config=VisionConfig(**orders["vision_config"]),
        chat_template_config=None if template is None else ChatTemplateConfig(**template),
        media_limits=settings.media,
    ) as engine:
        run_server(engine, settings)


def _restore(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value


def _end_with_parent() -> None:
    """Ask ourselves to end when nobody holds the other end of standard input any more."""
    while os.read(sys.stdin.fileno(), 1 << 10):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
