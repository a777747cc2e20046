"""Each operation's time on the GPU beside its floor and beside torch's.

    python benchmarks/ops.py [--copy-tb-per-s 4.3] [--matrix-tflop-per-s 790] [--plot FILE.png]

Shapes are those of a 7B backbone (28 heads over 4, head size 128, hidden size 3584) in bfloat16. The floor is the bytes
that an operation must move over the copy bandwidth, or the operations it must do over the rate of matrix products,
whichever takes longer. Times are medians over replays of a CUDA graph, in which inputs rotate so that caches do not
hold them; torch's attention, which waits for the host, is timed as it is called. Prints one JSON line per figure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from triton.testing import do_bench, do_bench_cudagraph

from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.kernels.few_rows.few_row_matmul import multiply
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops import Ops, RowLayout
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.ops.triton_ops import TritonOps

HEADS, KV_HEADS, DIM, HIDDEN, WIDE, VOCAB, BLOCK = 28, 4, 128, 3584, 18944, 152064, 64
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
COPIES_BYTES = 1 << 28
"""Inputs rotate among copies of this many bytes in all: several times the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`run(ops, copy)` calls the operation once; it moves num_bytes and does num_flops."""

    name: str
    run: Callable[[Ops, int], object]
    num_bytes: float
    num_flops: float = 0.0


def measure(figure: Figure, ops: Ops) -> float:
    """Microseconds of one call."""
    count = int(max(1, min(16, COPIES_BYTES // max(1, figure.num_bytes))))

    def call() -> None:
        for copy in range(count):
            figure.run(ops, copy)

    timer = do_bench_cudagraph if isinstance(ops, TritonOps) or not figure.num_flops else do_bench
    return float(timer(call, rep=20, return_mode="median")) * 1e3 / count


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def token_figures(num_tokens: int) -> list[Figure]:
    """The operations that treat each token by itself, at `num_tokens` tokens."""
    t = num_tokens
    count = max(1, min(16, COPIES_BYTES // (4 * t * HIDDEN)))
    x, residual = random(count, t, HIDDEN), random(count, t, HIDDEN)
    weight, wide = random(HIDDEN), random(count, t, 2 * WIDE)
    qkv = random(count, t, HEADS + 2 * KV_HEADS, DIM)
    cos, sin = random(t, 1, DIM), random(t, 1, DIM)
    cache = LayerCache.plain(torch.zeros(-(-t // BLOCK) + 1, BLOCK, 2, KV_HEADS, DIM, device=DEVICE, dtype=DTYPE))
    rows = torch.randperm(t, device=DEVICE)
    num_qk = HEADS + KV_HEADS
    row_bytes, pair_bytes = 2.0 * t * HIDDEN, 4.0 * t * KV_HEADS * DIM
    return [
        Figure(name="rms_norm", run=lambda o, i: o.rms_norm(x[i % count], weight, 1e-6), num_bytes=2 * row_bytes),
        Figure(
            name="add_rms_norm",
            run=lambda o, i: o.rms_norm(x[i % count], weight, 1e-6, residual=residual[i % count]),
            num_bytes=4 * row_bytes,
        ),
        Figure(name="act_and_mul", run=lambda o, i: o.act_and_mul(wide[i % count], "silu"), num_bytes=6.0 * t * WIDE),
        Figure(
            name="rotate_and_write",
            run=lambda o, i: o.rotate_and_write(qkv[i % count], cos, sin, cache, rows),
            num_bytes=4.0 * t * num_qk * DIM + 4.0 * t * DIM + 1.5 * pair_bytes,
        ),
        Figure(
            name="splice", run=lambda o, i: o.splice(residual[i % count], rows, x[i % count]), num_bytes=2 * row_bytes
        ),
    ]


def linear_figures(num_rows: int) -> dict[str, dict[str, Figure]]:
    """Linear layers with what rides along at few rows, by name; torch's are cuBLAS and the single operations."""
    t = num_rows
    weight_norm = random(HIDDEN)
    qkv_size = (HEADS + 2 * KV_HEADS) * DIM
    figures: dict[str, dict[str, Figure]] = {}

    def add(name: str, shape: tuple[int, int], num_outputs: int, **options: Any) -> None:
        num_bytes = 2.0 * shape[0] * shape[1]
        weights = 0.02 * random(int(max(1, min(16, COPIES_BYTES // num_bytes))), *shape)
        x, out = random(t, shape[1]), random(t, num_outputs)
        norm, activation = options.get("norm"), options.get("activation")

        def fused(_: Ops, copy: int) -> object:
            return multiply(
                x,
                weights[copy % len(weights)],
                None,
                add_to=out if "adds" in options else None,
                norm=norm,
                activation=activation,
            )

        def separate(ops: Ops, copy: int) -> object:
            rows = x if norm is None else ops.rms_norm(x, *norm)
            y = F.linear(rows, weights[copy % len(weights)])
            if activation is not None:
                y = ops.act_and_mul(y, activation)
            return out.add_(y) if "adds" in options else y

        figures[name] = {
            kind: Figure(name=name, run=run, num_bytes=num_bytes + 2.0 * t * (shape[1] + num_outputs))
            for kind, run in (("triton", fused), ("torch", separate))
        }

    add("norm, qkv", (qkv_size, HIDDEN), qkv_size, norm=(weight_norm, 1e-6))
    add("output, sum", (HIDDEN, HEADS * DIM), HIDDEN, adds=True)
    add("norm, gate and up, silu", (2 * WIDE, HIDDEN), WIDE, norm=(weight_norm, 1e-6), activation="silu")
    add("down, sum", (HIDDEN, WIDE), HIDDEN, adds=True)
    add("head", (VOCAB, HIDDEN), VOCAB)
    return figures


def attention_figure(name: str, rows: list[tuple[int, int]]) -> Callable[[Ops], Figure]:
    """Attention of `rows`, (new tokens, all tokens) each; the plan is made once, as in a step."""
    num_blocks = [-(-length // BLOCK) for _, length in rows]
    ids = np.random.default_rng(0).permutation(sum(num_blocks)).astype(np.int64)
    table = np.zeros((len(rows), max(num_blocks)), dtype=np.int64)
    for index, own in enumerate(np.split(ids, np.cumsum(num_blocks)[:-1])):
        table[index, : len(own)], table[index, len(own) :] = own, own[-1]
    layout = RowLayout(
        cu_seqlens_q=np.cumsum([0] + [n for n, _ in rows]),
        kv_lens=np.array([length for _, length in rows]),
        block_table=table,
        block_size=BLOCK,
        num_decode=sum(n == 1 for n, _ in rows),
    )
    num_tokens = sum(n for n, _ in rows)
    seen = sum(n * (length - n) + n * (n + 1) / 2 for n, length in rows)
    num_bytes = 4.0 * KV_HEADS * DIM * sum(length for _, length in rows) + 4.0 * num_tokens * HEADS * DIM
    count = int(max(1, min(16, COPIES_BYTES // num_bytes)))
    caches = [LayerCache.plain(random(sum(num_blocks), BLOCK, 2, KV_HEADS, DIM)) for _ in range(count)]
    query = random(num_tokens, HEADS, DIM)

    def figure(ops: Ops) -> Figure:
        plan = ops.plan_attention(layout, windows=frozenset([None]), device=DEVICE, dtype=DTYPE)

        def run(ops: Ops, copy: int) -> object:
            return ops.attend(query, caches[copy % count], plan, scale=DIM**-0.5, window=None, soft_cap=None)

        return Figure(name=name, run=run, num_bytes=num_bytes, num_flops=4.0 * seen * HEADS * DIM)

    return figure


FEW_ROWS = [1, 8, 32]
ATTENTION = {
    "decode 1 x 1,500": [(1, 1500)],
    "decode 1 x 131,072": [(1, 131072)],
    "decode 8 x 1,500": [(1, 1500)] * 8,
    "decode 64 x 900": [(1, 900)] * 64,
    "decode 128 x 1,000": [(1, 1000)] * 128,
    "decode 256 x 1,000": [(1, 1000)] * 256,
    "decode 1 x 100,000 and 63 x 500": [(1, 100_000), *[(1, 500)] * 63],
    "prefill 1,424": [(1424, 1424)],
    "prefill 8,192": [(8192, 8192)],
    "prefill 11 x 744": [(744, 744)] * 11,
    "prefill 5 x 200": [(200, 200)] * 5,
    "prefill 1,024 after 1,024": [(1024, 2048)],
    "prefill 512 after 8,192": [(512, 8704)],
    "prefill 512 beside 128 decode rows": [*[(1, 1000)] * 128, (512, 512)],
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copy-tb-per-s", type=float, default=4.3)
    parser.add_argument("--matrix-tflop-per-s", type=float, default=790.0)
    add_plot_option(parser)
    options = parser.parse_args(argv)
    records: list[dict[str, Any]] = []
    implementations: dict[str, Ops] = {"triton": TritonOps(), "torch": TorchOps()}

    def report(name: str, figures: dict[str, Figure]) -> None:
        figure = figures["triton"]
        floor = max(
            figure.num_bytes / options.copy_tb_per_s * 1e-6, figure.num_flops / options.matrix_tflop_per_s * 1e-6
        )
        times = {kind: measure(figures[kind], ops) for kind, ops in implementations.items()}
        line = {"op": name, "us": times["triton"], "floor_us": floor, "torch_us": times["torch"]}
        records.append({k: v if isinstance(v, str) else round(v, 2) for k, v in line.items()})
        print(json.dumps(records[-1]), flush=True)

    for num_tokens in (1, 128, 8192):
        for figure in token_figures(num_tokens):
            report(f"{figure.name} {num_tokens}", dict.fromkeys(implementations, figure))
        torch.cuda.empty_cache()
    for num_rows in FEW_ROWS:
        for name, linears in linear_figures(num_rows).items():
            report(f"{name} {num_rows}", linears)
        torch.cuda.empty_cache()
    for name, rows in ATTENTION.items():
        make = attention_figure(name, rows)
        report(name, {kind: make(ops) for kind, ops in implementations.items()})
        torch.cuda.empty_cache()
    if options.plot is not None:
        series = {"us": "Triton", "floor_us": "floor", "torch_us": "torch"}
        save_plot(options.plot, "The decoder's operations", [make_bars("microseconds", records, "op", series)])


if __name__ == "__main__":
    main()
