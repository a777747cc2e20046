"""Products of low rank for the rows of each slot, in torch and in Triton, against float64.

On a GPU the tests run as they are. Elsewhere they run in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, parametrize_grid, random, random_seeds, runs_here

from seesay.llm.ops import Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import LARGE_TILE, SMALL_TILE, count_tiles, make_spans, sort_by_slot
from seesay.llm.ops.torch_ops import TorchOps

pytestmark = MARKS


class Case(NamedTuple):
    """Factors in their slots, and those of each slot and source in float64, None where there are none."""

    factors: SlotFactors
    exact: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]
    num_inputs: int


def make_case(
    ranks: list[list[int]], sizes: list[int], num_inputs: int, dtype: torch.dtype, *, multiple: int = 16
) -> Case:
    """Return slots that hold NaN wherever no adapter has a number: nobody may read that."""
    max_rank = -(-max(max(row) for row in ranks) // multiple) * multiple
    bounds = (0, *np.cumsum(sizes).tolist())
    a = torch.full((len(ranks), len(sizes) * max_rank, num_inputs), torch.nan, dtype=dtype, device=DEVICE)
    b = torch.full((len(ranks), max_rank, bounds[-1]), torch.nan, dtype=dtype, device=DEVICE)
    exact = {}
    for slot, of_slot in enumerate(ranks):
        for source, rank in enumerate(of_slot):
            own_a = random(rank, num_inputs, dtype=dtype, seed=slot + 7 * source) * num_inputs**-0.5
            own_b = random(rank, sizes[source], dtype=dtype, seed=100 + slot + 7 * source)
            a[slot, source * max_rank : source * max_rank + rank] = own_a
            b[slot, :rank, bounds[source] : bounds[source + 1]] = own_b
            if rank:
                exact[slot, source] = own_a.double(), own_b.double()
    host_ranks = np.array(ranks, dtype=np.int32)
    return Case(
        SlotFactors(
            a=a,
            b=b,
            ranks=torch.from_numpy(host_ranks).to(DEVICE),
            host_ranks=host_ranks,
            bounds=bounds,
            spans=torch.from_numpy(make_spans(bounds)).to(DEVICE),
        ),
        exact,
        num_inputs,
    )


def make_rows(slots: npt.NDArray[np.int64], tile_rows: int | None = None, *, size: int | None = None) -> SlotRows:
    """Return the rows of tokens in these slots; with `size`, as a graph of so many has them."""
    found = sort_by_slot(slots, tile_rows=tile_rows)
    tokens, tiles = found.tokens, found.tiles
    if size is not None:
        tokens = np.pad(tokens, (0, size - len(tokens)))
        tiles = np.pad(tiles, ((0, count_tiles(size, int(slots.max()) + 1) - len(tiles)), (0, 0)))
    return SlotRows(
        tokens=torch.from_numpy(tokens).to(DEVICE),
        tiles=torch.from_numpy(tiles).to(DEVICE),
        tile_rows=found.tile_rows,
        runs=found.runs if size is None else None,
    )


def check(ops: Ops, case: Case, slots: npt.NDArray[np.int64], rows: SlotRows) -> None:
    factors = case.factors
    dtype = factors.a.dtype
    x = random(len(slots), case.num_inputs + 8, dtype=dtype, seed=1)[:, : case.num_inputs]
    y = random(len(slots), factors.bounds[-1], dtype=dtype, seed=2)
    exact = y.double().clone()
    for (slot, source), (a, b) in case.exact.items():
        tokens = torch.from_numpy(np.flatnonzero(slots == slot)).to(DEVICE)
        columns = slice(factors.bounds[source], factors.bounds[source + 1])
        exact[tokens, columns] += x[tokens].double() @ a.t() @ b
    before = y.clone()
    ops.add_low_rank(y, x, rows, factors)
    assert_close(y, exact, 2.0)
    untouched = slots < 0
    assert torch.equal(y[untouched], before[untouched])


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "torch":
        return TorchOps()
    from seesay.llm.ops.triton_ops import TritonOps

    return TritonOps()


@runs_here
@parametrize_grid(
    ranks=[[[16]], [[1, 0, 8], [4, 20, 0], [0, 0, 3]], [[8, 0, 20]] * 3, [[64], [128]]],
    num_tokens=[1, 2, 17, 70],
    num_inputs=[64, 100, 1100],
    dtype=DTYPES,
)
def test_each_token_gets_the_product_of_its_slot(
    ops: Ops, ranks: list[list[int]], num_tokens: int, num_inputs: int, dtype: torch.dtype
) -> None:
    case = make_case(ranks, [96, 130, 7][: len(ranks[0])], num_inputs, dtype)
    slots = np.random.default_rng(num_tokens).integers(-1, len(ranks), num_tokens)
    check(ops, case, slots, make_rows(slots))


@runs_here
@pytest.mark.parametrize("rank", [1, 15, 16, 17, 32, 64, 100, 256])
def test_every_rank(ops: Ops, rank: int) -> None:
    case = make_case([[rank, 0], [max(1, rank // 2), rank]], [40, 24], 72, torch.float16)
    slots = np.array([1, 0, -1, 1, 0])
    check(ops, case, slots, make_rows(slots))


@runs_here
@pytest.mark.parametrize("tile_rows", [SMALL_TILE, LARGE_TILE])
@pytest.mark.parametrize("size", [6, 8, 33])
def test_rows_that_only_the_device_knows(ops: Ops, tile_rows: int, size: int) -> None:
    """A graph's rows have tiles without tokens, which read and write nothing."""
    case = make_case([[5], [16]], [50], 48, torch.float32)
    slots = np.array([1, -1, 0, 1, 1, 0])
    check(ops, case, slots, make_rows(slots, tile_rows, size=size))


@runs_here
def test_no_token_has_an_adapter(ops: Ops) -> None:
    case = make_case([[16]], [32], 32, torch.float32)
    slots = np.full(3, -1)
    check(ops, case, slots, make_rows(slots))


@runs_here
@random_seeds
def test_random_shapes(ops: Ops, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_slots, num_sources = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    ranks = (rng.integers(1, 257, (num_slots, num_sources)) * (rng.random((num_slots, num_sources)) < 0.7)).tolist()
    ranks[0][0] = max(1, ranks[0][0])
    sizes = rng.integers(1, 300, num_sources).tolist()
    case = make_case(ranks, sizes, int(rng.integers(1, 1500)), [torch.float16, torch.float32][seed % 2])
    slots = rng.integers(-1, num_slots, int(rng.integers(1, 700)))
    check(ops, case, slots, make_rows(slots))


def test_tokens_are_sorted_into_tiles_of_one_slot() -> None:
    slots = np.array([2, -1, 0, 2, 2, 0, -1, 2])
    found = sort_by_slot(slots, tile_rows=3)
    assert found.tokens.tolist() == [2, 5, 0, 3, 4, 7]
    assert found.tiles.tolist() == [[0, 0, 2], [2, 2, 3], [2, 5, 1]]
    assert found.runs == ((0, 0, 2), (2, 2, 6))
    assert sort_by_slot(np.array([-1])).tiles.shape == (0, 3)


@pytest.mark.parametrize("num_slots", [1, 3, 40])
def test_no_step_has_more_tiles_than_are_counted(num_slots: int) -> None:
    rng = np.random.default_rng(num_slots)
    for num_tokens in (1, 5, 16, 17, 33, 100):
        for _ in range(30):
            slots = rng.choice(num_slots, num_tokens, p=rng.dirichlet(np.full(num_slots, 0.3)))
            assert len(sort_by_slot(slots, tile_rows=SMALL_TILE).tiles) <= count_tiles(num_tokens, num_slots)
