"""Replaces the weights of a running core, puts it to sleep and wakes it up, between requests.

Caches never outlive what they were computed with: an update and a sleep empty the prefix cache, on the host too, and
the embeddings, once no request is alive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from seesay.device.host_memory import return_memory
from seesay.device.query import is_out_of_memory, release_cached_memory, synchronize
from seesay.engine.commands import (
    ModelStatus,
    Sleep,
    UpdateWeights,
    WakeUp,
    make_sleeping_error,
)
from seesay.engine.core.staged_tensors import StagedTensors
from seesay.errors import CheckpointError, ErrorCode, RequestError, SeesayError, describe

if TYPE_CHECKING:
    from seesay.checkpoint.source import TensorSource
    from seesay.engine.core.embedding_supply import EmbeddingSupply
    from seesay.engine.core.model_weights import ModelWeights
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.scheduling.scheduler import Scheduler

logger = logging.getLogger("seesay")


class ModelControl:
    """Does the commands to a core. `run` is called by the engine loop's thread while no request is alive; `staged`,
    the tensors for the next update, and `status` may be used by any."""

    def __init__(
        self,
        *,
        weights: ModelWeights,
        runner: ModelRunner,
        scheduler: Scheduler,
        embeddings: EmbeddingSupply,
        forget_answers: Callable[[], None],
    ) -> None:
        """`forget_answers`: see `Speculation.forget`."""
        self._weights, self._runner = weights, runner
        self._scheduler, self._embeddings, self._forget_answers = scheduler, embeddings, forget_answers
        self.staged = StagedTensors(weights)
        self.status = ModelStatus(folders=(weights.folder,))

    def find_refusal(self) -> RequestError | None:
        """Return why no request is computed now."""
        return make_sleeping_error(self.status) if self.status.asleep else None

    def run(self, command: UpdateWeights | Sleep | WakeUp) -> None:
        """Do it. Raises `CheckpointError` and `RequestError`; the weights are the old ones then, or, where it is said
        so, asleep."""
        started_s = time.perf_counter()
        self._embeddings.drain()
        synchronize(self._runner.device)
        try:
            match command:
                case UpdateWeights():
                    self._update(command)
                case Sleep(level=level):
                    self._sleep(level)
                case WakeUp(tags=tags):
                    self._wake_up(tags)
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            error.__traceback__ = None
            release_cached_memory(self._runner.device)
            raise RequestError(
                ErrorCode.OUT_OF_MEMORY,
                f"{_name(command)}: not enough memory ({describe(error).splitlines()[0]}). An update takes memory for "
                "one layer beside the old weights: sleep(level=2) first frees these",
            ) from None
        synchronize(self._runner.device)  # before work of other streams
        seconds = time.perf_counter() - started_s
        asleep = ", ".join(self.status.asleep) or "nothing"
        logger.info("%s: %.1f s; weights of epoch %d, asleep: %s", _name(command), seconds, self.status.epoch, asleep)

    def replay(self, status: ModelStatus) -> None:
        """Load the weights that an engine before this one had, as far as they can be read. Called before the loop
        begins."""
        folders: tuple[str, ...] = (self._weights.folder,)
        has_lost = status.has_given
        for index, folder in enumerate(status.folders):
            if folder == self._weights.folder:
                continue
            is_changed = False
            try:
                source = self._weights.open_folder(folder)
                self._weights.check(source, is_partial=index > 0)
                is_changed = True
                self._replace(source, is_partial=index > 0)
            except SeesayError as error:
                logger.error("weights that were in use cannot be read again: %s", error)
                has_lost = True
                if is_changed:  # the folder changed after the check
                    _read(self._weights, folders)
                break
            self._runner.restore_graphs()
            folders = (*folders, folder) if index else (folder,)
        if has_lost:
            logger.error("updates of the weights are lost: they are those of %s", ", then ".join(folders))
        self.status = ModelStatus(epoch=status.epoch + has_lost, folders=folders, has_lost=has_lost or status.has_lost)

    def _update(self, command: UpdateWeights) -> None:
        status = self.status
        source = self._open_source(command)
        is_dropped = "weights" in status.asleep and status.level == 2
        if is_dropped and command.is_partial:
            raise CheckpointError("update_weights: the weights were dropped by sleep(level=2): give all, not some")
        is_on_host = "weights" in status.asleep and not is_dropped
        self._check_given(source, is_partial=command.is_partial, is_on_host=is_on_host)
        if is_on_host:
            self.status = self.status.with_awake("weights")
        try:
            self._replace(source, is_partial=command.is_partial)
        except BaseException:
            logger.error("an update failed in the middle: the engine sleeps, and wake_up() reads the weights again")
            self._sleep(2)
            raise
        self._empty_caches()
        if is_dropped:
            self.status = self.status.with_awake("weights")
        self.status = self.status.after(command)
        if not self.status.asleep:
            self._runner.restore_graphs()

    def _open_source(self, command: UpdateWeights) -> TensorSource:
        if command.update_id is not None:
            return self.staged.take(command.update_id)
        return self._weights.open_folder(command.folder or "")

    def _check_given(self, source: TensorSource, *, is_partial: bool, is_on_host: bool) -> None:
        """Check new weights beside those that there are, which are on the device then. Those that were on the host go
        back if the new ones do not fit."""
        if is_on_host:
            self._weights.restore()
        try:
            self._weights.check(source, is_partial=is_partial)
        except BaseException:
            if is_on_host:
                self._weights.offload()
                release_cached_memory(self._runner.device)
            raise

    def _replace(self, source: TensorSource, *, is_partial: bool) -> None:
        """Replace weights that were checked. Graphs that would use old addresses are dropped with their cache."""
        before = self._weights.addresses()
        self._weights.replace(source, is_partial=is_partial)
        if "kv_cache" not in self.status.asleep and self._weights.addresses() != before:
            self._runner.drop_cache()
            self._runner.restore_cache()

    def _sleep(self, level: int) -> None:
        status = self.status
        if level <= status.level and len(status.asleep) == 2:
            return
        self._empty_caches()
        if "kv_cache" not in status.asleep:
            self._runner.drop_cache()
            self.status = self.status.with_asleep("kv_cache")
        self.staged.drop()
        if level == 2:
            self._weights.drop()
        elif "weights" not in status.asleep:
            self._weights.offload()
        self.status = self.status.with_asleep("weights", level=max(level, status.level))
        release_cached_memory(self._runner.device)
        return_memory()

    def _wake_up(self, tags: tuple[str, ...]) -> None:
        if "weights" in tags and "weights" in self.status.asleep:
            if self.status.level == 1:
                self._weights.restore()
            elif self.status.has_given:
                raise CheckpointError(
                    "wake_up: the weights were given as tensors and dropped by sleep(level=2): give them again with "
                    "update_weights, which wakes them up"
                )
            else:
                _read(self._weights, self.status.folders)
            self.status = self.status.with_awake("weights")
        if "kv_cache" in tags and "kv_cache" in self.status.asleep:
            self._runner.restore_cache()
            self.status = self.status.with_awake("kv_cache")
        if tags and not self.status.asleep:
            self._runner.restore_graphs()

    def _empty_caches(self) -> None:
        """Forget everything that was computed with the weights."""
        self._embeddings.store.clear()
        self._scheduler.forget_prefixes()
        self._forget_answers()


def _read(weights: ModelWeights, folders: Sequence[str]) -> None:
    """Load all weights of the first folder, and what the others have of them."""
    for index, folder in enumerate(folders):
        weights.replace(weights.open_folder(folder), is_partial=index > 0)


def _name(command: object) -> str:
    return {UpdateWeights: "update_weights", Sleep: "sleep", WakeUp: "wake_up"}[type(command)]
