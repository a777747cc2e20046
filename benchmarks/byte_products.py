"""Products with weights of one byte per number on a GPU, with several tilings: what a decode step and a prompt take.

    python benchmarks/byte_products.py [--part few --part many --part rows] [--rows 1 --rows 8 --rows 32]

Shapes are those of a 7B backbone (hidden size 3584). Times are medians in microseconds over replays of a CUDA graph, in
which weights rotate so that caches do not hold them, the shortest of each group first. *few*: what each product of a
decode step takes with what rides along, and the terabytes of weights that it reads per second; with rows in float16
and FP8, too. *many*: products of quantized rows, and cuBLAS's. *rows*: rows quantized in the pass that computes them,
and in one of their own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from triton.runtime.jit import JITFunction
from triton.testing import do_bench_cudagraph

from seesay.kernels import quantize, scaled_matmul, token_kernels
from seesay.kernels.few_rows import few_row_matmul
from seesay.kernels.few_rows.few_row_tilings import Tiling

HIDDEN, INNER, QKV, VOCAB = 3584, 18944, 4608, 152064
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
FP8, INT8 = torch.float8_e4m3fn, torch.int8
ROTATED_BYTES = 1 << 28
NUM_THREADS = 16

LAYERS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "qkv": (QKV, HIDDEN, {"norm": True}),
    "out": (HIDDEN, HIDDEN, {"adds": True}),
    "gate_up": (2 * INNER, HIDDEN, {"norm": True, "activation": "silu"}),
    "down": (HIDDEN, INNER, {"adds": True}),
}
"""Outputs, inputs, and what rides along."""
PLAIN_TILINGS = [(2, 4096, 4), (4, 1024, 2), (4, 1024, 4), (8, 512, 2), (8, 512, 4), (8, 1024, 4)]
DOT_TILINGS = [(16, 256, 1, 4), (16, 512, 1, 3), (32, 256, 2, 4), (64, 128, 4, 5), (64, 256, 4, 4)]
KINDS = {"bfloat16": DTYPE, "fp8": FP8, "int8": INT8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`run(copy)` calls an operation once. num_bytes: of weights that it reads."""

    group: str
    name: str
    run: Callable[[int], object]
    num_copies: int = 1
    num_bytes: float = 0.0


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, kernels that are launched only compile, in threads."""
    from triton import AsyncCompileMode

    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> object:  # noqa: ARG001
        return launch(self, *args, grid=grid, warmup=True, **options)

    with (
        mock.patch.object(JITFunction, "run", compile_only),
        ThreadPoolExecutor(NUM_THREADS) as threads,
        AsyncCompileMode(threads),
    ):
        yield


def make_weights(num_outputs: int, num_inputs: int, kind: torch.dtype) -> list[torch.Tensor]:
    count = int(max(1, min(16, ROTATED_BYTES // (num_outputs * num_inputs * kind.itemsize))))
    plain = torch.randn(num_outputs, num_inputs, device=DEVICE, dtype=DTYPE)
    return [(plain * 20).to(kind) for _ in range(count)]


def few_figures(num_rows: int, layers: Iterable[str], kinds: Iterable[str]) -> Iterator[Figure]:
    for layer in layers:
        num_outputs, num_inputs, options = LAYERS[layer]
        for kind in kinds:
            group = f"{layer} {kind}, {num_rows} rows"
            yield from layer_figures(group, num_rows, KINDS[kind], (num_outputs, num_inputs), options)


def layer_figures(
    group: str, num_rows: int, kind: torch.dtype, shape: tuple[int, int], options: dict[str, Any]
) -> Iterator[Figure]:
    weights, activation = make_weights(*shape, kind), options.get("activation")
    scale = None if kind == DTYPE else torch.rand(shape[0], device=DEVICE)
    tilings: list[Tiling | None] = [None]
    if kind != DTYPE:
        tilings += [Tiling(*sizes) for sizes in PLAIN_TILINGS] if num_rows == 1 else []
        tilings += [Tiling(*sizes) for sizes in DOT_TILINGS]
    for x_type in (DTYPE, torch.float16, FP8):
        if x_type != DTYPE and (kind == DTYPE or (x_type == FP8 and kind != FP8)):
            continue
        x = torch.randn(num_rows, shape[1], device=DEVICE).to(x_type)
        out = torch.zeros(num_rows, shape[0], device=DEVICE).to(x_type) if options.get("adds") else None
        weight_norm = torch.ones(shape[1], device=DEVICE, dtype=x_type)
        norm = (weight_norm, 1e-6) if options.get("norm") and x_type != FP8 else None
        for tiling in tilings:
            if x_type != DTYPE and (tiling is None or not tiling.num_stages):
                continue

            def run(copy: int, x: Any = x, out: Any = out, norm: Any = norm, tiling: Any = tiling) -> object:
                return few_row_matmul.multiply(
                    x, weights[copy], None, scale=scale, norm=norm, activation=activation, add_to=out, tiling=tiling
                )

            name = f"x {str(x_type)[6:]} {'as chosen' if tiling is None else tuple(tiling)}"
            yield Figure(
                group=group, name=name, run=run, num_copies=len(weights), num_bytes=shape[0] * shape[1] * kind.itemsize
            )


def many_figures(num_rows: int) -> Iterator[Figure]:
    """The product of gate and up, and that of down."""
    for layer in ("gate_up", "down"):
        num_outputs, num_inputs, _ = LAYERS[layer]
        group = f"{layer}, {num_rows} rows"
        plain = torch.randn(num_rows, num_inputs, device=DEVICE, dtype=DTYPE)
        weight = torch.randn(num_outputs, num_inputs, device=DEVICE, dtype=DTYPE)
        yield Figure(group=group, name="bfloat16, cuBLAS", run=partial(_linear, plain, weight))
        rows = quantize.quantize_rows(plain, FP8, 448.0)
        numbers, scale = quantize.quantize_rows(weight, FP8, 448.0)
        yield Figure(group=group, name="fp8, cuBLAS", run=partial(_scaled_mm, rows, numbers.t(), scale.t()))
        grouped = quantize.quantize_rows(plain, FP8, 448.0, 128)
        scales = torch.rand(num_inputs // 128, num_outputs, device=DEVICE).t()
        for sizes in (None, (64, 128, 128, 4, 4), (128, 128, 128, 4, 3), (128, 128, 128, 8, 3), (64, 256, 128, 8, 3)):
            yield Figure(group=group, name=f"fp8 blocks {sizes}", run=_scaled(grouped, numbers, scales, sizes, 128))
        whole = quantize.quantize_rows(plain, INT8, 127.0)
        integers, scale = quantize.quantize_rows(weight, INT8, 127.0)
        if num_rows > 16:
            yield Figure(group=group, name="int8, cuBLAS, without scales", run=partial(_int_mm, whole[0], integers.t()))
        for sizes in (None, (64, 128, 128, 4, 4), (128, 128, 128, 4, 4), (128, 256, 128, 8, 3), (128, 128, 128, 8, 4)):
            yield Figure(group=group, name=f"int8 {sizes}", run=_scaled(whole, integers, scale.flatten(), sizes, None))


def _linear(x: torch.Tensor, weight: torch.Tensor, _: int) -> object:
    return F.linear(x, weight)


def _scaled_mm(rows: Any, weight: torch.Tensor, scale: torch.Tensor, _: int) -> object:
    return torch._scaled_mm(rows[0], weight, rows[1], scale, out_dtype=DTYPE, use_fast_accum=True)


def _int_mm(numbers: torch.Tensor, weight: torch.Tensor, _: int) -> object:
    return torch._int_mm(numbers, weight)


def _scaled(rows: Any, weight: Any, scale: Any, sizes: Any, group_size: int | None) -> Callable[[int], object]:
    tiling = None if sizes is None else scaled_matmul.Tiling(*sizes)
    return lambda _: scaled_matmul.multiply_scaled(
        rows, None, weight=weight, scale=scale, dtype=DTYPE, group_size=group_size, tiling=tiling
    )


def row_figures(num_rows: int) -> Iterator[Figure]:
    x, residual = (torch.randn(num_rows, HIDDEN, device=DEVICE, dtype=DTYPE) for _ in range(2))
    norm, wide = (
        torch.ones(HIDDEN, device=DEVICE, dtype=DTYPE),
        torch.randn(num_rows, 2 * INNER, device=DEVICE, dtype=DTYPE),
    )
    to: Any = {"dtype": FP8, "largest": 448.0}
    group = f"norm, {num_rows} rows"
    yield Figure(group=group, name="alone", run=lambda _: token_kernels.norm(x, residual, norm, 1e-6))
    yield Figure(
        group=group,
        name="and rows in FP8 in a pass of their own",
        run=lambda _: quantize.quantize_rows(token_kernels.norm(x, residual, norm, 1e-6), **to),
    )
    yield Figure(
        group=group, name="with rows in FP8", run=lambda _: quantize.quantize_norm(x, residual, norm, 1e-6, **to)
    )
    group = f"activation, {num_rows} rows"
    yield Figure(group=group, name="alone", run=lambda _: token_kernels.act_and_mul(wide, "silu"))
    yield Figure(
        group=group,
        name="and rows in FP8 in a pass of their own",
        run=lambda _: quantize.quantize_rows(token_kernels.act_and_mul(wide, "silu"), **to),
    )
    yield Figure(group=group, name="with rows in FP8", run=lambda _: quantize.quantize_activation(wide, "silu", **to))
    blocks = {**to, "group_size": 128}
    yield Figure(
        group=group, name="with groups in FP8", run=lambda _: quantize.quantize_activation(wide, "silu", **blocks)
    )


def measure_us(figure: Figure) -> float:
    def call() -> None:
        for copy in range(figure.num_copies):
            figure.run(copy)

    return float(do_bench_cudagraph(call, rep=10, return_mode="median")) * 1e3 / figure.num_copies


def report(figures: list[Figure]) -> None:
    """Print the times of figures of one group; those that are not near the best in short."""
    measured: list[tuple[float, Figure]] = []
    for figure in figures:
        try:
            measured.append((measure_us(figure), figure))
        except Exception as error:  # a tiling that does not fit this GPU
            print(f"  {figure.name}: {type(error).__name__}: {str(error)[:60]}", flush=True)
    measured.sort(key=lambda pair: pair[0])
    print(figures[0].group, flush=True)
    for number, (time_us, figure) in enumerate(measured):
        if number < 4 or "chosen" in figure.name or not figure.num_bytes:
            rate = f"  {figure.num_bytes / time_us / 1e6:.2f} TB/s" if figure.num_bytes else ""
            print(f"  {time_us:8.1f} {figure.name}{rate}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", action="append", choices=("few", "many", "rows"))
    parser.add_argument("--rows", action="append", type=int, help="rows of few-row products")
    parser.add_argument("--layer", action="append", choices=LAYERS, help="layers of few-row products")
    parser.add_argument("--kind", action="append", choices=KINDS, help="kinds of weights of few-row products")
    given = parser.parse_args()
    makers: list[Callable[[], Iterator[Figure]]] = []
    for part in given.part or ("few", "many", "rows"):
        if part == "few":
            layers, kinds = given.layer or list(LAYERS), given.kind or list(KINDS)
            makers += [partial(few_figures, num_rows, layers, kinds) for num_rows in given.rows or (1, 32)]
        else:
            makers += [partial(many_figures if part == "many" else row_figures, n) for n in (64, 512, 1440, 8192)]
    torch.manual_seed(0)
    for maker in makers:
        figures = list(maker())
        try:
            with compiling():
                for figure in figures:
                    figure.run(0)
        except ImportError:
            pass
        for group in dict.fromkeys(figure.group for figure in figures):
            report([figure for figure in figures if figure.group == group])
        del figures
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
