"""The additions of a step's layers: also of the tokens alone that the last layer is left with."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from seesay.device.linear.linear import Linear
from seesay.llm.models.adapters.adapted_step import AdaptedStep
from seesay.llm.models.adapters.adapter_reader import Site
from seesay.llm.models.adapters.magnitudes import Magnitudes
from seesay.llm.ops import SlotFactors, SlotRows
from seesay.llm.ops.low_rank import SlotOutputs, sort_by_slot
from seesay.llm.ops.torch_ops import TorchOps

CPU, SIZE, RANK, NUM_SLOTS = torch.device("cpu"), 12, 16, 3


def make_factors() -> SlotFactors:
    ranks = np.array([[4], [0], [16]], dtype=np.int32)
    return SlotFactors(
        a=torch.randn(NUM_SLOTS, RANK, SIZE),
        b=torch.randn(NUM_SLOTS, RANK, SIZE),
        ranks=torch.from_numpy(ranks),
        host_ranks=ranks,
        bounds=(0, SIZE),
        outputs=SlotOutputs.make((0, SIZE), CPU),
    )


def make_rows(slots: list[int]) -> SlotRows:
    found = sort_by_slot(np.array(slots))
    tokens, tiles = torch.from_numpy(found.tokens), torch.from_numpy(found.tiles)
    return SlotRows(tokens=tokens, tiles=tiles, tile_rows=found.tile_rows, runs=found.runs)


def test_tokens_that_are_left_keep_their_adapters() -> None:
    ops = TorchOps()
    magnitudes = Magnitudes(ops, {}, sum_ranks=lambda x: x, device=CPU, dtype=torch.float32)
    step, linear = AdaptedStep(ops, magnitudes), Linear(SIZE, SIZE, bias=False)
    linear.weight = nn.Parameter(torch.randn(SIZE, SIZE), requires_grad=False)
    linear.finish()
    adaptation = step.adapt(Site("x", linear, ((),), (0, SIZE), 0, 0), make_factors())
    rows, wanted = make_rows([2, 2, -1, 0, 0, 2, 1]), torch.tensor([1, 2, 4, 6])
    x = torch.randn(7, SIZE)
    step.begin(rows)
    assert step.try_pick(wanted, NUM_SLOTS)
    whole, left = torch.zeros(7, SIZE), torch.zeros(4, SIZE)
    adaptation.add(x, whole)
    adaptation.add(x[wanted], left)
    torch.testing.assert_close(left, whole[wanted])
    assert whole.abs().sum(1).gt(0).tolist() == [True, True, False, True, True, True, False]
    step.begin(None)
    assert step.try_pick(wanted, NUM_SLOTS), "a step without adapters"
    step.begin(rows)
    assert not step.try_pick(torch.arange(7), NUM_SLOTS), "all tokens are left"
