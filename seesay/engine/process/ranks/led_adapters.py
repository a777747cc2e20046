"""The adapters of rank 0, whose commands all ranks follow: each reads its own slices."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING

from seesay.engine.core.adapters import AdapterStore, ReadAdapter
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from seesay.checkpoint.adapter_folder import AdapterFolder
    from seesay.encoders.encoder import LoadedEncoder
    from seesay.engine.process.ranks.followers import Followers
    from seesay.llm.running.runner import ModelRunner


class LedAdapterStore(AdapterStore):
    """An `AdapterStore` that has all ranks do what it does. The others read an adapter when it is added, between steps.
    An error of any rank is raised here."""

    def __init__(
        self,
        runner: ModelRunner,
        encoder: LoadedEncoder | None = None,
        stored: Container[str] = (),
        *,
        followers: Followers,
    ) -> None:
        super().__init__(runner, encoder, stored)
        self._followers = followers

    def add(self, adapter: ReadAdapter) -> None:
        arguments = {"adapter_id": adapter.id, "folder": adapter.decoder.folder}
        try:
            self._followers.call("add_adapter", partial(super().add, adapter), arguments)
        except BaseException:
            self.drop(adapter.id)  # of the ranks that could read it
            raise

    def drop(self, adapter_id: int) -> None:
        self._followers.call("drop_adapter", partial(super().drop, adapter_id), {"adapter_id": adapter_id})


class _DecoderStore(AdapterStore):
    """An `AdapterStore` of a rank without the tower, whose adapters rank 0 has."""

    def _read_others(self, folder: AdapterFolder) -> None:
        """Read nothing: rank 0 has done so."""


class FollowedAdapters:
    """Does for the runner of a follower what `LedAdapterStore` asks for."""

    def __init__(self, runner: ModelRunner) -> None:
        self._store = _DecoderStore(runner)
        self.calls: Mapping[str, Callable[..., None]] = {"add_adapter": self._add, "drop_adapter": self._store.drop}

    def _add(self, *, adapter_id: int, folder: str) -> None:
        adapter = self._store.read(folder)
        if adapter.id != adapter_id:
            raise CheckpointError(f"{folder}: the adapter was changed while it was loaded: load it again")
        self._store.add(adapter)
