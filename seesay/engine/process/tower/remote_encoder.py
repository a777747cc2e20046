"""A vision encoder that computes in a process of its own, which is started again when it dies or hangs."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seesay.config.plain import as_plain
from seesay.encoders.encoder import EncoderLostError
from seesay.engine.process.failures import restore_failure
from seesay.engine.process.kinds import Hello, LogRecord, StartFailed
from seesay.engine.process.launch import ChildProcess
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.tower import tower_messages
from seesay.engine.watchdog import hang_limit_s
from seesay.errors import SeesayError
from seesay.system.liveness import STOPPED_LIMIT_S, Silence, is_stopped
from seesay.vl.plugins import make_absolute

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from seesay.config import EngineConfig
    from seesay.engine.opened_model import OpenedModel

logger = logging.getLogger("seesay")

MODULE = "seesay.engine.process.tower.child"
_START_S = 3600.0
_POLL_S = 0.5
_END_S = 5.0
_HANG_SHARE = 0.8
"""A call may take so much of the time after which the whole engine is treated as hung."""


def open_remote_encoder(
    model: OpenedModel, config: EngineConfig, *, device: torch.device, dtype: torch.dtype
) -> RemoteEncoder:
    """Return the tower of a model, loaded on `device` by a process of its own. Raises what loading raises."""
    local = replace(config, download_dir=None, revision=None, plugins=make_absolute(config.plugins))
    start = tower_messages.Start(
        str(model.checkpoint.path.absolute()),
        as_plain("backend_config", local),
        str(device),
        str(dtype).removeprefix("torch."),
        logging.getLogger("seesay").getEffectiveLevel(),
    )
    limit_s = _HANG_SHARE * hang_limit_s(config.step_timeout_s, str(device))
    return RemoteEncoder(TowerProcess(start, limit_s=limit_s))


class RemoteEncoder:
    """An `Encoder` whose embeddings arrive in host memory, in which the worker finds them as those of a tower on the
    CPU. The process lives as long as this object."""

    def __init__(self, process: TowerProcess) -> None:
        import torch

        self.device = torch.device("cpu")
        self._process = process
        # The kernel ends a process with the thread that started it: this one waits for nothing else.
        self._thread = ThreadPoolExecutor(1, "seesay-encoder-process")
        weakref.finalize(self, _end, self._thread, process)
        self._thread.submit(process.start).result()

    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """See `Encoder`. Raises `EncoderLostError` if the process ends or is stopped by a signal, `TimeoutError` if it
        hangs; the next call starts another one."""
        return self._thread.submit(self._process.encode, features).result()

    def disable_graphs(self) -> None:
        """The process has the configuration that says so."""


def _end(thread: ThreadPoolExecutor, process: TowerProcess) -> None:
    with contextlib.suppress(RuntimeError):  # Python ends, and the process with it
        thread.submit(process.end, _END_S)
    thread.shutdown()


class TowerProcess:
    """The process, and what starts it again. All methods are called in one thread."""

    def __init__(
        self, start: tower_messages.Start, *, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """limit_s: after so long, a call is treated as hung."""
        self._start, self._limit_s, self._clock = start, limit_s, clock
        self._child: ChildProcess[tower_messages.ToTower, tower_messages.FromTower] | None = None

    def start(self) -> None:
        """Start the process, and wait until the tower is loaded. Raises what it raises, and `EncoderLostError`."""
        self._child = ChildProcess(MODULE, receives=tower_messages.FromTower)
        try:
            self._receive(tower_messages.Loaded, _START_S)
        except BaseException:
            self.end()
            raise

    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Encode items, by a new process if the one before has ended."""
        if self._child is None:
            self.start()
        assert self._child is not None
        try:
            with contextlib.suppress(LinkClosedError):  # it has ended, which is found out below
                self._child.link.send(tower_messages.Encode.of(features))
            answer: tower_messages.Encoded = self._receive(tower_messages.Encoded, self._limit_s)
        except (EncoderLostError, TimeoutError) as error:
            logger.error("%s: it is started again", str(error))  # a record that is kept does not keep frames
            self.end()
            raise
        if answer.failure is not None:
            raise answer.failure.restore()
        if answer.raised is not None:
            raise restore_failure(answer.raised)
        return answer.restore()

    def end(self, timeout_s: float = 0.0) -> None:
        """Let the process end by itself for so long, then kill it."""
        if (child := self._child) is not None:
            self._child = None
            with contextlib.suppress(LinkClosedError):
                child.link.send(tower_messages.Stop())
            child.end(timeout_s)

    def _receive(self, kind: type[tower_messages.Loaded | tower_messages.Encoded], timeout_s: float) -> Any:
        """Return the next message of a kind, having dealt with those before it."""
        child = self._child
        assert child is not None
        until_s = self._clock() + timeout_s
        stopped = Silence(STOPPED_LIMIT_S, self._clock)
        stopped.hear()
        while self._clock() < until_s:
            end = child.find_end()
            while child.wait(0.0 if end else _POLL_S):
                message = child.link.receive()
                if isinstance(message, kind):
                    return message
                self._take(child, message)
            if end is not None:
                raise EncoderLostError(f"the process of the vision encoder died ({end})")
            if not is_stopped(child.pid):
                stopped.hear()
            elif stopped.find_hung():
                raise EncoderLostError("the process of the vision encoder was stopped by a signal")
        raise TimeoutError(f"the process of the vision encoder hangs: a call has taken {timeout_s:.0f} s")

    def _take(
        self, child: ChildProcess[tower_messages.ToTower, tower_messages.FromTower], message: tower_messages.FromTower
    ) -> None:
        match message:
            case Hello():
                child.link.send(self._start)
            case LogRecord(name, level, text):
                logging.getLogger(name).log(level, "vision encoder: %s", text)
            case StartFailed():
                raise _name(restore_failure(message))
            case _:
                raise TypeError(f"{type(message).__name__} is not expected now")


def _name(error: Exception) -> Exception:
    """Return the exception that loading raised; one that was not raised on purpose says whose it is."""
    if not isinstance(error, SeesayError):
        error.add_note("in the process of the vision encoder")
    return error
