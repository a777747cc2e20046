"""Counts the kernels that Triton compiles while an engine starts, and logs later ones: requests wait for these."""

from __future__ import annotations

import logging
from typing import Any

import triton

logger = logging.getLogger("seesay")


class CompileLog:
    """Listens to Triton's compiler in this process, as long as nobody else does."""

    def __init__(self) -> None:
        self._num_compiled = 0
        self._has_started = False
        knobs: Any = getattr(triton, "knobs", None)
        if knobs is not None and getattr(knobs.compilation, "listener", self) is None:
            knobs.compilation.listener = self._note

    def end_start(self) -> int:
        """Log each kernel from now on. Returns how many were compiled until now."""
        self._has_started = True
        return self._num_compiled

    def _note(self, *, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        """Be a `triton.knobs.CompilationListener`."""
        if not getattr(getattr(src, "fn", None), "__module__", "").startswith("seesay."):
            return  # the user's own, in a process that has the engine in a thread
        if not self._has_started:
            self._num_compiled += not cache_hit
        elif cache_hit:
            logger.info("kernel %s was loaded from Triton's cache after the start", src.name)
        else:
            text = "kernel %s was compiled after the start, which took %.2f s: requests waited for it"
            logger.warning(text, src.name, times.total / 1e6)
