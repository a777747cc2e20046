"""Sums over ranks. Without a GPU, a process per rank runs Triton's interpreter, and the ranks' buffers are memory that
the processes share."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.spawn import spawn
from triton_cases import HAS_TRITON, IS_INTERPRETED

if HAS_TRITON:
    from seesay.kernels import all_reduce

interpreted = pytest.mark.skipif(not (HAS_TRITON and IS_INTERPRETED), reason="needs the interpreter")
SIZE = 3
SEVERAL = 2100
"""Elements of two programs, of which the second has a part."""


def make_summands(num_ranks: int, *shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return what each rank has, [ranks, …], with values that are not numbers."""
    x = torch.randn(num_ranks, *shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    x.view(num_ranks, -1)[0, :3] = torch.tensor([float("inf"), float("nan"), -0.0])
    x.view(num_ranks, -1)[1, :3] = torch.tensor([1.0, 1.0, -0.0])
    # These bits mean "not here yet".
    x.view(torch.int32 if dtype.itemsize == 4 else torch.int16).view(num_ranks, -1)[:, 5] = -1
    return x


def sum_in_order(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of x [ranks, …] in float32, rank by rank, rounded once."""
    total = x[0].float()
    for each in x[1:]:
        total = total + each.float()
    return total.to(x.dtype)


def make_sums(memory: list[torch.Tensor], rank: int, patience: int = 100_000) -> all_reduce.PeerSums:
    addresses = torch.tensor([each.data_ptr() for each in memory])
    counters = torch.zeros(all_reduce.MAX_PROGRAMS, dtype=torch.int32)
    return all_reduce.PeerSums(addresses, counters, rank, patience)


def make_memory(size: int) -> list[torch.Tensor]:
    memory = [torch.full((all_reduce.count_bytes(size),), 0xFF, dtype=torch.uint8) for _ in range(size)]
    for each in memory:
        each.share_memory_()  # type: ignore[no-untyped-call]
    return memory


def take_turns(rank: int, memory: list[torch.Tensor]) -> None:
    """Sum up tensors of changing sizes and types by changing kernels, as rank `rank`."""
    torch.set_num_threads(1)
    sums = make_sums(memory, rank)
    for seed, (num, dtype) in enumerate([(7, torch.float32), (SEVERAL, torch.float16), (40, torch.float16)]):
        for sum_up in (sums.sum_one_shot, sums.sum_two_shot):
            x = make_summands(SIZE, num, dtype=dtype, seed=seed)
            own = x[rank].clone()
            sum_up(own)
            torch.testing.assert_close(own, sum_in_order(x), rtol=0, atol=0, equal_nan=True)
            assert torch.equal(own.signbit() & ~own.isnan(), sum_in_order(x).signbit() & ~own.isnan())
            if sum_up == sums.sum_one_shot:
                before = torch.randn(num, generator=torch.Generator().manual_seed(seed)).to(dtype)
                added = before.clone()
                sums.sum_one_shot(x[rank].clone(), add_to=added)
                expected = (before.float() + sum_in_order(x).float()).to(dtype)
                torch.testing.assert_close(added, expected, rtol=0, atol=0, equal_nan=True)


@interpreted
def test_ranks_sum_up_in_order() -> None:
    memory = make_memory(SIZE)
    spawn(take_turns, args=(memory,), nprocs=SIZE)  # type: ignore[no-untyped-call]
    assert all(bool((each == 0xFF).all()) for each in memory)  # what arrived was read, and is empty again


@interpreted
def test_a_rank_whose_peer_does_not_answer_gives_up() -> None:
    """The interpreter does not know the instruction that ends a process."""
    memory = make_memory(2)
    with pytest.raises(Exception, match="inline_asm"):
        make_sums(memory, rank=0, patience=3).sum_one_shot(torch.ones(4))
