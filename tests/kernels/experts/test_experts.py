"""Experts of random choices, with some that get nothing or everything, against float64. On a GPU the tests run as they
are, elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from kernels.products import assert_close, multiply_gate
from triton_cases import DEVICE, IS_INTERPRETED, MARKS, on_gpu, parametrize_grid, random, random_seeds, runs_here

pytestmark = MARKS
HALF = torch.float16 if IS_INTERPRETED else torch.bfloat16
"""The interpreter multiplies matrices of bfloat16 wrongly."""
DTYPES = [torch.float32, HALF]


class Case(NamedTuple):
    """Sizes of a mixture. chosen [tokens, k]: the experts of each token, the best one first."""

    num_experts: int
    hidden: int
    inner: int
    chosen: torch.Tensor

    @property
    def logits(self) -> torch.Tensor:
        """Logits [tokens, experts] by which these are chosen."""
        num_chosen = self.chosen.shape[1]
        ranks = torch.arange(num_chosen, device=DEVICE).flip(0).expand(self.chosen.shape) / num_chosen
        lowest = torch.full((len(self.chosen), self.num_experts), -1.0, device=DEVICE)
        return lowest.scatter(1, self.chosen.long(), ranks)

    @property
    def shares(self) -> torch.Tensor:
        return self.logits.softmax(dim=1).gather(1, self.chosen.long())

    @property
    def choosing(self) -> Any:
        from seesay.kernels.experts.mixture import Choosing

        return Choosing(self.chosen.shape[1])


def choose_at_random(num_tokens: int, num_experts: int, num_chosen: int, seed: int = 0) -> torch.Tensor:
    scores = torch.rand(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))
    return scores.topk(num_chosen).indices.int().to(DEVICE)


def skew(chosen: torch.Tensor) -> torch.Tensor:
    """Return choices of which the first is the same for all tokens."""
    return torch.cat([torch.full_like(chosen[:, :1], 3), torch.where(chosen[:, 1:] == 3, 0, chosen[:, 1:])], dim=1)


ROUTINGS = {
    "spread": lambda num_tokens: choose_at_random(num_tokens, 9, 3),
    "one for all": lambda num_tokens: skew(choose_at_random(num_tokens, 9, 3)),
    "only one": lambda num_tokens: torch.full((num_tokens, 1), 8, dtype=torch.int32, device=DEVICE),
}


def count_halves(activation: str) -> int:
    return 1 if activation == "relu2" else 2


def activate_halves(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return the activation of the only half, or what a gate opens."""
    if activation == "relu2":
        return x.relu().square()
    gate, up = x.chunk(2, -1)
    return multiply_gate(gate, up, activation)


def compute_exactly(
    x: torch.Tensor, case: Case, weights: tuple[torch.Tensor, torch.Tensor], biases: Any, activation: str
) -> torch.Tensor:
    total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    gate_up, down = (weight.double() for weight in weights)
    gate_up_bias, down_bias = (None if bias is None else bias.double() for bias in biases)
    for token, chosen in enumerate(case.chosen.tolist()):
        for expert, share in zip(chosen, case.shares[token].double(), strict=True):
            bias = None if gate_up_bias is None else gate_up_bias[expert]
            inner = activate_halves(F.linear(x[token].double(), gate_up[expert], bias), activation)
            bias = None if down_bias is None else down_bias[expert]
            total[token] += share * F.linear(inner, down[expert], bias)
    return total


def run_case(
    case: Case,
    dtype: torch.dtype,
    *,
    activation: str = "silu",
    has_bias: bool = False,
    adds: bool = False,
    has_norm: bool = False,
    own: range | None = None,
) -> None:
    from seesay.kernels.experts.mixture import ExpertMatrix, mix

    num_experts, hidden, inner, chosen = case
    num_rows = count_halves(activation) * inner
    x = random(len(chosen), hidden, dtype=dtype)
    gate_up = random(num_experts, num_rows, hidden, dtype=dtype, seed=1) / hidden**0.5
    down = random(num_experts, hidden, inner, dtype=dtype, seed=2) / inner**0.5
    biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    if has_bias:
        biases = (
            random(num_experts, num_rows, dtype=dtype, seed=3),
            random(num_experts, hidden, dtype=dtype, seed=4),
        )
    matrices = [
        ExpertMatrix(weight.flatten(0, 1), None if bias is None else bias.flatten())
        for weight, bias in zip((gate_up, down), biases, strict=True)
    ]
    norm = (random(hidden, dtype=dtype, seed=6), 1e-6) if has_norm else None
    if own is not None:
        foreign = [expert for expert in range(num_experts) if expert not in own]
        gate_up[foreign], down[foreign] = 0.0, 0.0
        cut = (slice(own.start * num_rows, own.stop * num_rows), slice(own.start * hidden, own.stop * hidden))
        matrices = [
            ExpertMatrix(numbers[rows].clone(), None if bias is None else bias[rows].clone())
            for (numbers, bias, *_), rows in zip(matrices, cut, strict=True)
        ]
        if has_bias:
            for bias in biases:
                assert bias is not None
                bias[foreign] = 0.0
    wide = x.double()
    if norm is not None:
        wide = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm[0].double()
    exact = compute_exactly(wide, case, (gate_up, down), biases, activation)
    target = random(len(chosen), hidden, dtype=dtype, seed=5) if adds else None
    if target is not None:
        exact += target.double()
    found = mix(x, case.logits, case.choosing, *matrices, own=own, activation=activation, norm=norm, add_to=target)
    assert target is None or found is target
    assert_close(found, exact, 2.0)


@runs_here
@parametrize_grid(num_tokens=[1, 2, 3, 30], routing=ROUTINGS, dtype=DTYPES, adds=[False, True], has_norm=[False, True])
def test_every_routing(num_tokens: int, routing: str, dtype: torch.dtype, adds: bool, has_norm: bool) -> None:
    run_case(Case(9, 40, 24, ROUTINGS[routing](num_tokens)), dtype, adds=adds, has_norm=has_norm)


@runs_here
@parametrize_grid(
    num_tokens=[1, 2, 30], routing=ROUTINGS, own=[range(3), range(3, 9)], has_bias=[False, True], adds=[False, True]
)
def test_experts_that_are_not_here_add_nothing(
    num_tokens: int, routing: str, own: range, has_bias: bool, adds: bool
) -> None:
    run_case(Case(9, 40, 24, ROUTINGS[routing](num_tokens)), HALF, own=own, has_bias=has_bias, adds=adds)


@runs_here
@parametrize_grid(
    num_tokens=[1, 20, 150, 400],
    activation=["silu", "gelu", "gelu_tanh", "clamped_silu", "relu2"],
    has_bias=[False, True],
)
def test_tiles_of_few_and_of_many_rows(num_tokens: int, activation: str, has_bias: bool) -> None:
    """150 and 400 tokens are 38 and 100 for each expert, which take the tiles of many rows."""
    case = Case(4, 70, 33, choose_at_random(num_tokens, 4, 1))
    run_case(case, HALF, activation=activation, has_bias=has_bias)


@runs_here
@random_seeds
def test_random_mixtures(seed: int) -> None:
    chance = Random(seed)
    num_experts = chance.randint(1, 20)
    num_chosen = chance.randint(1, min(4, num_experts))
    chosen = choose_at_random(chance.randint(1, 60), num_experts, num_chosen, seed)
    case = Case(num_experts, chance.randint(1, 300), chance.randint(1, 200), chosen)
    run_case(case, chance.choice(DTYPES), has_bias=chance.random() < 0.5, adds=chance.random() < 0.5)


@runs_here
@pytest.mark.parametrize("num_tokens", [1, 7, 900])
def test_assignments_are_sorted_by_expert(num_tokens: int) -> None:
    from seesay.kernels.experts.mixture import sort

    chosen = choose_at_random(num_tokens, 130, 4)
    chosen[chosen == 5] = 6  # an expert without tokens, and one that some tokens have twice
    order, starts = sort(chosen, 130)
    expected = chosen.flatten().sort(stable=True)
    assert order.tolist() == expected.indices.tolist()
    counts = torch.bincount(chosen.flatten(), minlength=130)
    assert starts.tolist() == [0, *counts.cumsum(0).tolist()]


SCALED: list[tuple[torch.dtype, int | None]] = [
    (torch.float8_e4m3fn, 32),
    (torch.float8_e4m3fn, None),
    (torch.int8, None),
    (torch.int8, 64),
]
"""(numbers, inputs that share a scale; None: all)."""


@runs_here
@parametrize_grid(num_tokens=[1, 5, 130], scaled=SCALED, activation=["silu", "relu2"])
def test_weights_of_one_byte_with_scales(
    num_tokens: int, scaled: tuple[torch.dtype, int | None], activation: str
) -> None:
    from seesay.kernels.experts.mixture import ExpertMatrix, mix

    kind, group_size = scaled
    case = Case(4, 100, 70, choose_at_random(num_tokens, 4, 2))
    matrices, plain = [], []
    for seed, (num_outputs, size) in enumerate(((70 * count_halves(activation), 100), (100, 70))):
        numbers = random(4 * num_outputs, size, dtype=torch.float32, seed=seed)
        numbers = (numbers * (20 if kind == torch.int8 else 1)).to(kind)
        count = 1 if group_size is None else -(-size // group_size)
        scale = (random(count, 4 * num_outputs, seed=9).abs() / (numbers.float().std() * size**0.5)).t()
        matrices.append(ExpertMatrix(numbers, None, scale[:, 0] if group_size is None else scale, group_size))
        wide = scale.repeat_interleave(group_size or size, dim=1)[:, :size]
        plain.append((numbers.double() * wide).view(4, num_outputs, size))
    x = random(num_tokens, 100, dtype=HALF)
    found = mix(x, case.logits, case.choosing, *matrices, activation=activation)
    assert_close(found, compute_exactly(x, case, (plain[0], plain[1]), (None, None), activation), 2.0)


@runs_here
@pytest.mark.parametrize("activation", ["silu", "relu2"])
def test_experts_whose_products_are_apart(activation: str) -> None:
    """As they are calibrated."""
    from seesay.checkpoint.parts import Source
    from seesay.device.linear.expert_linear import ExpertLinear
    from seesay.llm.ops import triton_experts
    from seesay.llm.plans.routing import Routing

    case = Case(4, 64, 48, choose_at_random(7, 4, 2))
    layers, plain = [], []
    for seed, (num_outputs, size) in enumerate(((48 * count_halves(activation), 64), (64, 48))):
        plain.append(random(4, num_outputs, size, dtype=HALF, seed=seed) / size**0.5)
        sources = [Source(module="weight", num_outputs=num_outputs)]
        layers.append(ExpertLinear(size, 4, sources=sources, bias=False))
        layers[-1].is_apart = True
        layers[-1].use(plain[-1].flatten(0, 1))
    seen: list[torch.Tensor] = []
    layers[0].observe_experts({2: seen.append})
    x = random(7, 64, dtype=HALF)
    routing: Any = Routing(num_experts=4, num_chosen=2)
    kind: Any = activation
    found = triton_experts.mix_experts(x, case.logits, routing, None, layers[0], layers[1], kind, None, None)
    assert_close(found, compute_exactly(x, case, (plain[0], plain[1]), (None, None), activation), 2.0)
    is_chosen = (case.chosen == 2).any(dim=1)
    assert is_chosen.any() and torch.equal(torch.cat(seen), x[is_chosen])


ROUTING_OPTIONS: list[dict[str, Any]] = [
    {"num_experts": 6, "num_chosen": 2},
    {"num_experts": 128, "num_chosen": 8, "is_normalized": True},
    {"num_experts": 60, "num_chosen": 4, "scale": 2.5},
    {"num_experts": 12, "num_chosen": 3, "scores": "sigmoid", "num_groups": 4, "num_kept_groups": 2, "sums_two": True},
    {"num_experts": 16, "num_chosen": 2, "jitter": 0.1},
    {"num_experts": 16, "num_chosen": 3, "num_groups": 2, "num_kept_groups": 1, "is_normalized": True},
]


def choose_by_both(logits: torch.Tensor, routing: Any, bias: torch.Tensor | None = None) -> tuple[Any, Any]:
    """Return the choices of torch and of the kernel."""
    from seesay.kernels.experts import mixture as experts
    from seesay.llm.ops import torch_experts, triton_experts

    choosing = triton_experts.make_choosing(routing, bias)
    return torch_experts.choose_experts(logits, routing, bias), experts.choose(logits, choosing)


@runs_here
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("options", ROUTING_OPTIONS)
def test_choices_are_those_of_torch(options: dict[str, Any], has_bias: bool) -> None:
    from seesay.llm.plans.routing import Routing

    routing = Routing(**options)
    logits = 3 * random(50, routing.num_experts)
    bias = random(routing.num_experts, seed=1).abs() if has_bias and routing.jitter is None else None
    expected, found = choose_by_both(logits, routing, bias)
    assert torch.equal(found.experts.long(), expected.experts)
    assert torch.allclose(found.shares, expected.shares, rtol=1e-5, atol=1e-7)


@runs_here
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_logits_that_are_not_finite_choose_experts_that_exist() -> None:
    from seesay.llm.plans.routing import Routing

    logits = random(6, 20)
    logits[0], logits[1, 3], logits[2, :], logits[3, 5] = torch.nan, torch.nan, -torch.inf, torch.inf
    for choice in choose_by_both(logits, Routing(num_experts=20, num_chosen=4)):
        assert ((choice.experts >= 0) & (choice.experts < 20)).all()
        assert choice.shares[4:].isfinite().all()


@on_gpu
@pytest.mark.parametrize("num_tokens", [1, 8])
def test_a_graph_replays_other_choices(num_tokens: int) -> None:
    """Nothing of a choice is fixed when a CUDA graph is captured."""
    from seesay.kernels.experts.mixture import Choosing, ExpertMatrix, mix

    logits, x = random(num_tokens, 16), random(num_tokens, 256, dtype=torch.bfloat16)
    up, down = (ExpertMatrix(random(16 * n, k, dtype=torch.bfloat16, seed=n) / 16) for n, k in ((256, 256), (256, 128)))

    def compute() -> torch.Tensor:
        return mix(x, logits, Choosing(4), up, down, activation="silu")

    compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = compute()
    for seed in range(1, 4):
        logits.copy_(random(num_tokens, 16, seed=seed))
        graph.replay()
        again = found.clone()
        assert torch.equal(again, compute())
