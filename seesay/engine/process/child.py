"""The engine process, `python -m seesay.engine.process.child`: loads a core and computes what its parent asks for.

Its first message is what to load. It makes no text, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from seesay.engine.process import kinds
from seesay.engine.process.link import Link, LinkClosedError, receive_next
from seesay.engine.process.log_sender import send_logs
from seesay.engine.process.parent import Parent, exit_at_once

if TYPE_CHECKING:
    from seesay.engine.core.loop import EngineLoop
    from seesay.engine.process.ranks.followers import Followers

ToFrontend = Link[kinds.ToFrontend, kinds.ToCore]

_LAST_WORDS_S = 2.0
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
    start = receive_next(link)
    parent.confirm()
    if not isinstance(start, kinds.Start):
        raise TypeError(f"the first message must be Start, got {type(start).__name__}")
    send_logs(link, start.log_level)
    failure = _Failure(link)
    followers: Followers | None = None
    try:
        if (size := start.engine.get("tp", 1) * start.engine.get("pp", 1)) > 1:
            from seesay.engine.process.ranks.leading import start_followers

            followers = start_followers(start, size, lose=failure.tell)
        from seesay.engine.process.service import Service

        core = _load(start, followers)
    except BaseException as error:
        failure.tell(error)
    listeners = [socket.socket(fileno=number) for number in parent.descriptors]
    is_told = Service(link, core, listeners[0] if listeners else None, beat_s=start.beat_s).run()
    if followers is not None:
        followers.close()
    return 0 if is_told else 1


class _Failure:
    """Ends this process for a reason that its parent learns: the first one, from whichever thread it comes."""

    def __init__(self, link: ToFrontend) -> None:
        self._link = link
        self._lock = threading.Lock()

    def tell(self, error: BaseException) -> NoReturn:
        """End the process. Does not close the link, which another thread may be using."""
        from seesay.engine.process.failures import describe_failure

        self._lock.acquire()  # for ever
        with contextlib.suppress(LinkClosedError):
            self._link.send(describe_failure(error))
            self._link.flush(_LAST_WORDS_S)
        exit_at_once(1)


def _load(start: kinds.Start, followers: Followers | None = None) -> EngineLoop:
    from seesay.config import EngineConfig, VisionConfig
    from seesay.engine.process.precompile import Precompile

    config, vision_config = EngineConfig(**start.engine), VisionConfig(**start.vision)
    precompile = Precompile(Path(start.folder), config)  # it imports while we do
    try:
        from seesay.engine.core.loading.loading import load_core
        from seesay.engine.opened_model import open_model
        from seesay.engine.process.ranks.leading import Joining, watch
        from seesay.engine.process.tower.remote_encoder import open_remote_encoder

        gc.freeze()  # the collection below would take 0.15 s to visit what was imported, and free nothing of it
        core = load_core(
            open_model(Path(start.folder), config),
            config,
            vision_config,
            is_watched=True,
            wait_for_kernels=precompile.wait,
            join_ranks=None if followers is None else Joining(followers, config),
            open_remote=open_remote_encoder if vision_config.own_process else None,
        )
        precompile.finish()
    finally:
        precompile.close()
    if start.status.folders and core.control is not None:
        core.control.replay(start.status)
        core.adapters.replay(start.status.adapters)
    if followers is not None:
        watch(followers, config, core.facts.device, start.beat_s)
    gc.collect()
    gc.freeze()  # a collection that visits all modules and the model's objects would stop steps for 0.1 s and longer
    gc.enable()
    return core


def run() -> NoReturn:
    """End the process with the status of `main`."""
    exit_at_once(main())


if __name__ == "__main__":
    run()
