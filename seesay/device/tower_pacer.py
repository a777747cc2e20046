"""The language engine and the vision tower take turns on one GPU.

Side by side, each kernel of a step waits for blocks of the tower's products to end, whatever the priorities: a step
takes three times as long, and the tower gains nothing. So a call of the tower is put between two steps. It does not
wait when no step runs. A stream can only wait for kernels that are launched, so steps and calls are not launched at the
same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from seesay.device.streams import hold_stream, record_event

if TYPE_CHECKING:
    import torch

MAX_WAIT_S = 0.1
"""A call of the tower waits no longer than this for its turn."""
MAX_LAUNCH_S = 0.02
"""A step waits no longer than this while a call is launched; the step before it is computed meanwhile."""


class TowerPacer:
    """Steps are launched by one thread, calls of the tower by another. Nothing waits on the CPU, or where they do not
    share one GPU (`is_shared`)."""

    def __init__(
        self, *, is_shared: bool = True, max_wait_s: float = MAX_WAIT_S, max_launch_s: float = MAX_LAUNCH_S
    ) -> None:
        self._is_shared = is_shared
        self._max_wait_s = max_wait_s
        self._max_launch_s = max_launch_s
        self._changed = threading.Condition()
        self._has_steps = False
        self._num_steps = 0
        self._num_steps_before = 0  # steps when the tower was called last
        self._is_stepping = self._is_calling = False  # while kernels are being launched
        self._step: torch.Event | None = None
        self._call: torch.Event | None = None

    @contextmanager
    def step(self, stream: torch.Stream | None) -> Iterator[bool]:
        """Launch a step in the block. It is computed after the calls of the tower that were launched before. Gives
        whether no call runs beside it; else one was being launched for too long, and the step's duration says little.
        """
        if stream is None or not self._is_shared:
            yield True
            return
        with self._changed:
            self._has_steps = True
            is_alone = self._changed.wait_for(lambda: not self._is_calling, timeout=self._max_launch_s)
            self._is_stepping = True
            hold_stream(stream, self._call)
            self._call = None
        try:
            yield is_alone
        finally:
            with self._changed:
                self._step = record_event(stream)
                self._num_steps += 1
                self._is_stepping = False
                self._changed.notify_all()

    @property
    def is_resting(self) -> bool:
        """Whether no steps are launched: the GPU that they share computes nothing beside the tower."""
        with self._changed:
            return self._is_shared and not self._has_steps

    def rest(self) -> None:
        """No step follows for now."""
        with self._changed:
            self._has_steps = False
            self._changed.notify_all()

    @contextmanager
    def call(self, stream: torch.Stream | None) -> Iterator[None]:
        """Launch a call of the tower in the block. While steps follow each other, it waits until one was launched since
        the call before, and is computed after that one."""
        if stream is None or not self._is_shared:
            yield
            return
        with self._changed:
            self._changed.wait_for(self._is_turn_of_call, timeout=self._max_wait_s)
            if self._has_steps:
                hold_stream(stream, self._step)
            self._is_calling = True
        try:
            yield
        finally:
            with self._changed:
                self._call = record_event(stream)
                self._num_steps_before = self._num_steps
                self._is_calling = False
                self._changed.notify_all()

    def _is_turn_of_call(self) -> bool:
        is_next = not self._has_steps or self._num_steps > self._num_steps_before
        return is_next and not self._is_stepping
