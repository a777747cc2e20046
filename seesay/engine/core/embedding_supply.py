"""The embeddings of live requests: which are encoded now, which are kept, and whose features are asked for.

Used by the engine loop's thread, but for `expect`, `forget` and `is_encoded`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.encoders.store import EmbeddingStore, Lookup
from seesay.encoders.worker import EncoderWorker, EncodeTiming
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.token_messages import Features
from seesay.errors import RequestError
from seesay.llm.plans.step_plan import EncodeJob
from seesay.values import EngineStats

if TYPE_CHECKING:
    import torch

    from seesay.config import VisionConfig
    from seesay.device.tower_pacer import TowerPacer
    from seesay.encoders.encoder import Encoder
    from seesay.encoders.tower_adapters import TowerAdapter
    from seesay.llm.scheduling.embedding_demand import EmbeddingRef


class EmbeddingSupply:
    """Has media items of the requests in `live` encoded, into `store`.

    An item that came without arrays is encoded only if its embedding is gone. One of the requests that wait for it is
    then asked for its features, and another one when that request ends before it has given them.
    """

    def __init__(
        self,
        encoder: Encoder | None,
        config: VisionConfig,
        live: Mapping[int, LiveRequest],
        *,
        embedding_size: int,
        pacer: TowerPacer,
        target: torch.device | None = None,
        find_adapter: Callable[[int], TowerAdapter | None] = lambda _: None,
    ) -> None:
        """find_adapter: returns what an adapter changes in the tower, by its id; None for nothing."""
        self.store = EmbeddingStore(config.embedding_cache_bytes)
        self.worker: EncoderWorker | None = None
        self._encoder = encoder
        self._config = config
        self._live = live
        self._embedding_size = embedding_size
        self._pacer = pacer
        self._target = target
        self._find_adapter = find_adapter
        self._expected: set[int] = set()  # ids of requests whose media are to be encoded soon
        self._arrived: list[int] = []  # those of them that were admitted
        self._lock = threading.Lock()
        self._asked: dict[bytes, int] = {}  # item hash → the request that was asked for the features
        self._users: dict[bytes, dict[int, None]] = {}  # item hash → live requests that wait for it or were lent it
        self._used: dict[int, dict[bytes, None]] = {}  # id of a live request → all items for which it ever waited

    def start(
        self,
        *,
        on_ready: Callable[[bytes, EncodeTiming], None],
        on_failed: Callable[[bytes, RequestError], None],
        on_launched: Callable[[bytes], None],
        on_features_wanted: Callable[[int, int], None],
        on_encoding: Callable[[bytes], None] = lambda _hash: None,
    ) -> None:
        """Start the encoder's worker, which calls `on_ready`, `on_failed` and `on_launched` from its own thread.
        `on_encoding` is called with the hash of an item whose arrays its request holds no more."""
        self._on_features_wanted = on_features_wanted
        self._on_encoding = on_encoding
        if self._encoder is not None:
            self.worker = EncoderWorker(
                self._encoder,
                self.store,
                self._config,
                embedding_size=self._embedding_size,
                on_ready=on_ready,
                on_failed=on_failed,
                on_launched=on_launched,
                is_more_coming=lambda: bool(self._expected),
                pacer=self._pacer,
                target=self._target,
            )
            self._encoder = None  # the worker lets go of it

    def close(self) -> None:
        """End the worker's thread and free the tower and the embeddings."""
        if self.worker is not None:
            self.worker.close()
        self.store.clear()

    def drain(self) -> None:
        """Wait until the tower computes nothing any more. No request is alive."""
        if self.worker is not None:
            self.worker.drain()

    def stats(self) -> EngineStats:
        """Return the counts of the embeddings and of the tower's calls."""
        parts = [] if self.worker is None else [self.worker.stats()]
        return EngineStats.merge(self.store.stats(), *parts)

    # --- what is coming -----------------------------------------------------------------------------------------------

    def expect(self, request_ids: Iterable[int]) -> None:
        """Let the encoder wait a moment for the media of these requests."""
        with self._lock:
            self._expected.update(request_ids)

    def forget(self, request_ids: Iterable[int]) -> None:
        """Expect no media of these requests any more."""
        with self._lock:
            self._expected.difference_update(request_ids)

    def note_arrival(self, request_id: int) -> None:
        """A request that may have been expected is here; it is forgotten once its media had their chance."""
        self._arrived.append(request_id)

    # --- encoding -----------------------------------------------------------------------------------------------------

    def start_encoding(self, jobs: Iterable[EncodeJob]) -> None:
        """Pin the embeddings of these jobs, and have those encoded that are not there."""
        for job in jobs:
            self.store.pin(job.hash, (job.seq_id, job.item_index))
            self._users.setdefault(job.hash, {})[job.seq_id] = None
            self._used.setdefault(job.seq_id, {})[job.hash] = None
            self._encode(job.seq_id, job.item_index)
        if self._arrived:
            self.forget(self._arrived)
            self._arrived.clear()

    def find_users(self, item_hash: bytes) -> list[LiveRequest]:
        """Return the live requests that asked for this embedding since it was last stored: those that wait for it, and
        those that were lent it."""
        return [self._live[request_id] for request_id in self._users.get(item_hash, ()) if request_id in self._live]

    def note_launched(self, item_hash: bytes) -> bool:
        """Note that an item is being computed. Returns whether its embedding can be used already."""
        if self.store.find(item_hash) is not Lookup.IN_FLIGHT or self.store.get(item_hash) is None:
            return False
        for request in self.find_users(item_hash):
            request.lend(item_hash)
        return True

    def note_encoded(self, item_hash: bytes, timing: EncodeTiming) -> bool:
        """Note what it cost to encode an item. Returns whether its embedding is there."""
        is_there = self.store.find(item_hash) is Lookup.READY
        for request in self.find_users(item_hash):
            if is_there or request.find_lent(item_hash):
                request.add_encoding(item_hash, timing)
        if is_there:
            self._users.pop(item_hash, None)
        return is_there

    def release(self, refs: Iterable[EmbeddingRef]) -> None:
        """Unpin embeddings that their sequences need no more."""
        for ref in refs:
            self.store.unpin(ref.hash, (ref.seq_id, ref.item_index))

    def take_features(self, request_id: int, item_index: int, features: Features) -> None:
        """Encode an item of a live request, whose features were asked for."""
        request = self._live[request_id]
        item = request.sequence.items[item_index]
        if self._asked.get(item.hash) == request_id:
            del self._asked[item.hash]
        if item_index in request.find_waiting(item.hash) and self.worker is not None:
            # The item's own measures stay: some are those of its prompt (`Family.share`).
            whole = replace(item, features={**features, **item.features}, has_arrays=True)
            self.worker.submit(whole, self._find_adapter(request.sequence.adapter_id))

    def drop_all(self) -> None:
        """All requests have ended."""
        self._asked.clear()
        self._users.clear()
        self._used.clear()
        self.store.unpin_all()

    def drop(self, request_id: int) -> None:
        """A request has ended: ask another one for features that it was asked for."""
        for item_hash in self._used.pop(request_id, ()):
            if users := self._users.get(item_hash):
                users.pop(request_id, None)
                if not users:
                    del self._users[item_hash]
            if self._asked.get(item_hash) != request_id:
                continue
            del self._asked[item_hash]
            for other in self.find_users(item_hash):
                if waiting := other.find_waiting(item_hash):
                    self._encode(other.request_id, waiting[0])
                    break

    def _encode(self, request_id: int, item_index: int) -> None:
        assert self.worker is not None, "a model without a tower was given media"
        sequence = self._live[request_id].sequence
        item = sequence.items[item_index]
        if self.worker.submit(item, self._find_adapter(sequence.adapter_id)):
            if item.has_arrays and item.is_reloadable:  # the worker holds them until the item is encoded
                sequence.drop_arrays(item_index)
                self._on_encoding(item.hash)
        elif item.hash not in self._asked:
            self._asked[item.hash] = request_id
            self._on_features_wanted(request_id, item_index)
