"""The index from embeddings to the requests that need them, with stand-ins for requests and the worker."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seesay.config import VisionConfig
from seesay.encoders.worker import EncodeTiming
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.token_messages import TokenRequest
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import EncodeJob
from seesay.llm.scheduling.embedding_demand import EmbeddingRef
from seesay.llm.scheduling.sequence import EmbeddingState
from seesay.values import EngineStats, MediaItem, Modality, MultimodalInput

TIMING = EncodeTiming()


class Request:
    """Waits for one item, and counts how often it is asked about it."""

    def __init__(self, request_id: int, item_hash: bytes, *, has_arrays: bool = True) -> None:
        item = SimpleNamespace(hash=item_hash, has_arrays=has_arrays, is_reloadable=False)
        self.request_id = request_id
        self.sequence = SimpleNamespace(items=(item,), adapter_id=0)
        self.encoded: list[bytes] = []
        self.lent: set[bytes] = set()
        self.num_looks = 0

    def find_waiting(self, item_hash: bytes) -> list[int]:
        self.num_looks += 1
        return [0] if self.sequence.items[0].hash == item_hash else []

    def find_lent(self, item_hash: bytes) -> list[int]:
        self.num_looks += 1
        return [0] if item_hash in self.lent else []

    def lend(self, item_hash: bytes) -> None:
        self.num_looks += 1
        self.lent.add(item_hash)

    def add_encoding(self, item_hash: bytes, timing: EncodeTiming) -> None:
        self.num_looks += 1
        self.encoded.append(item_hash)


class Live(dict[int, Any]):
    """Nobody may walk over all live requests."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all live requests are scanned")

    values = items = keys = __iter__  # type: ignore[assignment]


def make_supply(requests: list[Request]) -> tuple[EmbeddingSupply, Live, list[int]]:
    live = Live({request.request_id: request for request in requests})
    pacer: Any = None
    supply = EmbeddingSupply(None, VisionConfig(), live, embedding_size=4, pacer=pacer)
    asked: list[int] = []
    supply.start(
        on_ready=lambda *_: None,
        on_failed=lambda *_: None,
        on_launched=lambda _hash: None,
        on_features_wanted=lambda request_id, _index: asked.append(request_id),
    )
    worker: Any = SimpleNamespace(submit=lambda item, adapter: item.has_arrays)
    supply.worker = worker
    return supply, live, asked


def start(supply: EmbeddingSupply, requests: list[Request]) -> None:
    supply.start_encoding(EncodeJob(each.request_id, 0, each.sequence.items[0].hash) for each in requests)


def finish(supply: EmbeddingSupply, item_hash: bytes) -> None:
    supply.store.begin(item_hash)
    supply.store.put(item_hash, torch.zeros(1, 4))


def test_an_encoded_item_is_told_only_to_the_requests_that_wait_for_it() -> None:
    requests = [Request(index, b"%d" % (index // 2)) for index in range(200)]
    supply, _, _ = make_supply(requests)
    start(supply, requests)
    finish(supply, b"7")
    assert supply.note_encoded(b"7", TIMING)
    assert [each.request_id for each in requests if each.encoded] == [14, 15]
    assert sum(each.num_looks for each in requests) == 2
    assert supply.find_users(b"7") == []


def test_a_lent_item_is_lent_to_those_that_wait_and_stays_theirs_until_it_is_stored() -> None:
    requests = [Request(index, b"%d" % (index % 50)) for index in range(100)]
    supply, _, _ = make_supply(requests)
    start(supply, requests)
    supply.store.begin(b"3")
    supply.store.lend(b"3", torch.zeros(1, 4))
    assert supply.note_launched(b"3")
    assert [each.request_id for each in requests if each.lent] == [3, 53]
    assert not supply.note_encoded(b"3", TIMING), "not stored yet"
    assert [each.request_id for each in requests if each.encoded] == [3, 53], "they hear of its cost now"
    assert [each.request_id for each in supply.find_users(b"3")] == [3, 53]


def test_the_next_request_that_waits_is_asked_for_features_and_nobody_else() -> None:
    requests = [Request(index, b"%d" % (index % 50), has_arrays=False) for index in range(150)]
    supply, live, asked = make_supply(requests)
    start(supply, requests)
    assert asked == list(range(50)), "one request for each item"
    for ended in (3, 103, 53):
        del live[ended]
        supply.drop(ended)
        assert asked[50:] == [53], ended
    assert sum(each.num_looks for each in requests) == 1
    assert supply.find_users(b"3") == [] and b"3" not in supply._users, "nothing is left of it"


def test_media_are_expected_until_they_had_their_chance() -> None:
    """A request that has come is expected until its media are asked for, so that they make one call with the others."""
    supply, _, _ = make_supply([])
    supply.expect([1, 2, 3])
    supply.forget([3])
    supply.note_arrival(1)
    assert supply._expected == {1, 2}
    supply.start_encoding([])
    assert supply._expected == {2}
    supply.expect([1])
    supply.start_encoding([])
    assert supply._expected == {1, 2}, "it is expected again"


class Tower:
    """What a worker needs of a tower that encodes nothing."""

    device = torch.device("cpu")


def test_a_supply_that_is_closed_holds_no_tower() -> None:
    tower: Any = Tower()
    held = weakref.ref(tower)
    pacer: Any = None
    supply = EmbeddingSupply(tower, VisionConfig(), {}, embedding_size=4, pacer=pacer)
    supply.start(
        on_ready=lambda *_: None,
        on_failed=lambda *_: None,
        on_launched=lambda _hash: None,
        on_features_wanted=lambda *_: None,
    )
    del tower
    assert held() is not None
    supply.close()
    gc.collect()
    assert held() is None


# --- items as requests have them --------------------------------------------------------------------------------------


class Worker:
    """Encodes nothing: notes the items that it is given, and takes those with arrays, or that are in the store."""

    def __init__(self, supply: EmbeddingSupply) -> None:
        self._supply = supply
        self.taken: list[tuple[MediaItem, Any]] = []
        self.calls: list[str] = []

    def submit(self, item: MediaItem, adapter: Any) -> bool:
        if item.has_arrays or item.hash in self._supply.store:
            self.taken.append((item, adapter))
            return True
        return False

    def drain(self) -> None:
        self.calls.append("drain")

    def close(self) -> None:
        self.calls.append("close")

    def stats(self) -> EngineStats:
        return EngineStats(total_encoder_calls=3)


class Supplied:
    """A supply, its worker, and what it asks for: features by request and index, arrays by the hash of their item."""

    def __init__(self) -> None:
        self.live: dict[int, LiveRequest] = {}
        self.asked: list[tuple[int, int]] = []
        self.encoding: list[bytes] = []
        pacer: Any = None
        self.supply = EmbeddingSupply(
            None, VisionConfig(), self.live, embedding_size=4, pacer=pacer,
            find_adapter=lambda adapter_id: f"adapter {adapter_id}",  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        self.supply.start(
            on_ready=lambda *_: None,
            on_failed=lambda *_: None,
            on_launched=lambda _hash: None,
            on_features_wanted=lambda request_id, index: self.asked.append((request_id, index)),
            on_encoding=self.encoding.append,
        )
        self.worker = self.supply.worker = Worker(self.supply)  # type: ignore[assignment]

    def begin(self, request_id: int, *names: bytes, indexes: tuple[int, ...] | None = None, **options: Any) -> None:
        """Let a request with these items wait for some of them, by default all."""
        items = tuple(
            MediaItem(
                modality=Modality.IMAGE, span=(place, place + 1), slots=np.array([place]), hash=name,
                features={"pixels": np.ones(3), "size": 7}, num_units=1, is_reloadable=options.get("reloads", False),
            )
            for place, name in enumerate(names, 1)
        )  # fmt: skip
        if not options.get("has_arrays", True):
            items = tuple(item.without_arrays() for item in items)
        prompt = MultimodalInput(token_ids=np.arange(9), positions=np.arange(9), next_position=9, items=items)
        request = TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(), adapter_id=5)
        live = self.live[request_id] = LiveRequest.make(request)
        for index in range(len(names)) if indexes is None else indexes:
            live.sequence.item_states[index] = EmbeddingState.REQUESTED
            self.supply.start_encoding([EncodeJob(request_id, index, names[index])])

    def end(self, request_id: int) -> None:
        del self.live[request_id]
        self.supply.drop(request_id)


@pytest.fixture
def supplied() -> Supplied:
    return Supplied()


def test_arrays_that_can_be_made_again_are_held_by_the_encoder_alone(supplied: Supplied) -> None:
    supplied.begin(1, b"a", b"b", reloads=True, indexes=(1,))
    [(item, adapter)] = supplied.worker.taken
    assert item.hash == b"b" and adapter == "adapter 5" and supplied.encoding == [b"b"]
    assert [each.has_arrays for each in supplied.live[1].sequence.items] == [True, False]
    supplied.begin(2, b"c")
    assert supplied.encoding == [b"b"] and supplied.live[2].sequence.items[0].has_arrays, "nobody can make these again"
    finish(supplied.supply, b"d")
    supplied.begin(3, b"d", reloads=True, has_arrays=False)
    assert supplied.encoding == [b"b"] and not supplied.asked, "its embedding is there"


def test_features_that_come_are_encoded_beside_what_the_item_says(supplied: Supplied) -> None:
    supplied.begin(1, b"a", b"b", has_arrays=False, indexes=(1,))
    assert supplied.asked == [(1, 1)] and not supplied.worker.taken
    supplied.supply.take_features(1, 1, {"pixels": np.zeros(3), "size": 8})
    [(item, adapter)] = supplied.worker.taken
    assert item.has_arrays and item.features["size"] == 7 and not item.features["pixels"].any()
    assert adapter == "adapter 5"


def test_features_are_asked_for_once_at_a_time(supplied: Supplied) -> None:
    supplied.begin(1, b"a", has_arrays=False)
    supplied.begin(2, b"a", has_arrays=False)
    assert supplied.asked == [(1, 0)]
    supplied.supply.take_features(2, 0, {"pixels": np.zeros(3)})
    supplied.begin(3, b"a", has_arrays=False)
    assert supplied.asked == [(1, 0)], "the answer of another one is not what it waits for"
    supplied.supply.take_features(1, 0, {"pixels": np.zeros(3)})
    supplied.begin(4, b"a", has_arrays=False)
    assert supplied.asked == [(1, 0), (4, 0)], "the embedding is gone again"


def test_features_that_nobody_waits_for_are_not_encoded(supplied: Supplied) -> None:
    supplied.begin(1, b"a", b"b", has_arrays=False)
    assert supplied.asked == [(1, 0), (1, 1)]
    supplied.live[1].sequence.item_states[1] = EmbeddingState.READY
    supplied.supply.take_features(1, 1, {"pixels": np.zeros(3)})
    assert not supplied.worker.taken
    supplied.supply.worker = None
    supplied.supply.take_features(1, 0, {"pixels": np.zeros(3)})
    assert not supplied.worker.taken


def test_one_that_ends_leaves_others_what_they_asked_for(supplied: Supplied) -> None:
    """Of several that wait for an item one is asked. Those that wait for it no more, or have ended, are passed over."""
    supplied.begin(1, b"a", b"b", has_arrays=False)
    for request_id in (2, 3, 4):
        supplied.begin(request_id, b"b", b"a", has_arrays=False)
    supplied.live[2].sequence.item_states[1] = EmbeddingState.READY
    supplied.end(3)
    assert supplied.asked == [(1, 0), (1, 1)], "nobody asked that one"
    supplied.end(1)
    assert sorted(supplied.asked[2:]) == [(2, 0), (4, 1)]
    assert [each.request_id for each in supplied.supply.find_users(b"a")] == [2, 4]


def test_items_are_pinned_until_their_sequences_release_them(supplied: Supplied) -> None:
    supplied.begin(1, b"a", b"b")
    supplied.begin(2, b"a")
    finish(supplied.supply, b"a")
    finish(supplied.supply, b"b")
    store = supplied.supply.store
    assert supplied.supply.stats().pinned_embedding_bytes == 32
    supplied.supply.release([EmbeddingRef(1, 0, b"a"), EmbeddingRef(1, 1, b"b")])
    assert supplied.supply.stats().pinned_embedding_bytes == 16
    store.clear()
    assert b"a" in store and b"b" not in store
    supplied.supply.drop_all()
    assert b"a" not in store and supplied.supply.stats().pinned_embedding_bytes == 0


def test_nothing_is_left_when_all_requests_have_ended(supplied: Supplied) -> None:
    supplied.begin(1, b"a", has_arrays=False)
    supplied.supply.drop_all()
    assert supplied.supply.find_users(b"a") == []
    supplied.begin(1, b"a", has_arrays=False)
    assert supplied.asked == [(1, 0), (1, 0)], "it is asked for again"
    supplied.supply.drop_all()
    del supplied.live[1]
    supplied.begin(2, b"c")
    supplied.supply.drop(1)
    assert supplied.asked == [(1, 0), (1, 0)]


def test_an_item_can_be_used_while_it_is_computed_or_not_at_all(supplied: Supplied) -> None:
    supplied.begin(1, b"a")
    supplied.supply.store.begin(b"a")
    assert not supplied.supply.note_launched(b"a"), "nothing is lent"
    supplied.supply.store.lend(b"a", torch.zeros(1, 4))
    assert supplied.supply.note_launched(b"a") and supplied.live[1].find_lent(b"a") == [0]
    supplied.supply.store.put(b"a", torch.zeros(1, 4))
    assert not supplied.supply.note_launched(b"a"), "it is over"
    assert supplied.supply.note_encoded(b"a", EncodeTiming(encode_s=2.0, started_s=1.0))
    assert supplied.live[1].encode_s == 2.0 and supplied.live[1].find_lent(b"a") == []


def test_what_was_not_encoded_costs_nobody_anything(supplied: Supplied) -> None:
    supplied.begin(1, b"a")
    assert not supplied.supply.note_encoded(b"a", EncodeTiming(encode_s=2.0, started_s=1.0))
    assert supplied.live[1].encode_s == 0 and [*supplied.supply.find_users(b"a")] == [supplied.live[1]]


def test_the_worker_is_counted_waited_for_and_ended(supplied: Supplied) -> None:
    finish(supplied.supply, b"a")
    stats = supplied.supply.stats()
    assert (stats.total_encoder_calls, stats.num_embeddings) == (3, 1)
    supplied.supply.drain()
    assert supplied.worker.calls == ["drain"]
    supplied.supply.close()
    assert supplied.worker.calls == ["drain", "close"] and b"a" not in supplied.supply.store


def test_a_model_without_a_tower_has_neither(supplied: Supplied) -> None:
    supplied.supply.worker = None
    finish(supplied.supply, b"a")
    stats = supplied.supply.stats()
    assert (stats.total_encoder_calls, stats.num_embeddings) == (0, 1)
    supplied.supply.drain()
    supplied.supply.close()
    assert b"a" not in supplied.supply.store
