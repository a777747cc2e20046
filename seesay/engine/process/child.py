"""The engine process, `python -m seesay.engine.process.child`: loads a core and computes what its parent asks for.

Its first message is what to load. It makes no text, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.engine.process import kinds
from seesay.engine.process.link import Link, LinkClosedError
from seesay.engine.process.parent import Parent

if TYPE_CHECKING:
    from seesay.engine.loop import EngineLoop
    from seesay.engine.messages import TokenOutput

ToFront = Link[kinds.ToFront, kinds.ToCore]

STATS_S = 0.1
"""The counts are sent with outputs no more often than this, and whenever a request ends."""


def main() -> int:
    """Compute until told to stop. Returns the exit status."""
    parent = Parent(receives=kinds.ToCore)
    link: ToFront = parent.link
    link.send(kinds.Hello())
    while not link.wait(None):
        pass
    start = link.receive()
    parent.confirm()
    if not isinstance(start, kinds.Start):
        raise TypeError(f"the first message must be Start, got {type(start).__name__}")
    _send_logs(link, start.log_level)
    try:
        core = _load(start)
    except BaseException as error:
        from seesay.engine.process.failures import describe_failure

        link.send(describe_failure(error))
        link.close(delivers=True)
        return 1
    Service(link, core, beat_s=start.beat_s).run()
    link.close(delivers=True)
    return 0


def _load(start: kinds.Start) -> EngineLoop:
    from seesay.config import EngineConfig, VisionConfig
    from seesay.engine.loading import load_core
    from seesay.engine.opened_model import open_model

    config = EngineConfig(**start.engine)
    return load_core(open_model(Path(start.folder), config), config, VisionConfig(**start.vision), is_watched=True)


class Service:
    """Asks `core` for what the front asks for, and tells the front what the core says: a `CoreListener`."""

    def __init__(self, link: ToFront, core: EngineLoop, *, beat_s: float) -> None:
        self._link = link
        self._core = core
        self._beat_s = beat_s
        self._changed: deque[bytes] = deque()  # hashes whose embedding has come or gone since the last news
        self._told: set[bytes] = set()  # hashes of which the front knows that their embedding is there
        self._lock = threading.Lock()  # news are sent in the order in which they are made
        self._stats_at_s = 0.0

    def run(self) -> None:
        """Serve until told to stop."""
        self._core.embeddings.store.watch(self._note)
        self._core.start(self)
        self._link.send(kinds.Started(self._core.facts))
        next_beat_s = 0.0
        while True:
            if time.monotonic() >= next_beat_s:
                next_beat_s = time.monotonic() + self._beat_s
                self._tell(partial(kinds.Beat, self._core.busy_s()), with_stats=True)
            if self._link.wait(max(0.0, next_beat_s - time.monotonic())):
                message = self._link.receive()
                if isinstance(message, kinds.Stop):
                    break
                self._take(message)
                del message  # the pixels in it are the core's to keep
        self._core.close()

    def _take(self, message: kinds.ToCore) -> None:
        core = self._core
        match message:
            case kinds.Submit(requests):
                for request in requests:
                    self._submit(request)
            case kinds.Finish(request_id, reason):
                core.finish(request_id, reason)
            case kinds.Abort(request_ids):
                core.abort(request_ids)
            case kinds.ExpectMedia(request_ids):
                core.expect_media(request_ids)
            case kinds.ForgetMedia(request_ids):
                core.forget_media(request_ids)
            case kinds.GiveFeatures(request_id, item_index, features, error):
                given = kinds.restore_features(features) if error is None else error.restore()
                core.give_features(request_id, item_index, given)
            case kinds.ResetCaches(number):
                threading.Thread(target=self._reset_caches, args=(number,), name="seesay-reset", daemon=True).start()
            case _:
                raise TypeError(f"{type(message).__name__} is not expected now")

    def _submit(self, request: kinds.Request) -> None:
        try:
            restored = request.restore()
        except Exception as error:
            from seesay.engine.failures import explain

            failure = kinds.Failure.of(explain(error))
            output = kinds.Output(request.request_id, (), None, "error", None, failure, None)
            self._tell(partial(kinds.Outputs, (output,)), with_stats=False)
        else:
            self._core.submit([restored])

    def _reset_caches(self, number: int) -> None:
        self._core.reset_caches()
        self._tell(partial(kinds.CachesReset, number), with_stats=True)

    # --- called by the core -------------------------------------------------------------------------------------------

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        """Send all outputs of a step in one message."""
        is_due = time.monotonic() - self._stats_at_s >= STATS_S
        ends_some = any(output.finish_reason is not None for output in outputs)
        sent = tuple(map(kinds.Output.of, outputs))
        self._tell(partial(kinds.Outputs, sent), with_stats=is_due or ends_some)

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        """Ask the front for them."""
        with contextlib.suppress(LinkClosedError):
            self._link.send(kinds.FeaturesWanted(request_id, item_index))

    def _note(self, item_hash: bytes) -> None:
        """An embedding has come or gone. Called by the store, under its lock."""
        self._changed.append(item_hash)

    def _tell(self, make: Callable[[kinds.News], kinds.ToFront], *, with_stats: bool) -> None:
        """Send a message that carries the news."""
        with self._lock, contextlib.suppress(LinkClosedError):  # there is no front any more, and soon no process
            self._link.send(make(self._make_news(with_stats=with_stats)))

    def _make_news(self, *, with_stats: bool) -> kinds.News:
        changed = {self._changed.popleft() for _ in range(len(self._changed))}
        there = {item_hash for item_hash in changed if self._core.is_encoded(item_hash)}
        encoded, dropped = there - self._told, (changed - there) & self._told
        self._told = (self._told | encoded) - dropped
        if not with_stats:
            return kinds.News(tuple(encoded), tuple(dropped), None)
        self._stats_at_s = time.monotonic()
        return kinds.News(tuple(encoded), tuple(dropped), self._core.stats())


class _LogSender(logging.Handler):
    """Sends log records to the parent, whose loggers decide what becomes of them."""

    def __init__(self, link: ToFront) -> None:
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


def _send_logs(link: ToFront, level: int) -> None:
    logger = logging.getLogger("seesay")
    logger.addHandler(_LogSender(link))
    logger.setLevel(level)
    logger.propagate = False


if __name__ == "__main__":
    sys.exit(main())
