"""Engines that nobody closes: they end with the last reference to them, and with their process."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from seesay.engine.engine_core import EngineCore


class _Closable(Protocol):
    def close(self) -> None: ...


_open_engines: weakref.WeakSet[_Closable] = weakref.WeakSet()
_stopping_cores: weakref.WeakKeyDictionary[EngineCore, int] = weakref.WeakKeyDictionary()
"""Those of engines that were garbage-collected, by the process that had them."""


def end_in_time(engine: _Closable, core: EngineCore) -> None:
    """Stop the core when the engine is garbage-collected, and close the engine with `close_engines`."""
    weakref.finalize(engine, _stop, os.getpid(), core).atexit = False
    _open_engines.add(engine)


def forget(engine: _Closable) -> None:
    """Forget an engine that is closed."""
    _open_engines.discard(engine)


def close_engines() -> None:
    """Close all engines, and wait for those that are ending: threads that compute while the interpreter is torn down
    would crash it."""
    for engine in list(_open_engines):
        engine.close()
    for core, process_id in list(_stopping_cores.items()):
        if process_id == os.getpid():
            core.close()


def _stop(process_id: int, core: EngineCore) -> None:
    """Stop the core of a garbage-collected engine. Garbage collection may call this in any thread, so it
    waits for nothing; the core's thread frees what the engine held."""
    if process_id == os.getpid():
        _stopping_cores[core] = process_id
        core.stop()
