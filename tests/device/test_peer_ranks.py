"""Sums of ranks that reach each other's GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from seesay.device.peer_ranks import LIMITS, LIMITS_OF_MANY, PeerRanks, open_peer_ranks
from seesay.device.ranks import ALONE, OpenSum, Place, Ranks


class Calls:
    """Ranks, and their kernels, that note which of them sums up. The kernels take float32 and bfloat16."""

    def __init__(self, size: int) -> None:
        self.place = Place(1, size)
        self.names = list[str]()

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        self.names.append("sum")
        return x

    def begin_sum(self, x: torch.Tensor) -> Callable[[], OpenSum]:
        self.names.append("begin_sum")
        return lambda: OpenSum(x)

    def sum_add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        raise AssertionError("it is made of sums")

    def can_sum(self, x: torch.Tensor) -> bool:
        return x.dtype in (torch.float32, torch.bfloat16) and x.numel() > 0

    def sum_one_shot(self, x: torch.Tensor, *, add_to: torch.Tensor | None = None) -> None:
        assert x.is_contiguous()
        self.names.append("one_shot" if add_to is None else "one_shot, added")

    def sum_two_shot(self, x: torch.Tensor) -> None:
        self.names.append("two_shot")

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self.names.append("gather")
        return x

    def broadcast(self, x: torch.Tensor) -> None:
        self.names.append("broadcast")


def make_ranks(calls: Calls) -> PeerRanks:
    return PeerRanks(calls, cast(Any, calls))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_size_decides_who_sums(size: int) -> None:
    calls = Calls(size)
    ranks, limits = make_ranks(calls), LIMITS.get(size, LIMITS_OF_MANY)
    few, many = limits.one_shot_bytes // 2, limits.bytes // 2
    for num in (7, few, few + 1, many, many + 1, 0):
        ranks.sum(torch.empty(num, dtype=torch.bfloat16))
    assert calls.names == ["one_shot", "one_shot", "two_shot", "two_shot", "sum", "sum"]


def test_other_types_and_calls_go_through_other_ranks() -> None:
    calls = Calls(2)
    ranks = make_ranks(calls)
    ranks.sum(torch.ones(3, dtype=torch.int64))
    ranks.sum(torch.ones(3, dtype=torch.float64))
    ranks.gather(torch.ones(3))
    ranks.broadcast(torch.ones(3))
    transposed = ranks.sum(torch.ones(3, 2).t())
    assert calls.names == ["sum", "sum", "gather", "broadcast", "one_shot"] and transposed.is_contiguous()


def test_few_rows_are_added_by_the_kernel_that_sums_them() -> None:
    calls = Calls(2)
    ranks, many = make_ranks(calls), LIMITS[2].one_shot_bytes // 4 + 1
    for num, dtype in ((7, torch.float32), (7, torch.bfloat16), (many, torch.float32)):
        residual = torch.ones(num)
        ranks.sum_add(torch.ones(num, dtype=dtype), residual)
        assert residual[0] == (1 if calls.names[-1].endswith("added") else 2)
    ranks.begin_sum(torch.ones(3))()
    assert calls.names == ["one_shot, added", "one_shot", "two_shot", "begin_sum"]


def test_they_are_opened_on_gpus_alone() -> None:
    calls: Ranks = Calls(2)
    assert open_peer_ranks(calls, torch.device("cpu")) is calls
    calls.place = ALONE  # type: ignore[misc]
    assert open_peer_ranks(calls, torch.device("cuda")) is calls


@pytest.mark.gpu
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_sums_on_gpus_stay_right(num_ranks: int) -> None:
    """Of processes that share a GPU where there are fewer GPUs."""
    import all_reduce

    all_reduce.main(["--ranks", str(num_ranks), "--replays", "50", "--rows"])
