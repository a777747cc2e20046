"""Experts on a GPU: what a mixture takes for few and for many tokens, and how fast it reads the chosen weights.

    python benchmarks/experts.py [--tokens 1 --tokens 64] [--kind fp8] [--sweep] [--check]

Sizes are those of Qwen3-30B-A3B: 128 experts of 768, hidden size 2048, 8 for each token. Times are medians in
microseconds over replays of a CUDA graph, in which layers rotate so that caches do not hold their weights. For each
number of tokens it prints the time of the whole mixture behind the router's product, the terabytes of chosen weights
read per second, and the TFLOP/s. `--sweep` measures tilings of each of the two products; `--check` compares with
float32 on the same choices, and a replayed graph with separate launches.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from byte_products import compiling

from seesay.kernels.experts import mixture as kernels
from seesay.kernels.experts.expert_tilings import GroupedTiling, RowTiling
from seesay.kernels.experts.mixture import Choosing, ExpertMatrix

NUM, CHOSEN, HIDDEN, INNER = 128, 8, 2048, 768
DEVICE, DTYPE, FP8 = torch.device("cuda"), torch.bfloat16, torch.float8_e4m3fn
NUM_LAYERS, NUM_REPLAYS = 6, 15
KINDS = {"bfloat16": None, "fp8": None, "fp8-blocks": 128, "fp8-groups": 32}
"""Types of weights, and how many inputs share a scale."""
CHOOSING = Choosing(CHOSEN, is_normalized=True)
FEW = [
    (8, 16, 256, 1, 4), (8, 16, 256, 2, 4), (8, 16, 512, 2, 3), (8, 32, 128, 2, 4), (8, 32, 128, 4, 5),
    (8, 32, 256, 4, 3), (8, 64, 64, 4, 5), (8, 64, 128, 4, 3), (8, 64, 128, 4, 4), (8, 32, 256, 2, 3),
]  # fmt: skip
SOME = [
    (16, 16, 256, 1, 4), (16, 32, 128, 2, 4), (16, 64, 64, 4, 5), (16, 64, 128, 4, 3), (32, 32, 128, 2, 4),
    (32, 64, 64, 4, 5), (32, 64, 128, 4, 3), (32, 128, 64, 4, 3), (32, 128, 64, 8, 4),
]  # fmt: skip
MANY = [
    (64, 64, 64, 4, 4), (64, 128, 64, 4, 3), (64, 128, 64, 8, 3), (128, 64, 64, 4, 4), (128, 64, 64, 8, 4),
    (128, 128, 64, 8, 3), (128, 128, 32, 8, 4), (128, 128, 64, 4, 3),
]  # fmt: skip
MANY_BYTES = [
    (64, 64, 128, 4, 3), (64, 128, 64, 4, 3), (128, 64, 64, 4, 3), (128, 128, 64, 8, 3), (128, 64, 128, 4, 3),
    (128, 128, 128, 8, 3), (64, 128, 128, 8, 3),
]  # fmt: skip
"""For weights of one byte, which tensor cores take widened from registers: outputs are the first axis."""
GATE_ROW = [(1, 2048, 4), (2, 2048, 4), (2, 1024, 4), (4, 512, 4), (2, 2048, 8), (1, 2048, 2), (4, 1024, 8)]
DOWN_ROW = [
    (2, 256, 4),
    (1, 256, 4),
    (2, 128, 2),
    (4, 256, 8),
    (4, 128, 4),
    (1, 256, 2),
    (2, 256, 8),
    (8, 128, 8),
    (1, 1024, 4),
    (1, 1024, 8),
    (1, 512, 4),
    (2, 512, 4),
]


class Layer(NamedTuple):
    """The weights of a layer, and what is chosen there."""

    gate_up: ExpertMatrix
    down: ExpertMatrix
    logits: torch.Tensor


def make_matrix(num_outputs: int, size: int, kind: str) -> ExpertMatrix:
    plain = torch.randn(NUM * num_outputs, size, device=DEVICE, dtype=DTYPE).mul_(size**-0.5)
    if kind == "bfloat16":
        return ExpertMatrix(plain)
    group_size = KINDS[kind]
    shape = (NUM * num_outputs,) if group_size is None else (size // group_size, NUM * num_outputs)
    scale = torch.rand(shape, device=DEVICE).add_(0.5).div_(64)
    return ExpertMatrix(plain.mul_(64).to(FP8), None, scale if group_size is None else scale.t(), group_size)


def make_layers(kind: str, num_tokens: int) -> list[Layer]:
    return [
        Layer(
            make_matrix(2 * INNER, HIDDEN, kind),
            make_matrix(HIDDEN, INNER, kind),
            torch.randn(num_tokens, NUM, device=DEVICE, dtype=DTYPE),
        )
        for _ in range(NUM_LAYERS)
    ]


def choose(logits: torch.Tensor) -> kernels.Choice:
    return kernels.choose(logits, CHOOSING)


def run_layer(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    return kernels.mix(x, layer.logits, CHOOSING, layer.gate_up, layer.down, activation="silu")


def time_us(runs: list[Callable[[], object]]) -> float:
    """Return the median time of one of these calls, which a graph makes one after another."""
    for run in runs:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    graph.replay()
    times = []
    for _ in range(NUM_REPLAYS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / len(runs))
    return float(statistics.median(times))


def count_bytes(layers: list[Layer], part: str) -> float:
    """Return the mean bytes of the chosen experts' weights."""
    total = 0.0
    for layer in layers:
        num_experts = len(set(choose(layer.logits)[0].flatten().tolist()))
        matrices = {"both": (layer.gate_up, layer.down), "gate": (layer.gate_up,), "down": (layer.down,)}[part]
        for numbers, _, scale, _ in matrices:
            total += sum(t.numel() * t.itemsize for t in (numbers, scale) if t is not None) * num_experts / NUM
    return total / len(layers)


def report(name: str, time: float, num_bytes: float, num_flops: float) -> None:
    print(
        f"{name:44} {time:9.1f} us {num_bytes / time / 1e6:6.2f} TB/s {num_flops / time / 1e6:7.1f} TFLOP/s", flush=True
    )


def measure(num_tokens: int, layers: list[Layer], kind: str) -> None:
    x = torch.randn(num_tokens, HIDDEN, device=DEVICE, dtype=DTYPE)
    flops = 6 * num_tokens * CHOSEN * HIDDEN * INNER
    time = time_us([partial(run_layer, x, layer) for layer in layers])
    report(f"{num_tokens} tokens, {kind}", time, count_bytes(layers, "both"), flops)
    routing = time_us([partial(choose, layer.logits) for layer in layers])
    sorting = time_us([partial(kernels.sort, choose(layer.logits)[0], NUM) for layer in layers])
    print(f"    choosing {routing:.1f} us, sorting {sorting:.1f} us", flush=True)


def sweep(num_tokens: int, layers: list[Layer]) -> None:
    """Print the best tilings of each product."""
    x = torch.randn(num_tokens, HIDDEN, device=DEVICE, dtype=DTYPE)
    inner = torch.randn(num_tokens * CHOSEN, INNER, device=DEVICE, dtype=DTYPE)
    chosen = [choose(layer.logits) for layer in layers]
    calls: dict[tuple[str, Any], list[Callable[[], object]]] = {}
    if num_tokens <= 4:
        for sizes in GATE_ROW:
            tiling = RowTiling(*sizes)
            alone = partial(kernels.multiply_gate_alone, num_experts=NUM, activation="silu", tiling=tiling)
            calls["gate", sizes] = [
                partial(alone, x, choice, layer.gate_up) for choice, layer in zip(chosen, layers, strict=True)
            ]
        for sizes in DOWN_ROW:
            alone = partial(kernels.multiply_down_alone, num_experts=NUM, tiling=RowTiling(*sizes))
            calls["down", sizes] = [
                partial(alone, inner, choice, layer.down) for choice, layer in zip(chosen, layers, strict=True)
            ]
    mean = num_tokens * CHOSEN / NUM
    is_one_byte = layers[0].down.scale is not None
    many = MANY_BYTES if is_one_byte else MANY
    for tile in many if mean > 32 else SOME + many[:3] if mean > 8 else FEW + (SOME[:4] if mean > 2 else []):
        grouped_tiling = GroupedTiling(*tile, rows_first=tile[0] >= 64 and not is_one_byte)
        grouped = partial(kernels.multiply_grouped, num_chosen=CHOSEN, tiling=grouped_tiling)
        sorted_by = [kernels.sort(experts, NUM) for experts, *_ in chosen]
        calls["gate", tile] = [
            partial(grouped, x, *sorts, layer.gate_up, activation="silu")
            for sorts, layer in zip(sorted_by, layers, strict=True)
        ]
        calls["down", tile] = [
            partial(grouped, inner, *sorts, layer.down) for sorts, layer in zip(sorted_by, layers, strict=True)
        ]
    with compiling():
        for runs in calls.values():
            runs[0]()
    for part, num_products in (("gate", 2), ("down", 1)):
        num_bytes, flops = count_bytes(layers, part), 2 * num_products * num_tokens * CHOSEN * HIDDEN * INNER
        times = sorted((time_us(runs), sizes) for (of, sizes), runs in calls.items() if of == part)
        for time, sizes in times[:5]:
            report(f"  {part} {num_tokens} tokens {sizes}", time, num_bytes, flops)


def check(num_tokens: int, layer: Layer) -> None:
    """Compare with float32."""
    x = torch.randn(num_tokens, HIDDEN, device=DEVICE, dtype=DTYPE)
    experts, shares, _ = choose(layer.logits)
    top = layer.logits.float().softmax(-1).topk(CHOSEN)
    assert torch.equal(experts.long().sort().values, top.indices.sort().values)
    exact = torch.zeros(num_tokens, HIDDEN, device=DEVICE)
    for expert in sorted(set(experts.flatten().tolist())):
        tokens, slots = torch.where(experts == expert)
        gate_up, down = (
            matrix.numbers.view(NUM, -1, matrix.numbers.shape[1])[expert].float()
            * (1.0 if matrix.scale is None else widen_scale(matrix, expert))
            for matrix in (layer.gate_up, layer.down)
        )
        gate, up = F.linear(x[tokens].float(), gate_up).chunk(2, -1)
        made = F.linear(F.silu(gate) * up, down)
        exact.index_add_(0, tokens, made * shares[tokens, slots, None])
    found = run_layer(x, layer).float()
    error = ((found - exact).norm() / exact.norm()).item()
    print(f"    {num_tokens} tokens: relative error {error:.1e}", flush=True)
    assert error < 1e-2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = run_layer(x, layer)
    for _ in range(20):
        graph.replay()
        assert torch.equal(replayed.float(), found), "a graph computes something else"


def widen_scale(matrix: ExpertMatrix, expert: int) -> torch.Tensor:
    """Return the scale of each weight of an expert."""
    assert matrix.scale is not None
    own = (
        matrix.scale.view(NUM, -1)[expert][:, None]
        if matrix.group_size is None
        else matrix.scale.reshape(NUM, -1, matrix.scale.shape[1])[expert]
    )
    return own.repeat_interleave(matrix.numbers.shape[1] // own.shape[1], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", action="append", type=int)
    parser.add_argument("--kind", choices=KINDS, default="bfloat16")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    layers = make_layers(given.kind, 1)
    for num_tokens in given.tokens or (1, 2, 8, 32, 64, 128, 256, 1024, 8192):
        own = [layer._replace(logits=torch.randn(num_tokens, NUM, device=DEVICE, dtype=DTYPE)) for layer in layers]
        if given.check:
            check(num_tokens, own[0])
        if given.sweep:
            sweep(num_tokens, own)
        measure(num_tokens, own, given.kind)


if __name__ == "__main__":
    main()
