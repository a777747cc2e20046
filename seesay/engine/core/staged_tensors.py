"""Tensors that are handed over one by one, for an update of the weights."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.engine.commands import DropStaged, StageTensor
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from seesay.engine.core.model_weights import ModelWeights


class StagedTensors:
    """The tensors of one update of `weights`: those of another take their place. Thread-safe."""

    def __init__(self, weights: ModelWeights) -> None:
        self._weights = weights
        self._lock = threading.Lock()
        self._update_id: str | None = None
        self._tensors: dict[str, GivenTensor] = {}

    def stage(self, command: StageTensor | DropStaged) -> None:
        """Keep a tensor for an update, or drop all of it. Raises `CheckpointError` for one that does not fit the model;
        the update is dropped then."""
        with self._lock:
            if isinstance(command, DropStaged):
                if self._update_id == command.update_id:
                    self._drop()
                return
            if self._update_id != command.update_id:
                self._drop()
                self._update_id = command.update_id
            try:
                name = command.tensor.name
                if name in self._tensors:
                    raise CheckpointError(f"update_weights: tensor {name!r} was given twice")
                self._weights.check_given(command.tensor)
            except BaseException:
                self._drop()
                raise
            self._tensors[name] = command.tensor

    def take(self, update_id: str) -> HandedTensors:
        """Return the tensors of an update, which are here no more. Raises `CheckpointError` where there are none."""
        with self._lock:
            if self._update_id != update_id:
                raise CheckpointError("update_weights: no tensors were given, or another update took their place")
            staged = HandedTensors(self._tensors)
            self._drop()
            return staged

    def drop(self) -> None:
        """Drop all tensors."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._update_id, self._tensors = None, {}
