"""Graphs of the device. Work that is done when it is queued cannot be captured: a replay calls it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import torch


class CalledAgain:
    """Calls `run` in each replay, and fills the tensors that the first call returned, as a graph does."""

    num_replays: ClassVar[int] = 0

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self.result = run()

    def replay(self) -> None:
        CalledAgain.num_replays += 1
        for target, source in zip(_find_tensors(self.result), _find_tensors(self._run()), strict=True):
            target.copy_(source)


def _find_tensors(found: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a tensor, a tuple or a dataclass."""
    if isinstance(found, torch.Tensor):
        yield found
    elif is_dataclass(found):
        for field in fields(found):
            yield from _find_tensors(getattr(found, field.name))
    elif isinstance(found, tuple):
        for each in found:
            yield from _find_tensors(each)
