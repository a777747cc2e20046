"""`Ranks` on GPUs that reach each other's memory: small tensors are summed by our own kernels, larger ones through
other `Ranks`, or, of two GPUs and beside other work, by copies. Importing this module imports no kernels.

If a rank dies, the kernels of the others wait for it. They give up after about half a minute (PATIENCE in
`kernels/all_reduce.py`): the process then gets a CUDA error and cannot use its GPU any more. A process can also be
killed while its kernel waits. After either, open the ranks anew in new processes: the buffers are out of step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from seesay.device.backends import has_kernels
from seesay.device.cuda import CUDA
from seesay.device.peer_copies import PeerCopies, try_open_peer_copies
from seesay.device.peer_memory import PeerMemory, try_open_peer_memory
from seesay.device.ranks import OpenSum, Ranks
from seesay.device.registry import accelerator_of

if TYPE_CHECKING:
    from seesay.kernels.all_reduce import PeerSums


class Limits(NamedTuple):
    """Up to which sizes each rank sends all to all others, and our own kernels sum at all."""

    one_shot_bytes: int
    bytes: int


LIMITS = {2: Limits(2 << 20, 4 << 20), 3: Limits(256 << 10, 1 << 20), 4: Limits(128 << 10, 1 << 20)}
"""By the number of ranks. Those of two are measured over NVLink (`benchmarks/all_reduce.py`), the others are not."""
LIMITS_OF_MANY = Limits(64 << 10, 1 << 20)
"""Those of more ranks."""


class PeerRanks:
    """Sums small tensors by `sums`; everything else goes through `ranks`, as does what the kernels do not take.

    Calls come from one stream, or from streams that wait for each other. memory: what `close` frees. copies: sums what
    `begin_sum` gets.
    """

    def __init__(
        self, ranks: Ranks, sums: PeerSums, memory: PeerMemory | None = None, copies: PeerCopies | None = None
    ) -> None:
        self.place, self.sums = ranks.place, sums
        self._ranks, self._memory, self._copies = ranks, memory, copies
        self._limits = LIMITS.get(self.place.size, LIMITS_OF_MANY)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        num_bytes = x.numel() * x.element_size()
        if num_bytes > self._limits.bytes or not self.sums.can_sum(x):
            return self._ranks.sum(x)
        x = x.contiguous()
        if num_bytes <= self._limits.one_shot_bytes:
            self.sums.sum_one_shot(x)
        else:
            self.sums.sum_two_shot(x)
        return x

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        if self._copies is not None and self._copies.can_sum(x):
            return self._copies.begin(x)
        return self._ranks.begin_sum(x)

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        is_small = x.numel() * x.element_size() <= self._limits.one_shot_bytes
        is_alike = x.dtype == residual.dtype and residual.is_contiguous()
        if is_small and is_alike and self.sums.can_sum(x):
            self.sums.sum_one_shot(x.contiguous(), add_to=residual)
        else:
            residual.add_(self.sum(x))

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return self._ranks.gather(x)

    def broadcast(self, x: torch.Tensor) -> None:
        self._ranks.broadcast(x)

    def close(self) -> None:
        """Free the memory that ranks share, once the kernels of all ranks have ended."""
        for part in (self._memory, self._copies):
            if part is not None:
                part.close()


def open_peer_ranks(ranks: Ranks, device: torch.device) -> Ranks:
    """Return `PeerRanks` if all ranks reach each other's GPUs and kernels run there; otherwise `ranks`.

    All ranks call this at the same time, and get the same kind.
    """
    if ranks.place.size == 1 or accelerator_of(device) is not CUDA or not has_kernels(device):
        return ranks
    from seesay.kernels.all_reduce import MAX_PROGRAMS, PeerSums, count_bytes

    memory = try_open_peer_memory(ranks, count_bytes(ranks.place.size), device)
    if memory is None:
        return ranks
    addresses = torch.tensor(memory.addresses, device=device)
    counters = torch.zeros(MAX_PROGRAMS, dtype=torch.int32, device=device)
    sums = PeerSums(addresses, counters, ranks.place.rank)
    return PeerRanks(ranks, sums, memory, try_open_peer_copies(ranks, device) if ranks.place.size == 2 else None)
