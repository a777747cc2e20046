"""A mixture of experts some of whose tokens have products of low rank beside those of their experts, in torch and in
Triton, against float64.

On a GPU the tests run as they are. Elsewhere they run in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from triton_cases import DEVICE, MARKS, assert_close, random, runs_here

from seesay.device.linear.expert_linear import ExpertAdaptation
from seesay.llm.ops import Ops, SlotFactors, SlotRows
from seesay.llm.ops.low_rank import SlotOutputs, sort_there
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.plans.routing import Routing

pytestmark = MARKS
NUM_EXPERTS, NUM_SLOTS, HIDDEN, INNER, RANK = 5, 2, 48, 32, 16


class Layer:
    """The weights of experts [experts, out, in], and the factors of each slot and expert."""

    def __init__(self, num_inputs: int, bounds: tuple[int, ...], seed: int) -> None:
        num_sources = len(bounds) - 1
        self.weight = random(NUM_EXPERTS, bounds[-1], num_inputs, dtype=torch.float32, seed=seed) / num_inputs**0.5
        ranks = np.random.default_rng(seed).integers(0, RANK + 1, (NUM_SLOTS * NUM_EXPERTS, num_sources), np.int32)
        self.factors = SlotFactors(
            a=random(len(ranks), num_sources * RANK, num_inputs, dtype=torch.float32, seed=seed + 1) / num_inputs**0.5,
            b=random(len(ranks), RANK, bounds[-1], dtype=torch.float32, seed=seed + 2),
            ranks=torch.from_numpy(ranks).to(DEVICE),
            host_ranks=ranks,
            bounds=bounds,
            outputs=SlotOutputs.make(bounds, torch.device(DEVICE)),
        )

    def multiply(self, x: torch.Tensor, expert: int, slot: int) -> torch.Tensor:
        """Return the product of one row in float64."""
        factors, made = self.factors, torch.mv(self.weight[expert].double(), x)
        if slot >= 0:
            place = slot * NUM_EXPERTS + expert
            for source, rank in enumerate(factors.host_ranks[place].tolist()):
                columns = slice(factors.bounds[source], factors.bounds[source + 1])
                a = factors.a[place, source * RANK : source * RANK + rank].double()
                made[columns] += (a @ x) @ factors.b[place, :rank, columns].double()
        return made

    def make_linear(self, adaptation: ExpertAdaptation, own: range) -> Any:
        """Return a layer with some of the experts, as the operations take it."""
        weight = self.weight[own.start : own.stop]
        return SimpleNamespace(
            experts=own,
            is_apart=False,
            expert_adaptation=adaptation,
            bias=None,
            kernels=[lambda x, each=each: F.linear(x, each) for each in weight],
            matrix=(weight.flatten(0, 1).contiguous(), None, None),
        )


@pytest.fixture(params=["torch", "triton"])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "torch":
        return TorchOps()
    from seesay.llm.ops.triton_ops import TritonOps

    return TritonOps()


@runs_here
@pytest.mark.parametrize("own", [range(NUM_EXPERTS), range(1, 3)], ids=str)
@pytest.mark.parametrize("num_tokens", [1, 3, 40])
@pytest.mark.parametrize("is_gated", [True, False])
def test_tokens_have_the_products_of_their_slots_and_experts(
    ops: Ops, own: range, num_tokens: int, is_gated: bool
) -> None:
    gate_up = Layer(HIDDEN, (0, INNER, 2 * INNER) if is_gated else (0, INNER), seed=1)
    down = Layer(INNER, (0, HIDDEN), seed=11)
    x = random(num_tokens, HIDDEN, dtype=torch.float32)
    logits = random(num_tokens, NUM_EXPERTS, dtype=torch.float32, seed=5)
    slots = torch.from_numpy(np.random.default_rng(num_tokens).integers(-1, NUM_SLOTS, num_tokens)).to(DEVICE)
    found: list[SlotRows] = []

    def begin(tokens: torch.Tensor, experts: torch.Tensor) -> None:
        there = slots.index_select(0, tokens)
        places = torch.where((there < 0) | (experts < 0), -1, there * len(own) + experts)
        found[:] = [sort_there(places, NUM_SLOTS * len(own))]

    def adapt(layer: Layer) -> ExpertAdaptation:
        factors, places = layer.factors, [s * NUM_EXPERTS + e for s in range(NUM_SLOTS) for e in own]
        picked = SlotFactors(
            a=factors.a[places],
            b=factors.b[places],
            ranks=factors.ranks[places],
            host_ranks=factors.host_ranks[places],
            bounds=factors.bounds,
            outputs=factors.outputs,
        )
        return ExpertAdaptation(begin, lambda x, y: ops.low_rank.add(y, x, found[0], picked))

    linears = [layer.make_linear(adapt(layer), own) for layer in (gate_up, down)]
    expected = torch.zeros(num_tokens, HIDDEN, dtype=torch.float64, device=DEVICE)
    shares = logits.double().softmax(-1)
    for token in range(num_tokens):
        for expert in shares[token].topk(2).indices.tolist():
            if expert in own:
                inner = gate_up.multiply(x[token].double(), expert, int(slots[token]))
                inner = F.silu(inner[:INNER]) * inner[INNER:] if is_gated else inner.relu().square()
                expected[token] += shares[token, expert] * down.multiply(inner, expert, int(slots[token]))
    activation: Any = "silu" if is_gated else "relu2"
    made = ops.mix_experts(
        x, logits, Routing(num_experts=NUM_EXPERTS, num_chosen=2), None, *linears, activation=activation
    )
    assert_close(made, expected, 3.0)
    total = torch.ones_like(x)
    options: Any = {"activation": activation, "add_to": total}
    ops.mix_experts(x, logits, Routing(num_experts=NUM_EXPERTS, num_chosen=2), None, *linears, **options)
    assert_close(total, expected + 1, 3.0)
