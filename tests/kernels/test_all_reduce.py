"""Sums over ranks. Without a GPU, a process per rank runs Triton's interpreter, and the ranks' buffers are memory that
the processes share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked_ranks import run_forked_ranks
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


def make_memory(size: int, folder: Path) -> list[torch.Tensor]:
    """Return the buffers of `size` ranks, which are files of the folder, and empty."""
    return [each.fill_(0xFF) for each in map_memory(size, folder)]


def map_memory(size: int, folder: Path) -> list[torch.Tensor]:
    num_bytes = all_reduce.count_bytes(size)
    paths = [str(folder / str(rank)) for rank in range(size)]
    return [torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8) for path in paths]


def take_turns(number: str, folder: str) -> None:
    """Sum up tensors of changing sizes and types by changing kernels, as rank `rank`."""
    rank = int(number)
    torch.set_num_threads(1)
    memory = map_memory(SIZE, Path(folder))  # as long as `sums`, which has addresses alone
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
def test_ranks_sum_up_in_order(tmp_path: Path) -> None:
    memory = make_memory(SIZE, tmp_path)
    run_forked_ranks(take_turns, SIZE, str(tmp_path))
    assert all(bool((each == 0xFF).all()) for each in memory)  # what arrived was read, and is empty again


@interpreted
def test_a_rank_whose_peer_does_not_answer_gives_up(tmp_path: Path) -> None:
    """The interpreter does not know the instruction that ends a process."""
    memory = make_memory(2, tmp_path)
    with pytest.raises(Exception, match="inline_asm"):
        make_sums(memory, rank=0, patience=3).sum_one_shot(torch.ones(4))
