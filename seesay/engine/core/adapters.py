"""The LoRA adapters that a core has: those of its configuration, and those that commands load and unload."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from seesay.device.query import is_out_of_memory
from seesay.engine.commands import LoadAdapter, LoadedAdapter, UnloadAdapter, find_adapter
from seesay.engine.core.adapter_memory import AdapterMemory
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.errors import CheckpointError, ConfigError, ErrorCode, RequestError, SeesayError

if TYPE_CHECKING:
    from seesay.checkpoint.adapter_folder import AdapterFolder
    from seesay.config import EngineConfig
    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.tower_adapters import TowerAdapter
    from seesay.engine.core.live_request import LiveRequest
    from seesay.llm.models.adapters.adapter_reader import HostAdapter
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.scheduling.scheduler import Scheduler

logger = logging.getLogger("seesay")

_LEAST_RANK = 16
_NUM_READERS = 4
"""Adapters of a configuration that are read at once."""


def make_slots(runner: ModelRunner, config: EngineConfig) -> None:
    """Let a runner have slots for adapters. Raises `ConfigError` for a decoder that takes none."""
    from seesay.checkpoint.adapter_folder import AdapterFolder
    from seesay.checkpoint.model_path import resolve_checkpoint
    from seesay.llm.models.composed_decoder import ComposedDecoder

    folders = [resolve_checkpoint(path) for path in (config.adapters or {}).values()]
    max_rank = config.max_adapter_rank
    num_slots = min(config.max_adapters or len(folders), runner.limits.max_batch_size)
    if config.max_cpu_adapters:
        num_slots = min(num_slots, config.max_cpu_adapters)
    if not num_slots:
        return
    if not isinstance(runner.decoder, ComposedDecoder):
        raise ConfigError("adapters: this model runs through Transformers' modules, which take no adapters")
    max_rank = max_rank or max(map(AdapterFolder.find_rank, folders), default=_LEAST_RANK)
    runner.adapters = runner.decoder.make_adapters(num_slots=num_slots, max_rank=max_rank)
    if any(map(AdapterFolder.has_experts, folders)):
        runner.adapters.experts.allocate()  # before the KV cache takes what is left
    runner.limits = replace(runner.limits, num_adapter_slots=num_slots)


class ReadAdapter(NamedTuple):
    """An adapter that was read: what it changes in the decoder, and in the tower, if anything."""

    decoder: HostAdapter
    tower: TowerAdapter | None = None

    @property
    def id(self) -> int:
        return self.decoder.id

    @property
    def tower_key(self) -> str:
        """Stands for what it changes in the tower; empty for nothing."""
        return "" if self.tower is None else self.tower.key


class AdapterStore:
    """Reads adapters for a runner and a tower, and drops them. towers: what adapters change in the tower, by their
    ids."""

    def __init__(self, runner: ModelRunner, encoder: LoadedEncoder | None = None, stored: Container[str] = ()) -> None:
        """stored: the tensors of the checkpoint."""
        self._runner = runner
        self._encoder, self._stored = encoder, stored
        self.towers: dict[int, TowerAdapter] = {}

    def read(self, folder: str) -> ReadAdapter:
        """Return an adapter, ready to be added. Any thread may call it. Raises `CheckpointError`, and
        `RequestError` for an engine without slots."""
        from seesay.checkpoint.adapter_folder import AdapterFolder

        adapters = self._runner.adapters
        if adapters is None:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "this engine has no slots for adapters: start it with max_adapters (--max-adapters), the number of "
                "adapters that may be in use at a time",
                "lora_name",
            )
        whole = AdapterFolder.load(folder, takes_saved=True)
        others = adapters.reader.find_others(whole)
        if not others:
            return ReadAdapter(adapters.reader.read(whole))
        tower = self._read_others(whole.pick(others))
        own = adapters.reader.read(whole.pick(others, others=True))
        return ReadAdapter(replace(own, id=whole.make_id()), tower)

    def _read_others(self, folder: AdapterFolder) -> TowerAdapter | None:
        """Read what an adapter has for modules that are not the decoder's."""
        from seesay.encoders.tower_adapters import AdaptedTower

        if self._encoder is None:
            raise CheckpointError(
                f"{folder.path}: {min(folder.names)!r} belongs to no layer of the language model, and there is no "
                "vision tower in this process"
            )
        return AdaptedTower(self._encoder, self._stored).read(folder)

    def add(self, adapter: ReadAdapter) -> None:
        """Take an adapter that was read, between steps."""
        assert self._runner.adapters is not None
        try:
            self._runner.adapters.add(adapter.decoder)
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            raise RequestError(
                ErrorCode.OUT_OF_MEMORY,
                "not enough memory for whole weights of the adapter, or for those of experts",
                "lora_path",
            ) from None
        if adapter.tower is not None:
            self.towers.setdefault(adapter.id, adapter.tower)

    def drop(self, adapter_id: int) -> None:
        """Forget an adapter, which no live sequence has, between steps."""
        assert self._runner.adapters is not None
        self._runner.adapters.drop(adapter_id)
        self.towers.pop(adapter_id, None)


def load_adapters(control: AdapterControl, adapters: Mapping[str, str]) -> None:
    """Load the adapters of a configuration, before the loop begins. Raises `CheckpointError` and `RequestError`."""
    from seesay.checkpoint.model_path import resolve_checkpoint

    commands = [LoadAdapter(name=name, folder=str(resolve_checkpoint(path))) for name, path in adapters.items()]
    with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="seesay-adapters") as threads:
        for start in range(0, len(commands), _NUM_READERS):
            few = commands[start : start + _NUM_READERS]
            for command, adapter in zip(few, threads.map(control.read, few), strict=True):
                control.add(command, adapter)


class _Leaving(NamedTuple):
    """An adapter that is unloaded once no request uses it; `done` tells of that."""

    id: int
    done: Future[None]


class AdapterPlaces:
    """Where the adapters of a store are: in host memory, at most `limit` of them (0: all), or in their files alone.

    memory: which of them are in the store.
    """

    def __init__(self, store: AdapterStore, scheduler: Scheduler, limit: int) -> None:
        self.memory = AdapterMemory[ReadAdapter](limit)
        self._open_store: AdapterStore | None = store
        self._scheduler = scheduler
        self._folders: dict[int, str] = {}  # by the adapters' ids

    @property
    def store(self) -> AdapterStore:
        store = self._open_store
        if store is None:
            raise RequestError(ErrorCode.CLOSED, "the engine is closed")
        return store

    def add(self, adapter: ReadAdapter, folder: str) -> None:
        """Take an adapter that was read from a folder; into memory, if there is room."""
        if self.memory.try_add(adapter.id):
            try:
                self.store.add(adapter)
            except BaseException:
                self.memory.forget(adapter.id)
                raise
        self._folders[adapter.id] = folder

    def forget(self, adapter_id: int) -> None:
        """Forget an adapter that no request uses."""
        self._drop(adapter_id)
        self.memory.forget(adapter_id)
        del self._folders[adapter_id]

    def release_held(
        self, requests: LiveRequests, wake: Callable[[], None]
    ) -> list[tuple[LiveRequest, Exception | None]]:
        """Move adapters between files and memory for the requests that wait for theirs, and return those that need wait
        no more, each with the reason why its adapter cannot be read, if it cannot. wake is called from any thread when
        there is more to do."""
        memory, held = self.memory, requests.held[Awaited.ADAPTER]
        if not held and not memory.is_reading:
            return []
        used, wanted = map(_list_adapters, (requests.iterate(but=Awaited.ADAPTER), held.values()))
        moves = memory.plan_moves(
            used.keys(), wanted, read=lambda adapter_id: self.store.read(self._folders[adapter_id]), wake=wake
        )
        for adapter_id in moves.leaving:
            self._drop(adapter_id)
        failures: dict[int, Exception] = {}
        for adapter_id, found in moves.come:
            try:
                self._add_again(adapter_id, found.result())
            except Exception as error:
                memory.forget(adapter_id)
                failures[adapter_id] = error
        ready = memory.find_ready((adapter_id for adapter_id, _ in moves.come), held.values())
        for request in ready:
            del held[request.request_id]
        return [(request, failures.get(request.sequence.adapter_id)) for request in ready]

    def close(self) -> None:
        """Let go of the store."""
        self.memory.close()
        if self._open_store is not None:
            self._open_store.towers.clear()
        self._open_store = None

    def _add_again(self, adapter_id: int, adapter: ReadAdapter) -> None:
        """Take an adapter that was read once more."""
        if adapter.id != adapter_id:
            raise CheckpointError(
                f"{self._folders[adapter_id]}: the adapter was changed since it was loaded: unload it and load it again"
            )
        self.store.add(adapter)

    def _drop(self, adapter_id: int) -> None:
        self._scheduler.forget_adapter(adapter_id)
        self.store.drop(adapter_id)


class AdapterControl:
    """Loads and unloads adapters while requests are answered. Used by the loop's thread, but for `read` and `loaded`.

    loaded: those that requests may name. find_tower: returns what an adapter of a live request changes in the tower, by
    its id; None for nothing. places: where they are.
    """

    def __init__(self, store: AdapterStore, scheduler: Scheduler, *, max_in_memory: int = 0) -> None:
        self.places = AdapterPlaces(store, scheduler, max_in_memory)
        self.find_tower = store.towers.get
        self.loaded: tuple[LoadedAdapter, ...] = ()
        self._leaving: list[_Leaving] = []

    def read(self, command: LoadAdapter) -> ReadAdapter:
        """Read the adapter of a command, in the thread that waits for it. Raises `CheckpointError` and
        `RequestError`."""
        _check_new(command.name, self.loaded)
        return self.places.store.read(command.folder)

    def take(self, command: LoadAdapter | UnloadAdapter, adapter: ReadAdapter | None, done: Future[None]) -> int | None:
        """Do a command, with the adapter that `read` returned; `done` tells how it ends. Returns the id of an adapter
        whose requests are to be aborted."""
        try:
            if isinstance(command, UnloadAdapter):
                leaving = self.begin_unloading(command, done)
                return leaving if command.running == "abort" else None
            assert adapter is not None
            self.add(command, adapter)
            done.set_result(None)
        except SeesayError as error:
            done.set_exception(error)
        return None

    def add(self, command: LoadAdapter, adapter: ReadAdapter) -> None:
        """Let requests name an adapter that was read."""
        _check_new(command.name, self.loaded)
        if not self._is_kept(adapter.id):
            self.places.add(adapter, command.folder)
        added = LoadedAdapter(name=command.name, id=adapter.id, folder=command.folder, tower_key=adapter.tower_key)
        self.loaded = (*self.loaded, added)
        logger.info("adapter %r: loaded from %s", command.name, command.folder)

    def begin_unloading(self, command: UnloadAdapter, done: Future[None]) -> int | None:
        """Let no request name an adapter any more; `done` tells when it is forgotten. Returns its id, unless another
        name has the same content."""
        found = find_adapter(self.loaded, command.name)
        if found is None:
            raise _make_unknown_error(command.name, self.loaded)
        self.loaded = tuple(each for each in self.loaded if each is not found)
        logger.info("adapter %r: unloaded", command.name)
        if self._is_loaded(found.id):
            done.set_result(None)
            return None
        self._leaving.append(_Leaving(found.id, done))
        return found.id

    def finish_unloading(self, live: Iterable[LiveRequest]) -> None:
        """Forget the adapters that are to leave and that no live request uses any more."""
        if not self._leaving:
            return
        used = {request.sequence.adapter_id for request in live}
        leaving = [each for each in self._leaving if each.id in used]
        gone = [each for each in self._leaving if each.id not in used]
        self._leaving = leaving
        self._forget_unless_kept({each.id for each in gone})
        for each in gone:
            each.done.set_result(None)

    def _forget_unless_kept(self, adapter_ids: Iterable[int]) -> None:
        """Forget adapters that left; one may have come back meanwhile."""
        for adapter_id in adapter_ids:
            if not self._is_kept(adapter_id):
                self.places.forget(adapter_id)

    def find_refusal(self, request: LiveRequest) -> RequestError | None:
        """Return why a request is not computed that arrives now: its adapter was unloaded meanwhile. What belongs to
        requests before it may still come while they are finished."""
        adapter_id, group_id = request.sequence.adapter_id, request.sequence.group_id
        if not adapter_id or self._is_loaded(adapter_id) or (group_id is not None and self._is_kept(adapter_id)):
            return None
        return RequestError(ErrorCode.INVALID_REQUEST, "the adapter of the request was unloaded", "model")

    def replay(self, adapters: Iterable[LoadedAdapter]) -> None:
        """Have the adapters that an engine before this one had, as far as they can be read. Called before the loop
        begins."""
        wanted = {each.name: each for each in adapters}
        for found in self.loaded:
            if wanted.get(found.name) != found:
                self.begin_unloading(UnloadAdapter(name=found.name), Future())
        for each in wanted.values():
            if find_adapter(self.loaded, each.name) is None:
                command = LoadAdapter(name=each.name, folder=each.folder)
                try:
                    self.add(command, self.read(command))
                except SeesayError as error:
                    logger.error("an adapter that was in use cannot be read again: %s", error)
        self.finish_unloading(())

    def close(self) -> None:
        """Let go of runner and tower: nothing is loaded or unloaded any more."""
        self.places.close()

    def _is_loaded(self, adapter_id: int) -> bool:
        return any(each.id == adapter_id for each in self.loaded)

    def _is_kept(self, adapter_id: int) -> bool:
        return self._is_loaded(adapter_id) or any(each.id == adapter_id for each in self._leaving)


def _list_adapters(requests: Iterable[LiveRequest]) -> dict[int, None]:
    """Return the adapters of requests, in the order of these."""
    return dict.fromkeys(request.sequence.adapter_id for request in requests)


def _check_new(name: str, loaded: Iterable[LoadedAdapter]) -> None:
    if find_adapter(loaded, name) is not None:
        raise RequestError(
            ErrorCode.INVALID_REQUEST, f"the adapter {name!r} is loaded already: unload it first", "lora_name"
        )


def _make_unknown_error(name: str, loaded: Iterable[LoadedAdapter]) -> RequestError:
    known = ", ".join(sorted(repr(each.name) for each in loaded)) or "none is"
    message = f"the adapter {name[:200]!r} is not loaded: {known}"
    return RequestError(ErrorCode.INVALID_REQUEST, message, "lora_name")
