from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pairs import num_examples

from seesay.encoders.store import EmbeddingStore, Lookup


def make_embedding(rows: int = 4) -> torch.Tensor:
    return torch.zeros(rows, 8)  # 32 bytes per row


def put_new(store: EmbeddingStore, key: bytes, rows: int = 4) -> None:
    assert store.begin(key) is Lookup.MISSING
    store.put(key, make_embedding(rows))


def test_only_the_first_who_asks_is_told_to_encode() -> None:
    store = EmbeddingStore(1 << 20)
    assert [store.begin(b"a") for _ in range(3)] == [Lookup.MISSING, Lookup.IN_FLIGHT, Lookup.IN_FLIGHT]
    assert store.get(b"a") is None
    store.put(b"a", make_embedding())
    assert store.begin(b"a") is Lookup.READY
    assert store.get(b"a") is not None
    stats = store.stats()
    assert (stats.total_embedding_hits, stats.total_embedding_misses, stats.num_embeddings) == (3, 1, 1)


def test_who_cannot_encode_still_uses_what_is_there() -> None:
    store = EmbeddingStore(2 * 128)
    assert store.begin(b"a", can_encode=False) is Lookup.MISSING and b"a" not in store
    put_new(store, b"a")
    put_new(store, b"b")
    assert store.begin(b"a", can_encode=False) is Lookup.READY
    assert (store.stats().total_embedding_hits, store.stats().total_embedding_misses) == (1, 2)
    put_new(store, b"c")
    assert b"a" in store and b"b" not in store, "it was used"


def test_every_change_of_what_is_in_the_store_is_told() -> None:
    store, told = EmbeddingStore(128), list[bytes]()
    store.watch(told.append)

    def take() -> list[bytes]:
        taken = told.copy()
        told.clear()
        return taken

    assert store.begin(b"a") is Lookup.MISSING and take() == [b"a"]
    store.pin(b"a", 1)
    store.put(b"a", make_embedding())
    put_new(store, b"b")
    assert take() == [b"a", b"b", b"b"]
    store.unpin(b"a", 1)
    assert take() == [b"b"], "evicted"
    store.begin(b"c")
    store.fail(b"c")
    assert take() == [b"c", b"c"]
    store.pin(b"a", 1)
    store.clear()
    assert take() == [], "it leaves with its last pin"
    store.unpin(b"a", 1)
    assert take() == [b"a"] and b"a" not in store


def test_after_a_failure_the_next_one_encodes_again() -> None:
    store = EmbeddingStore(1 << 20)
    store.begin(b"a")
    store.fail(b"a")
    assert store.begin(b"a") is Lookup.MISSING


def test_the_least_recently_used_unpinned_embedding_leaves_first() -> None:
    store = EmbeddingStore(3 * 128)
    for key in (b"a", b"b", b"c"):
        put_new(store, key)
    store.get(b"a")
    put_new(store, b"d")
    assert store.get(b"b") is None
    assert store.get(b"a") is not None
    assert store.stats().total_embedding_evictions == 1


def test_a_pinned_embedding_stays_until_all_its_holders_let_go() -> None:
    store = EmbeddingStore(0)
    store.pin(b"a", (1, 0))
    store.pin(b"a", (2, 0))
    store.pin(b"a", (2, 0))
    put_new(store, b"a")
    assert store.stats().pinned_embedding_bytes == 128
    store.unpin(b"a", (1, 0))
    store.unpin(b"a", (1, 0))
    assert store.get(b"a") is not None
    store.unpin(b"a", (2, 0))
    assert store.get(b"a") is None, "a limit of 0 keeps nothing that is not pinned"
    assert store.stats().pinned_embedding_bytes == 0


def test_pinning_what_is_there_takes_it_out_of_the_limit() -> None:
    store = EmbeddingStore(128)
    put_new(store, b"a")
    store.pin(b"a", 1)
    put_new(store, b"b")
    assert store.get(b"a") is not None and store.get(b"b") is not None


def test_a_lent_embedding_counts_as_being_encoded_and_a_failure_takes_it_back() -> None:
    store = EmbeddingStore(1 << 20)
    for key, holders in ((b"pinned", [1]), (b"free", [])):
        for holder in holders:
            store.pin(key, holder)
        store.begin(key)
        store.lend(key, make_embedding())
        assert store.get(key) is not None and store.begin(key) is Lookup.IN_FLIGHT
        store.check_integrity()
        store.fail(key)
        assert store.get(key) is None and store.begin(key) is Lookup.MISSING
        store.check_integrity()
        store.lend(key, make_embedding())
        store.put(key, make_embedding())
        assert store.find(key) is Lookup.READY
    assert store.keys() == [b"pinned", b"free"] or store.keys() == [b"free", b"pinned"]


class StoreMachine(RuleBasedStateMachine):
    """Any order of calls keeps the accounts right; what is pinned and was put is there."""

    keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])

    def __init__(self) -> None:
        super().__init__()
        self.store = EmbeddingStore(300)
        self.pins: set[tuple[bytes, int]] = set()
        self.owed: set[bytes] = set()
        self.must_have: set[bytes] = set()

    @rule(key=keys)
    def ask(self, key: bytes) -> None:
        lookup = self.store.begin(key)
        if key in self.must_have - self.owed:
            assert lookup is Lookup.READY
        assert (lookup is Lookup.IN_FLIGHT) == (key in self.owed)
        if lookup is Lookup.MISSING:
            self.owed.add(key)

    @precondition(lambda self: self.owed)
    @rule(rows=st.integers(1, 6), data=st.data(), fails=st.booleans())
    def answer(self, rows: int, data: st.DataObject, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.owed)))
        self.owed.discard(key)
        if fails:
            self.store.fail(key)
            self.must_have.discard(key)
            return
        self.store.put(key, make_embedding(rows))
        if any(pinned == key for pinned, _ in self.pins):
            self.must_have.add(key)

    @precondition(lambda self: self.owed)
    @rule(rows=st.integers(1, 6), data=st.data())
    def lend(self, rows: int, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.owed)))
        self.store.lend(key, make_embedding(rows))
        assert self.store.find(key) is Lookup.IN_FLIGHT
        if any(pinned == key for pinned, _ in self.pins):
            self.must_have.add(key)

    @rule(key=keys, holder=st.integers(0, 2))
    def pin(self, key: bytes, holder: int) -> None:
        self.store.pin(key, holder)
        self.pins.add((key, holder))
        if self.store.get(key) is not None:
            self.must_have.add(key)

    @rule(key=keys, holder=st.integers(0, 2))
    def unpin(self, key: bytes, holder: int) -> None:
        self.store.unpin(key, holder)
        self.pins.discard((key, holder))
        if not any(pinned == key for pinned, _ in self.pins):
            self.must_have.discard(key)

    @invariant()
    def holds(self) -> None:
        self.store.check_integrity()
        assert all(self.store.get(key) is not None for key in self.must_have)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=num_examples(60), stateful_step_count=40, deadline=None)


def test_clearing_drops_what_nobody_pins_now_and_the_rest_later() -> None:
    store = EmbeddingStore(1 << 20)
    for key in (b"free", b"held", b"later"):
        assert store.begin(key) is Lookup.MISSING
    store.put(b"free", torch.zeros(2))
    store.pin(b"held", 1)
    store.put(b"held", torch.zeros(3))
    store.clear()
    store.put(b"later", torch.zeros(4))
    assert [store.find(key) for key in (b"free", b"held", b"later")] == [Lookup.MISSING, Lookup.READY, Lookup.READY]
    store.check_integrity()
    store.unpin(b"held", 1)
    assert store.find(b"held") is Lookup.MISSING and store.find(b"later") is Lookup.READY
    store.check_integrity()
    store.pin(b"later", 1)
    store.unpin(b"later", 1)
    assert store.find(b"later") is Lookup.READY
