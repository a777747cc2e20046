"""Measure the lower bound for any engine: the matrix products and the attention of Qwen2.5-VL-7B in bfloat16.

    python benchmarks/floor.py [--plot FILE.png]

Products by cuBLAS and attention by `scaled_dot_product_attention`, replayed as CUDA graphs in which nothing else runs:
what the workloads of h200.py would cost on this GPU if all the rest took no time. Weights are those of all layers, so
that caches do not hold them. Prints one line `RESULT {JSON}`; times in milliseconds for all layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from h200 import report
from triton.testing import do_bench_cudagraph

from seesay.bench.plotting import Bars, add_plot_option, save_plot

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 3584, 28, 28, 4, 128, 18944, 152064
TOWER_HIDDEN, TOWER_LAYERS, TOWER_HEADS, TOWER_INNER = 1280, 32, 16, 3420
FULL_TOWER_LAYERS, WINDOW_PATCHES = 4, 64
PICTURE_PATCHES, PICTURE_PROMPT = 74 * 74, 1424
"""A picture of 1036 x 1036 pixels, and a prompt with it."""
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
COPIED_BYTES = 1 << 31

Shapes = Sequence[tuple[int, int]]
"""(outputs, inputs) of linear layers."""
LINEARS: Shapes = [
    ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    (HIDDEN, HEADS * HEAD_DIM),
    (2 * INNER, HIDDEN),
    (HIDDEN, INNER),
]
TOWER_LINEARS: Shapes = [
    (3 * TOWER_HIDDEN, TOWER_HIDDEN),
    (TOWER_HIDDEN, TOWER_HIDDEN),
    (2 * TOWER_INNER, TOWER_HIDDEN),
    (TOWER_HIDDEN, TOWER_INNER),
]


def time_ms(run: Callable[[], object]) -> float:
    """Median milliseconds of `run` as a CUDA graph."""
    return float(do_bench_cudagraph(run, rep=50, return_mode="median"))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def time_linears(shapes: Shapes, num_layers: int, num_rows: int, *, has_head: bool = False) -> float:
    """All layers' products with `num_rows` rows; with the head, that of the last 256 rows at most, too."""
    layers = [[0.02 * random(*shape) for shape in shapes] for _ in range(num_layers)]
    rows = {num_inputs: random(num_rows, num_inputs) for _, num_inputs in shapes}
    head = 0.02 * random(VOCAB, HIDDEN) if has_head else None

    def run() -> None:
        for weights in layers:
            for weight in weights:
                F.linear(rows[weight.shape[1]], weight)
        if head is not None:
            F.linear(rows[HIDDEN][-256:], head)

    return time_ms(run)


def time_attention(batch: int, heads: tuple[int, int], length: int, dim: int, *, is_causal: bool) -> float:
    """One layer's, of `batch` sequences; `heads` of queries and of keys."""
    query, key, value = (random(batch, count, length, dim) for count in (heads[0], heads[1], heads[1]))
    attend = partial(F.scaled_dot_product_attention, is_causal=is_causal, enable_gqa=heads[0] != heads[1])
    return time_ms(partial(attend, query, key, value))


def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    source = torch.empty(COPIED_BYTES, device=DEVICE, dtype=torch.uint8)
    target = torch.empty_like(source)
    figures["copy_tb_per_s"] = 2 * COPIED_BYTES / time_ms(partial(target.copy_, source)) / 1e9
    for batch_size in (1, 8, 32, 128, 256):
        figures[f"decode_linears_{batch_size}"] = time_linears(LINEARS, LAYERS, batch_size, has_head=True)
    for num_tokens in (PICTURE_PROMPT, 8192):
        figures[f"prefill_linears_{num_tokens}"] = time_linears(LINEARS, LAYERS, num_tokens, has_head=True)
    figures[f"prefill_attention_{PICTURE_PROMPT}"] = LAYERS * time_attention(
        1, (HEADS, KV_HEADS), PICTURE_PROMPT, HEAD_DIM, is_causal=True
    )
    figures["tower_linears"] = time_linears(TOWER_LINEARS, TOWER_LAYERS, PICTURE_PATCHES)
    tower_heads, tower_dim = (TOWER_HEADS, TOWER_HEADS), TOWER_HIDDEN // TOWER_HEADS
    num_windows = PICTURE_PATCHES // WINDOW_PATCHES + 1
    full = time_attention(1, tower_heads, PICTURE_PATCHES, tower_dim, is_causal=False)
    windows = time_attention(num_windows, tower_heads, WINDOW_PATCHES, tower_dim, is_causal=False)
    figures["tower_attention"] = FULL_TOWER_LAYERS * full + (TOWER_LAYERS - FULL_TOWER_LAYERS) * windows
    return figures


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_plot_option(parser)
    args = parser.parse_args(argv)
    figures = {name: round(value, 2) for name, value in measure().items()}
    gpu = torch.cuda.get_device_name()
    report(what="floor", gpu=gpu, **figures)
    if args.plot is not None:
        times = {name.replace("_", " "): {"ms": ms} for name, ms in figures.items() if name != "copy_tb_per_s"}
        save_plot(args.plot, f"What no engine can avoid, {gpu}", [Bars(title="all layers, ms", values=times)])


if __name__ == "__main__":
    main()
