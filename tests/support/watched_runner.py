"""An engine whose steps a test sees, or spoils, by a runner that overrides what the engine calls."""

from __future__ import annotations

from collections.abc import Callable

from seesay.engine.front.starting import CoreParts
from seesay.llm.models.decoder import Decoder
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits


def watched(make_runner: Callable[[Decoder, RunnerLimits], ModelRunner]) -> CoreParts:
    """Return the parts of an engine whose runner `make_runner` makes."""
    return CoreParts(make_runner=make_runner)
