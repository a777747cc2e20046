"""Commands of an operator to a core: new weights, sleep, empty caches between requests; adapters at any time. Plain
data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from seesay.errors import ConfigError, ErrorCode, RequestError

if TYPE_CHECKING:
    from seesay.checkpoint.tensor_source import GivenTensor

Part = Literal["weights", "kv_cache"]
Running = Literal["finish", "abort"]
PARTS: tuple[Part, ...] = get_args(Part)
LEVELS = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetCaches:
    """Forget all embeddings and the content of all KV blocks. Live requests keep what they use until they end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTensor:
    """Keep a tensor on the host for an update. Those of an update with another id are dropped."""

    update_id: str
    tensor: GivenTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStaged:
    """Drop the staged tensors of an update."""

    update_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateWeights:
    """Replace weights: by those of a folder, or by the tensors that were staged for an update. All or none are
    replaced.

    is_partial: only some of the weights are there; of a linear layer all of its tensors.
    running: whether running requests are finished first, or aborted. New ones wait for the new weights.
    """

    folder: str | None = None
    update_id: str | None = None
    is_partial: bool = False
    running: Running = "finish"

    def __post_init__(self) -> None:
        assert (self.folder is None) != (self.update_id is None)
        _check_running(self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """Free the KV cache and the memory of the weights. Level 1 keeps the weights on the host, level 2 drops them.
    running: whether running requests are finished first, or aborted."""

    level: int = 1
    running: Running = "finish"

    def __post_init__(self) -> None:
        if isinstance(self.level, bool) or self.level not in LEVELS:
            raise ConfigError(f"level must be 1 or 2, got {self.level!r}")
        _check_running(self.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """Bring parts back that sleep; by default all."""

    tags: tuple[str, ...] = PARTS

    def __post_init__(self) -> None:
        for tag in self.tags:
            if tag not in PARTS:
                raise ConfigError(f"tags must be of {', '.join(PARTS)}, got {tag!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAdapter:
    """Let requests name an adapter, which is read from a folder. They are answered meanwhile."""

    name: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadAdapter:
    """Let no request name an adapter any more, and forget it when no request uses it. running: whether those that do
    are finished, or aborted."""

    name: str
    running: Running = "finish"

    def __post_init__(self) -> None:
        _check_running(self.running)


Command = ResetCaches | StageTensor | DropStaged | UpdateWeights | Sleep | WakeUp | LoadAdapter | UnloadAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAdapter:
    """An adapter that requests may name. id: stands for its content. folder: where it came from. tower_key: stands for
    what it changes in the vision tower; empty for nothing."""

    name: str
    id: int
    folder: str
    tower_key: str = ""


def find_adapter(adapters: Iterable[LoadedAdapter], name: str) -> LoadedAdapter | None:
    """Return the adapter of a name, if there is one."""
    return next((adapter for adapter in adapters if adapter.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """The weights that a core computes with, and whether it sleeps.

    epoch: how often the weights have changed. asleep: parts whose memory is freed; no request is computed then.
    level: 1 if the weights are on the host, 2 if they were dropped, 0 if they are on the device.
    folders: where the weights came from: the checkpoint that had all of them, then those that had some.
    has_given: whether tensors replaced some since, which cannot be read again.
    has_lost: whether an engine that was started again could not have all weights again: it has those of `folders`.
    adapters: those that requests may name.
    """

    epoch: int = 0
    asleep: tuple[Part, ...] = ()
    level: int = 0
    folders: tuple[str, ...] = ()
    has_given: bool = False
    has_lost: bool = False
    adapters: tuple[LoadedAdapter, ...] = ()

    def after(self, update: UpdateWeights) -> ModelStatus:
        """Return the status when these weights have been replaced."""
        folders, has_given = self.folders, True
        if update.folder is not None:
            folders = (*folders, update.folder) if update.is_partial else (update.folder,)
            has_given = self.has_given and update.is_partial
        has_lost = self.has_lost and update.is_partial
        return replace(self, epoch=self.epoch + 1, folders=folders, has_given=has_given, has_lost=has_lost)

    def with_asleep(self, part: Part, *, level: int | None = None) -> ModelStatus:
        """Return the status when a part sleeps, too; weights sleep on a level."""
        asleep = tuple(other for other in PARTS if other == part or other in self.asleep)
        return replace(self, asleep=asleep, level=self.level if level is None else level)

    def with_awake(self, part: Part) -> ModelStatus:
        """Return the status when a part sleeps no more."""
        asleep = tuple(other for other in self.asleep if other != part)
        return replace(self, asleep=asleep, level=0 if part == "weights" else self.level)


def make_sleeping_error(status: ModelStatus) -> RequestError:
    """Return the error of a request that comes while the engine sleeps."""
    parts = " and ".join(status.asleep)
    message = f"the engine sleeps, its memory is freed ({parts}): wake it up with wake_up() or POST /wake_up"
    return RequestError(ErrorCode.SLEEPING, message)


def _check_running(running: str) -> None:
    if running not in get_args(Running):
        raise ConfigError(f"running must be 'finish' or 'abort', got {running!r}")
