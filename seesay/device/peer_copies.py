"""Sums of large tensors over two GPUs that reach each other's memory: the copy engine of each brings its summand to the
other, beside what is computed. Multiprocessors only add.

Each GPU has a few slots in the memory of the other, which are filled in turn, and a word for each: the number of the
call whose summand has arrived there. A copy is followed by a write of the word, in the order of a stream; who needs the
summand lets its stream wait for the word. Nobody says that a slot is free again: two calls at most are under way, so
when a rank begins call n, it has got call n - 2 of its peer, which had read call n - 4 by then. These two have streams
of their own, as the word of one would wait for the copy of the other.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import torch

from seesay.device.peer_memory import DriverError, PeerMemory, call_driver, try_open_peer_memory
from seesay.device.ranks import OpenSum, Ranks
from seesay.device.streams import current_stream, hold_stream, make_stream, on_device, record_event

logger = logging.getLogger("seesay")

NUM_SLOTS = 4
SLOT_BYTES = 64 << 20
"""A piece of 4,096 tokens of 8,192 numbers of 2 bytes."""
NUM_BYTES = NUM_SLOTS * SLOT_BYTES + 64
"""Of memory on each GPU."""
_WORDS = NUM_SLOTS * SLOT_BYTES
"""Where the words are, of 4 bytes; at first they are -1."""
_MOST_BEGUN = 2
_REACHES = 0
"""Waits until the word is not less than a value."""


class PeerCopies:
    """One of two ranks, which make the same calls in the same order. memory: `NUM_BYTES` of 0xFF on each GPU."""

    def __init__(self, memory: PeerMemory, rank: int, device: torch.device) -> None:
        self._driver, self._memory, self._device = memory.driver, memory, device
        self._own, self._peer = memory.addresses[rank], memory.addresses[1 - rank]
        self._slots = _as_bytes(self._own, _WORDS, device).view(NUM_SLOTS, SLOT_BYTES)
        self._streams = [make_stream(device, is_urgent=True) for _ in range(_MOST_BEGUN)]
        self._num_begun = self._num_finished = 0

    def check(self) -> None:
        """Write a word of the peer as it is. Raises `DriverError` where the driver lacks such writes or waits."""
        self._write(0, -1, self._streams[0])
        self._wait(0, -1, self._streams[0])

    def can_sum(self, x: torch.Tensor) -> bool:
        """Return whether `begin` takes a tensor of this form and size."""
        return x.is_contiguous() and 0 < x.numel() * x.element_size() <= SLOT_BYTES

    def begin(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        """See `Ranks.begin_sum`."""
        assert self._num_begun - self._num_finished < _MOST_BEGUN, "a third sum is begun before the first is waited for"
        number, num_bytes = self._num_begun, x.numel() * x.element_size()
        self._num_begun += 1
        slot, stream = number % NUM_SLOTS, self._streams[number % _MOST_BEGUN]
        here = current_stream(self._device)
        if here is not None and stream is not None:
            hold_stream(stream, record_event(here))
        self._copy(self._peer + slot * SLOT_BYTES, x.data_ptr(), num_bytes, stream)
        self._write(slot, number, stream)
        sent = None if stream is None else record_event(stream)

        def finish() -> OpenSum:
            self._num_finished += 1
            here = current_stream(self._device)
            if here is not None:
                hold_stream(here, sent)
            self._wait(slot, number, here)
            return OpenSum(x, self._slots[slot, :num_bytes].view(x.dtype).view(x.shape))

        return finish

    def close(self) -> None:
        """Free the memory, once neither GPU copies."""
        self._memory.close()

    def _copy(self, target: int, source: int, num_bytes: int, stream: torch.Stream | None) -> None:
        call_driver(
            self._driver.cuMemcpyDtoDAsync_v2,
            ctypes.c_uint64(target),
            ctypes.c_uint64(source),
            ctypes.c_size_t(num_bytes),
            _handle(stream),
        )

    def _write(self, slot: int, number: int, stream: torch.Stream | None) -> None:
        """Let a slot's word at the peer be `number` after what the stream has copied."""
        word = ctypes.c_uint32(number)
        place = ctypes.c_uint64(self._peer + _WORDS + 4 * slot)
        call_driver(self._driver.cuStreamWriteValue32_v2, _handle(stream), place, word, ctypes.c_uint(0))

    def _wait(self, slot: int, number: int, stream: torch.Stream | None) -> None:
        """Let a stream wait until a slot's own word is `number` or more."""
        word = ctypes.c_uint32(number)
        place = ctypes.c_uint64(self._own + _WORDS + 4 * slot)
        call_driver(self._driver.cuStreamWaitValue32_v2, _handle(stream), place, word, ctypes.c_uint(_REACHES))


def _handle(stream: Any) -> ctypes.c_void_p:
    """Return a stream as the driver knows it."""
    return ctypes.c_void_p(0 if stream is None else stream.cuda_stream)


class _Span:
    """Bytes at an address of a GPU, as torch takes them."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def _as_bytes(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """Return the memory at an address, uint8 [num_bytes]."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)
    return torch.as_tensor(_Span(address, num_bytes), device=device)


def try_open_peer_copies(ranks: Ranks, device: torch.device) -> PeerCopies | None:
    """Return the copies, or None on both ranks where one of them lacks memory, or a driver that makes streams wait for
    a word."""
    memory = try_open_peer_memory(ranks, NUM_BYTES, device)
    if memory is None:
        return None
    with on_device(device):
        copies = PeerCopies(memory, ranks.place.rank, device)
        try:
            copies.check()
            has_failed = False
        except DriverError as error:
            logger.warning("large tensors are not summed by copies: %s", error)
            has_failed = True
    if not int(ranks.sum(torch.tensor([int(has_failed)], device=device))):
        return copies
    copies.close()
    return None
