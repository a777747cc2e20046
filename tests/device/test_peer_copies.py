"""Sums of two ranks by copies into each other's memory, with a CUDA driver whose memory is the host's and whose streams
are threads."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from thread_ranks import run_ranks

from seesay.device import peer_copies
from seesay.device.peer_copies import NUM_SLOTS, PeerCopies, try_open_peer_copies
from seesay.device.peer_memory import DriverError, PeerMemory
from seesay.device.ranks import OpenSum, Ranks

CPU = torch.device("cpu")
SLOT_BYTES = 256


class Driver:
    """Does at once what is queued. is_old: it does not know waits."""

    def __init__(self, *, is_old: bool = False) -> None:
        self._is_old = is_old

    def cuMemcpyDtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        return 0

    def cuStreamWriteValue32_v2(self, stream: Any, place: Any, word: Any, flags: Any) -> int:
        ctypes.c_uint32.from_address(place.value).value = word.value
        return 0

    def cuStreamWaitValue32_v2(self, stream: Any, place: Any, word: Any, flags: Any) -> int:
        """Wait until the word is reached, as numbers of 32 bits that go round."""
        assert flags.value == 0
        if self._is_old:
            return 801
        ends = time.monotonic() + 60
        while ctypes.c_int32(ctypes.c_uint32.from_address(place.value).value - word.value).value < 0:
            assert time.monotonic() < ends, "the peer sends nothing"
            time.sleep(0)
        return 0


@pytest.fixture(autouse=True)
def small_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_copies, "SLOT_BYTES", SLOT_BYTES)
    monkeypatch.setattr(peer_copies, "_WORDS", NUM_SLOTS * SLOT_BYTES)


@pytest.fixture
def memory() -> list[torch.Tensor]:
    return [torch.full((NUM_SLOTS * SLOT_BYTES + 64,), 0xFF, dtype=torch.uint8) for _ in range(2)]


def open_copies(memory: list[torch.Tensor], rank: int, driver: Driver | None = None) -> PeerCopies:
    return PeerCopies(PeerMemory(driver or Driver(), [each.data_ptr() for each in memory], rank), rank, CPU)


def draw(call: int, rank: int) -> torch.Tensor:
    """Return what a rank has in a call, in changing sizes and types."""
    generator = torch.Generator().manual_seed(2 * call + rank)
    shape = (1 + call % 4, 16) if call % 3 else (8, 8)
    return torch.randn(shape, generator=generator).to(torch.bfloat16 if call % 2 else torch.float32)


def test_both_ranks_get_the_same_sums(memory: list[torch.Tensor]) -> None:
    """Two are always under way, in an order that layers with pieces have."""

    def compute(ranks: Ranks) -> int:
        rank = ranks.place.rank
        copies, begun = open_copies(memory, rank), list[Callable[[], OpenSum]]()
        copies.check()
        for call in range(60):
            if len(begun) == 2:
                found, number = begun.pop(0)(), call - 2
                expected = draw(number, 0) + draw(number, 1)
                assert found.other is not None and torch.equal(found.own + found.other, expected)
                assert torch.equal(found.close(), expected)
            begun.append(copies.begin(draw(call, rank)))
        return len(begun)

    assert run_ranks(2, compute) == [2, 2]


def test_a_third_sum_cannot_be_begun(memory: list[torch.Tensor]) -> None:
    copies = open_copies(memory, 0)
    copies.begin(torch.ones(4))
    copies.begin(torch.ones(4))
    with pytest.raises(AssertionError, match="a third sum"):
        copies.begin(torch.ones(4))


def test_what_fits_no_slot_is_not_taken(memory: list[torch.Tensor]) -> None:
    copies = open_copies(memory, 0)
    assert copies.can_sum(torch.ones(SLOT_BYTES // 4)) and not copies.can_sum(torch.ones(SLOT_BYTES // 4 + 1))
    assert not copies.can_sum(torch.ones(4, 4).t()[:2]) and not copies.can_sum(torch.ones(0))


@pytest.mark.parametrize("old", [0, 1, 2])
def test_both_ranks_do_without_where_one_cannot_wait(
    old: int, memory: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rank `old`; 2: neither."""
    closed = list[int]()

    class Memory(PeerMemory):
        def close(self) -> None:
            closed.append(self._rank)

    def open_memory(ranks: Ranks, num_bytes: int, device: torch.device) -> PeerMemory:
        assert num_bytes > NUM_SLOTS * SLOT_BYTES
        return Memory(Driver(is_old=ranks.place.rank == old), [each.data_ptr() for each in memory], ranks.place.rank)

    monkeypatch.setattr(peer_copies, "try_open_peer_memory", open_memory)
    found = run_ranks(2, lambda ranks: try_open_peer_copies(ranks, CPU))
    assert all(each is not None for each in found) if old == 2 else found == [None, None]
    assert sorted(closed) == ([] if old == 2 else [0, 1])


def test_an_old_driver_is_found_out(memory: list[torch.Tensor]) -> None:
    with pytest.raises(DriverError, match="801"):
        open_copies(memory, 0, Driver(is_old=True)).check()
