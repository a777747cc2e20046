"""The index from embeddings to the requests that need them, with stand-ins for requests and the worker."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from seesay.config import VisionConfig
from seesay.encoders.worker import EncodeTiming
from seesay.engine.core.embedding_supply import EmbeddingSupply
from seesay.llm.plans.step_plan import EncodeJob

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
