"""Brings packs from the drawing workers to the device, ahead of the training loop."""

from __future__ import annotations

import queue
import random
import threading

import torch
from torch import Tensor

from demo_training import packing as pk

POOL_PACKS = 1024
"""Most packs that are kept on the device to be shown again: 10 GiB."""


class Feeder:
    """Copies packs to the device from pinned memory, on a stream of its own.

    reuse: how often a pack is shown on average, at most. Above 1, a step takes the packs that have been drawn, and
    earlier ones for the rest, so that it waits for the workers only after as many repetitions.
    """

    def __init__(
        self,
        stream: pk.PackStream,
        *,
        packs_per_step: int,
        device: torch.device,
        reuse: float = 1.0,
        pool_packs: int = POOL_PACKS,
    ) -> None:
        self._stream = stream
        self._memory = torch.frombuffer(stream.memory, dtype=torch.uint8).view(-1, pk.PACK_BYTES)
        self._is_cuda = device.type == "cuda"
        if self._is_cuda:
            torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), self._memory.numel(), 0)  # type: ignore[no-untyped-call]
            self._side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._reuse = reuse
        self._pool = torch.empty(pool_packs if reuse > 1 else 0, pk.PACK_BYTES, dtype=torch.uint8, device=device)
        self._rng = random.Random(0)
        self.num_drawn = self.num_shown = 0
        self._buffers: queue.Queue[Tensor] = queue.Queue()
        for _ in range(3):
            self._buffers.put(torch.empty(packs_per_step, pk.PACK_BYTES, dtype=torch.uint8, device=device))
        self._filled: queue.Queue[Tensor | Exception] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                self._fill(self._buffers.get())
        except Exception as error:  # handed to the training loop, which raises it
            self._filled.put(error)

    def _fill(self, buffer: Tensor) -> None:
        num_drawn = self.num_drawn
        if self._is_cuda:
            with torch.cuda.stream(self._side_stream):
                self._copy_rows(buffer)
            self._side_stream.synchronize()
        else:
            self._copy_rows(buffer)
        for _ in range(self.num_drawn - num_drawn):
            self._stream.release()
        self._filled.put(buffer)

    def _copy_rows(self, buffer: Tensor) -> None:
        for row in buffer:
            may_repeat = self.num_shown + 1 <= self._reuse * self.num_drawn
            slot = self._stream.try_next() if may_repeat else self._stream.wait_next()
            self.num_shown += 1
            if slot is None:
                row.copy_(self._pool[self._rng.randrange(min(self.num_drawn, len(self._pool)))])
                continue
            row.copy_(self._memory[slot], non_blocking=True)
            if len(self._pool):
                self._pool[self.num_drawn % len(self._pool)].copy_(row)
            self.num_drawn += 1

    @property
    def is_empty(self) -> bool:
        """Return whether the next `take` has to wait for the drawing workers."""
        return self._filled.empty()

    def take(self) -> Tensor:
        """The next packs, uint8 [K, PACK_BYTES]; give them back once the device has read them."""
        buffer = self._filled.get()
        if isinstance(buffer, Exception):
            raise buffer
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        if self._is_cuda:
            torch.cuda.current_stream().synchronize()
        self._buffers.put(buffer)
