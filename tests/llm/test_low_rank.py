"""Products of low rank for the rows of each slot, in torch and in Triton, against float64.

On a GPU the tests run as they are. Elsewhere they run in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton_cases import DEVICE, DTYPES, MARKS, assert_close, parametrize_grid, random, random_seeds, runs_here

from seesay.llm.ops import Activation, Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import (
    LARGE_TILE,
    SMALL_TILE,
    JoinedFactors,
    SlotOutputs,
    count_tiles,
    sort_by_slot,
    sort_there,
)
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
            outputs=SlotOutputs.make(bounds, torch.device(DEVICE)),
        ),
        exact,
        num_inputs,
    )


def make_rows(slots: npt.NDArray[np.int64], tile_rows: int | None = None, *, size: int | None = None) -> SlotRows:
    """Return the rows of tokens in these slots; with `size`, as a graph of so many has them."""
    found = sort_by_slot(slots, tile_rows=tile_rows)
    tokens, tiles = found.tokens, found.tiles
    if size is not None:
        tokens = np.pad(tokens, (0, size - len(tokens)))  # in no tile
        tiles = np.pad(tiles, ((0, count_tiles(size, int(slots.max()) + 1) - len(tiles)), (0, 0)))
    return SlotRows(
        tokens=torch.from_numpy(tokens).to(DEVICE),
        tiles=torch.from_numpy(tiles).to(DEVICE),
        tile_rows=found.tile_rows,
        runs=found.runs if size is None else None,
    )


def add_exactly(case: Case, slots: npt.NDArray[np.int64], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the sum in float64."""
    exact, bounds = y.double().clone(), case.factors.bounds
    for (slot, source), (a, b) in case.exact.items():
        tokens = torch.from_numpy(np.flatnonzero(slots == slot)).to(DEVICE)
        exact[tokens, bounds[source] : bounds[source + 1]] += x[tokens].double() @ a.t() @ b
    return exact


def check(ops: Ops, case: Case, slots: npt.NDArray[np.int64], rows: SlotRows) -> None:
    factors = case.factors
    dtype = factors.a.dtype
    x = random(len(slots), case.num_inputs + 8, dtype=dtype, seed=1)[:, : case.num_inputs]
    y = random(len(slots), factors.bounds[-1], dtype=dtype, seed=2)
    exact, before = add_exactly(case, slots, x, y), y.clone()
    ops.low_rank.add(y, x, rows, factors)
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


@pytest.mark.parametrize("ranks", [[[16]] * 3, [[16, 9, 12]] * 3, [[16, 0, 4], [3, 2, 1], [8, 8, 0]]])
@pytest.mark.parametrize(
    "slots", [[0, -1, 1], [1, 0, -1, 0, -1, 1], [-1, 2, 1], [1, 1, 1], [-1, 0, 0], [0, 1, 0], [2, 2, 0, 0, 0, -1]]
)
def test_sources_that_torch_computes_at_once(ranks: list[list[int]], slots: list[int]) -> None:
    """For tokens that lie beside each other or not, in slots that are filled by their factors or not."""
    case, numbers = make_case(ranks, [50, 30, 7][: len(ranks[0])], 48, torch.float32), np.array(slots)
    a, b = case.factors.a.nan_to_num(0.0), case.factors.b.nan_to_num(0.0)
    joined = JoinedFactors(a, b, case.factors.bounds)
    for slot, of_slot in enumerate(case.factors.host_ranks):
        joined.take(slot, of_slot)
    factors = replace(case.factors, a=a, b=b, joined=joined)
    check(TorchOps(), case._replace(factors=factors), numbers, make_rows(numbers))
    joined.take(0, np.zeros(len(ranks[0]), dtype=np.int32))
    assert not joined.are_filled(slice(0, 3))


@runs_here
def test_no_token_has_an_adapter(ops: Ops) -> None:
    case = make_case([[16]], [32], 32, torch.float32)
    slots = np.full(3, -1)
    check(ops, case, slots, make_rows(slots))


@runs_here
def test_no_token_is_there(ops: Ops) -> None:
    """As in the last layer of a step that only has the beginning of a prompt, behind which nothing is sampled."""
    case, slots = make_case([[16, 8]], [128, 128], 32, torch.float32), np.zeros(0, np.int64)
    check(ops, case, slots, make_rows(slots))
    x, y = random(0, 32, dtype=torch.float32), random(0, 256, dtype=torch.float32)
    assert ops.low_rank.add_and_gate(y, x, make_rows(slots), case.factors, "silu").shape == (0, 128)


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


@runs_here
@parametrize_grid(
    ranks=[[[16]], [[1, 8], [4, 20], [0, 3]], [[64, 0], [128, 100]]],
    num_tokens=[1, 17, 70, 600],
    half=[128, 96, 300],
    activation=["silu", "gelu_tanh"],
    dtype=DTYPES,
)
def test_the_gate_of_the_sum(
    ops: Ops, ranks: list[list[int]], num_tokens: int, half: int, activation: Activation, dtype: torch.dtype
) -> None:
    num_sources = len(ranks[0])
    half = half if num_sources == 2 else 128 * (half // 96)
    case = make_case(ranks, [2 * half // num_sources] * num_sources, 200, dtype)
    assert case.factors.outputs.has_halves
    slots = np.random.default_rng(num_tokens).integers(-1, len(ranks), num_tokens)
    x = random(num_tokens, 200, dtype=dtype, seed=1) / 8
    y = random(num_tokens, 2 * half, dtype=dtype, seed=2)
    exact = TorchOps().act_and_mul(add_exactly(case, slots, x, y), activation)
    assert_close(ops.low_rank.add_and_gate(y, x, make_rows(slots), case.factors, activation), exact, 3.0)


@runs_here
@parametrize_grid(
    ranks=[[[16, 3]], [[0, 0], [20, 100]]],
    slot=[-1, 0, 1],
    along=[{}, {"norm": True}, {"norm": True, "activation": "silu"}, {"add_to": True}],
    dtype=DTYPES,
)
def test_the_product_of_one_row_adds_it(
    ranks: list[list[int]], slot: int, along: dict[str, Any], dtype: torch.dtype
) -> None:
    from seesay.kernels.few_rows.few_row_matmul import multiply
    from seesay.llm.ops.triton_ops import TritonOps

    num_inputs, sizes, slots = 1100, [66, 30], np.array([min(slot, len(ranks) - 1)])
    case = make_case(ranks, sizes, num_inputs, dtype)
    x = random(1, num_inputs, dtype=dtype, seed=1)
    weight = random(sum(sizes), num_inputs, dtype=dtype, seed=2) / num_inputs**0.5
    factor, target = random(num_inputs, dtype=dtype, seed=3), random(1, sum(sizes), dtype=dtype, seed=4)
    normed = TorchOps().rms_norm(x, factor, 1e-6) if "norm" in along else x
    exact = add_exactly(case, slots, normed, normed.double() @ weight.double().t())
    if "activation" in along:
        exact = TorchOps().act_and_mul(exact, "silu")
    if "add_to" in along:
        exact = exact + target.double()
    options: dict[str, Any] = {"norm": (factor, 1e-6), "activation": "silu", "add_to": target}
    products = TritonOps.low_rank.find_products(make_rows(slots), case.factors)
    found = multiply(x, weight, None, products=products, **{name: options[name] for name in along})
    assert_close(found, exact, 3.0)


def test_outputs_whose_halves_have_spans_alike() -> None:
    """The kernel computes the gate span by span."""
    halves = {(0, 100, 200): True, (0, 256): True, (0, 200): True, (0, 101): False, (0, 60, 200): False}
    for bounds, has_halves in halves.items():
        assert SlotOutputs.make(bounds, torch.device("cpu")).has_halves is has_halves


def test_tokens_are_sorted_into_tiles_of_one_slot() -> None:
    slots = np.array([2, -1, 0, 2, 2, 0, -1, 2])
    found = sort_by_slot(slots, tile_rows=3)
    assert found.tokens.tolist() == [2, 5, 0, 3, 4, 7, 1, 6]
    assert found.tiles.tolist() == [[0, 0, 2], [2, 2, 3], [2, 5, 1], [-1, 6, 2]]
    assert found.runs == ((0, 0, 2, None), (2, 2, 6, None))
    assert sort_by_slot(np.array([-1, 3, 3, 1])).runs == ((1, 0, 1, 3), (3, 1, 3, 1))
    assert sort_by_slot(np.array([-1])).tiles.tolist() == [[-1, 0, 1]]
    assert sort_by_slot(np.array([], dtype=np.int64)).tiles.shape == (0, 3)


@pytest.mark.parametrize("num_slots", [1, 3, 40])
def test_tokens_are_sorted_on_their_device_as_on_the_host(num_slots: int) -> None:
    rng = np.random.default_rng(num_slots)
    for num_tokens in (0, 1, 5, 16, 17, 33, 100):
        slots = rng.choice(num_slots + 1, num_tokens, p=rng.dirichlet(np.full(num_slots + 1, 0.3))) - 1
        found, expected = sort_there(torch.from_numpy(slots).to(DEVICE), num_slots), sort_by_slot(slots)
        tiles = found.tiles.tolist()
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert tiles[: len(expected.tiles)] == expected.tiles.tolist()
        assert len(tiles) == count_tiles(num_tokens, num_slots)
        assert all(count == 0 for _, _, count in tiles[len(expected.tiles) :])


@pytest.mark.parametrize("num_slots", [1, 3, 40])
def test_no_step_has_more_tiles_than_are_counted(num_slots: int) -> None:
    rng = np.random.default_rng(num_slots)
    for num_tokens in (1, 5, 16, 17, 33, 100):
        for _ in range(30):
            slots = rng.choice(num_slots + 1, num_tokens, p=rng.dirichlet(np.full(num_slots + 1, 0.3))) - 1
            assert len(sort_by_slot(slots, tile_rows=SMALL_TILE).tiles) <= count_tiles(num_tokens, num_slots)
