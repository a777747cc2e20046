"""The engine process, `python -m seesay.engine.process.child`: loads a core and computes what its parent asks for.

Its first message is what to load. It makes no text, and ends with its parent.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from seesay.engine.process import kinds
from seesay.engine.process.link import Link, LinkClosedError
from seesay.engine.process.parent import Parent, exit_at_once

if TYPE_CHECKING:
    from seesay.engine.core.loop import EngineLoop

ToFrontend = Link[kinds.ToFrontend, kinds.ToCore]

_SWITCH_INTERVAL_S = 1e-4
"""A step is launched in hundreds of calls that release the GIL: it must not wait 5 ms to get it back from the tower's
thread, or from the one that reads the frontend's messages."""


def main() -> int:
    """Compute until told to stop. Returns the exit status."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.disable()  # until the model is loaded: a sixth of torch's import was collections that found no garbage
    parent = Parent(receives=kinds.ToCore)
    link: ToFrontend = parent.link
    link.send(kinds.Hello())
    while not link.wait(None):
        pass
    start = link.receive()
    parent.confirm()
    if not isinstance(start, kinds.Start):
        raise TypeError(f"the first message must be Start, got {type(start).__name__}")
    _send_logs(link, start.log_level)
    try:
        from seesay.engine.process.service import Service

        core = _load(start)
    except BaseException as error:
        from seesay.engine.process.failures import describe_failure

        link.send(describe_failure(error))
        link.close(delivers=True)
        return 1
    listeners = [socket.socket(fileno=number) for number in parent.descriptors]
    return 0 if Service(link, core, listeners[0] if listeners else None, beat_s=start.beat_s).run() else 1


def _load(start: kinds.Start) -> EngineLoop:
    from seesay.config import EngineConfig, VisionConfig
    from seesay.engine.process.precompile import Precompile

    config = EngineConfig(**start.engine)
    precompile = Precompile(Path(start.folder), config)  # it imports while we do
    try:
        from seesay.engine.core.loading import load_core
        from seesay.engine.opened_model import open_model

        gc.freeze()  # the collection below would take 0.15 s to visit what was imported, and free nothing of it
        core = load_core(
            open_model(Path(start.folder), config),
            config,
            VisionConfig(**start.vision),
            is_watched=True,
            wait_for_kernels=precompile.wait,
        )
        precompile.finish()
    finally:
        precompile.close()
    if start.status.folders and core.control is not None:
        core.control.replay(start.status)
    gc.collect()
    gc.freeze()  # a collection that visits all modules and the model's objects would stop steps for 0.1 s and longer
    gc.enable()
    return core


class _LogSender(logging.Handler):
    """Sends log records to the parent, whose loggers decide what becomes of them."""

    def __init__(self, link: ToFrontend) -> None:
        super().__init__()
        self._link = link
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._link.send(kinds.LogRecord(record.name, record.levelno, self.format(record)))
        except LinkClosedError:
            pass
        except Exception:
            self.handleError(record)


def _send_logs(link: ToFrontend, level: int) -> None:
    logger = logging.getLogger("seesay")
    logger.addHandler(_LogSender(link))
    logger.setLevel(level)
    logger.propagate = False


def run() -> NoReturn:
    """End the process with the status of `main`."""
    exit_at_once(main())


if __name__ == "__main__":
    run()
