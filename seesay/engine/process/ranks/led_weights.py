"""The weights of rank 0, whose commands all ranks follow: each reads its own slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.engine.core.model_weights import ModelWeights
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.checkpoint.source import TensorSource
    from seesay.engine.process.ranks.followers import Followers

T = TypeVar("T")


class LedWeights(ModelWeights):
    """A `ModelWeights` that has all ranks do what it does. An error of any rank is raised here."""

    def __init__(self, *arguments: Any, followers: Followers) -> None:
        super().__init__(*arguments)
        self._followers = followers

    def _lead(self, name: str, work: Callable[[], T], **arguments: Any) -> tuple[T, list[Any]]:
        return self._followers.call(name, work, arguments)

    def check_layers(self, source: TensorSource, *, is_partial: bool) -> None:
        if isinstance(source, HandedTensors) and not self._followers.executor.is_local:
            raise ConfigError("tensors cannot be handed over to ranks that Ray has placed: give a folder with weights")
        check = partial(super().check_layers, source, is_partial=is_partial)
        try:
            self._lead("check_weights", check, source=_describe(source), is_partial=is_partial)
        except BaseException:
            self._lead("forget_source", _nothing)
            raise

    def replace(self, source: TensorSource, *, is_partial: bool) -> None:
        work = partial(super().replace, source, is_partial=is_partial)
        # What was handed over was checked just before, and is there.
        given = None if isinstance(source, HandedTensors) else _describe(source)
        self._lead("replace_weights", work, source=given, is_partial=is_partial)

    def drop(self) -> None:
        self._lead("drop_weights", super().drop)

    def offload(self) -> None:
        try:
            self._lead("offload_weights", super().offload)
        except BaseException:
            self.restore()  # those of the ranks that had room
            raise

    def restore(self) -> None:
        self._lead("restore_weights", super().restore)

    def addresses(self) -> list[int]:
        own, others = self._lead("find_addresses", super().addresses)
        return [*own, *(address for found in others for address in found)]


class FollowedWeights:
    """Does for the decoder of a follower, `weights`, what `LedWeights` asks for. A source is a folder, or the tensors
    that were handed over, which are kept from their check until they replace others."""

    def __init__(self, weights: ModelWeights) -> None:
        self._weights = weights
        self._checked: HandedTensors | None = None
        self.calls: Mapping[str, Callable[..., Any]] = {
            "check_weights": self._check,
            "replace_weights": self._replace,
            "forget_source": self._forget,
            "drop_weights": weights.drop,
            "offload_weights": weights.offload,
            "restore_weights": weights.restore,
            "find_addresses": weights.addresses,
        }

    def _check(self, *, source: Mapping[str, Any], is_partial: bool) -> None:
        opened = self._open(source)
        self._weights.check_layers(opened, is_partial=is_partial)
        self._checked = opened if isinstance(opened, HandedTensors) else None

    def _replace(self, *, source: Mapping[str, Any] | None, is_partial: bool) -> None:
        opened, self._checked = (self._checked if source is None else self._open(source)), None
        assert opened is not None, "tensors that are handed over are checked first"
        self._weights.replace(opened, is_partial=is_partial)

    def _forget(self) -> None:
        self._checked = None

    def _open(self, source: Mapping[str, Any]) -> TensorSource:
        if (folder := source.get("folder")) is not None:
            return self._weights.open_folder(folder)
        tensors = [GivenTensor(**{**given, "shape": tuple(given["shape"])}) for given in source["tensors"]]
        return HandedTensors({tensor.name: tensor for tensor in tensors})


def _describe(source: TensorSource) -> dict[str, Any]:
    """Return what a follower needs to open a source."""
    if not isinstance(source, HandedTensors):
        return {"folder": str(source.path)}
    names = [field.name for field in fields(GivenTensor)]
    return {"tensors": [{name: getattr(tensor, name) for name in names} for tensor in source.tensors]}


def _nothing() -> None:
    pass
