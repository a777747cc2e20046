"""Products with 4-bit weights on the GPU: every way and every tiling, beside cuBLAS with bfloat16.

    python benchmarks/packed.py [--bits 4] [--group-size 128] [--rows 1,8,64] [--jobs 8] [--plot FILE.png]

Shapes are those of Qwen2.5-VL-7B. *few* reads packed numbers and computes what rides along in a decode step; *tiles*
reads packed numbers, too; *out* multiplies the matrix out, some outputs at a time, and calls cuBLAS. Times are medians
over replays of a CUDA graph, in which weights rotate so that caches do not hold them. The floor is the packed bytes
over the copy bandwidth, or the operations over the rate of matrix products, whichever takes longer.

Prints a JSON line for each shape and number of rows with the best tiling of each way, and at the end the time of the
linear layers of a whole step for each number of rows, and up to how many rows each way is the fastest: the tables of
seesay/kernels/packed/packed_tilings.py. Kernels are compiled by `--jobs` processes beforehand.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.device.linear.packed_product import to_kernel
from seesay.device.linear.packed_weight import PackedWeight, Packer

NUM_LAYERS, HIDDEN, WIDE = 28, 3584, 18944
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COPIES_BYTES = 1 << 28
"""Weights rotate among copies of this many bytes in all: several times the cache."""
DTYPE = torch.bfloat16
NUM_REPLAYS = 9

FEW_TILINGS = (
    (16, 2, 3, 0),
    (16, 2, 4, 0),
    (16, 4, 2, 0),
    (16, 4, 3, 0),
    (16, 4, 3, 16),
    (16, 8, 2, 16),
    (16, 8, 3, 16),
    (32, 4, 2, 0),
    (32, 4, 3, 16),
)
"""(outputs, warps, stages, prefetched blocks)."""
TILINGS = (
    (32, 64, 4, 4, 32),
    (32, 128, 4, 3, 32),
    (64, 64, 4, 3, 32),
    (64, 64, 4, 4, 32),
    (64, 128, 8, 3, 32),
    (128, 64, 4, 2, 32),
    (128, 64, 4, 3, 32),
    (128, 128, 8, 2, 32),
    (128, 128, 8, 3, 32),
    (256, 64, 4, 2, 32),
    (256, 128, 8, 2, 32),
    (128, 64, 4, 2, 64),
)
"""(rows, outputs, warps, stages, words at a time)."""
OUTPUTS_AT_ONCE = (4096, 8192, 1 << 20)

Way = Callable[[int], object]
"""Computes the product with one of the copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A linear layer and what rides along in a decode step."""

    name: str
    num_outputs: int
    num_inputs: int
    has_norm: bool = False
    activation: str | None = None
    adds: bool = False


SHAPES = (
    Shape(name="norm, gate and up, silu", num_outputs=2 * WIDE, num_inputs=HIDDEN, has_norm=True, activation="silu"),
    Shape(name="down, sum", num_outputs=HIDDEN, num_inputs=WIDE, adds=True),
    Shape(name="norm, qkv", num_outputs=4608, num_inputs=HIDDEN, has_norm=True),
    Shape(name="output, sum", num_outputs=HIDDEN, num_inputs=HIDDEN, adds=True),
)


def make_matrix(shape: Shape, group_size: int, bits: int) -> PackedWeight:
    """Return random packed weights on the GPU."""
    device = torch.device("cuda")
    packer = Packer(
        num_outputs=shape.num_outputs, num_inputs=shape.num_inputs, group_size=group_size, bits=bits, device=device
    )

    def unpack(start: int, stop: int) -> torch.Tensor:
        return torch.randint(0, 1 << bits, (stop - start, shape.num_inputs), dtype=torch.uint8, device=device)

    packer.fill(0, shape.num_outputs, unpack, None)
    groups = -(-shape.num_inputs // group_size)
    scales = torch.full((groups, shape.num_outputs), 0.003, dtype=torch.float16, device=device)
    return packer.finish(scales, torch.full_like(scales, 1 << (bits - 1)), None)


def list_ways(shape: Shape, num_rows: int, packed: Sequence[Any]) -> Mapping[str, Mapping[str, Way]]:
    """Return the ways that can multiply so many rows, and each one's tilings by their names."""
    from seesay.kernels.packed import packed_matmul, packed_tilings
    from seesay.kernels.packed.packed_numbers import multiply_out

    x = torch.randn(num_rows, shape.num_inputs, dtype=DTYPE, device="cuda")
    norm = (torch.ones(shape.num_inputs, dtype=DTYPE, device="cuda"), 1e-6) if shape.has_norm else None
    target = torch.zeros(num_rows, shape.num_outputs, dtype=DTYPE, device="cuda") if shape.adds else None

    def few(tiling: tuple[int, int, int, int]) -> Way:
        return lambda copy: packed_matmul.multiply_few(
            x,
            packed[copy % len(packed)],
            None,
            norm=norm,
            activation=shape.activation,
            add_to=target,
            tiling=packed_tilings.FewRowTiling(*tiling),
        )

    def tiles(tiling: tuple[int, int, int, int, int]) -> Way:
        return lambda copy: packed_matmul.multiply_tiles(
            x, packed[copy % len(packed)], None, tiling=packed_tilings.Tiling(*tiling)
        )

    def out(step: int) -> Way:
        def run(copy: int) -> object:
            matrix = packed[copy % len(packed)]
            stops = range(0, shape.num_outputs, step)
            parts = [multiply_out(matrix, i, min(i + step, shape.num_outputs), DTYPE) for i in stops]
            return torch.cat([F.linear(x, part) for part in parts], dim=1) if len(parts) > 1 else F.linear(x, parts[0])

        return run

    ways: dict[str, dict[str, Way]] = {}
    if num_rows <= packed_tilings.MAX_FUSED_ROWS:
        ways["few"] = {str(tiling): few(tiling) for tiling in FEW_TILINGS}
    if num_rows >= 16:
        ways["tiles"] = {str(tiling): tiles(tiling) for tiling in TILINGS}
        ways["out"] = {str(step): out(step) for step in OUTPUTS_AT_ONCE if step == 1 << 20 or step < shape.num_outputs}
    return ways


def try_once(name: str, run: Way) -> bool:
    """Run a way, which compiles its kernels and loads those of cuBLAS; return whether it runs on this GPU."""
    try:
        run(0)
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return False
    return True


def make_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def measure(run: Way, num_copies: int) -> float:
    """Return microseconds of one call, the median of some replays of a graph with all copies."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for copy in range(num_copies):
            run(copy)
    graph.replay()
    events = [make_event() for _ in range(NUM_REPLAYS + 1)]
    for event in events:
        event.record()
        graph.replay()
    torch.cuda.synchronize()
    times = sorted(float(start.elapsed_time(stop)) for start, stop in itertools.pairwise(events))
    return times[len(times) // 2] * 1e3 / num_copies


def compile_part(part: int, num_parts: int, rows: Iterable[int], group_size: int, bits: int) -> None:
    """Compile every `num_parts`-th of the kernels. Triton keeps them on disk."""
    seen: set[tuple[object, ...]] = set()
    for shape in SHAPES:
        packed = [to_kernel(make_matrix(shape, group_size, bits), DTYPE)]
        for num_rows in rows:
            for way, tilings in list_ways(shape, num_rows, packed).items():
                for name, run in tilings.items():
                    key = (shape, way, name, num_rows if way == "few" else None)
                    if key not in seen and len(seen) % num_parts == part:
                        try_once(name, run)
                    seen.add(key)


def find_limits(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return up to how many rows each way takes the least time for all shapes together; 0 if never."""
    totals = sum_rows(records)
    best = {rows: min(times, key=lambda way: times[way]) for rows, times in totals.items() if times}
    return {way: max((n for n, name in best.items() if name == way), default=0) for way in ("few", "tiles", "out")}


def sum_rows(records: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Return for each number of rows the microseconds of all shapes, by the ways that all of them have."""
    totals: dict[int, dict[str, float]] = {}
    for rows in sorted({record["rows"] for record in records}):
        own = [record for record in records if record["rows"] == rows]
        ways = [way for way in ("few", "tiles", "out") if all(record.get(f"{way}_us") is not None for record in own)]
        totals[rows] = {way: sum(record[f"{way}_us"] for record in own) for way in ways}
    return totals


def multiply_plain(x: torch.Tensor, weights: torch.Tensor) -> Way:
    return lambda copy: F.linear(x, weights[copy % len(weights)])


def measure_shape(shape: Shape, rows: Iterable[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    first = make_matrix(shape, options.group_size, options.bits)
    num_bytes = sum(tensor.nbytes for tensor in first.tensors)
    num_copies = max(1, min(16, COPIES_BYTES // num_bytes))
    packed = [to_kernel(first, DTYPE)]
    for _ in range(num_copies - 1):
        packed.append(packed[0]._replace(**{name: getattr(packed[0], name).clone() for name in ("words", "factors")}))
    plain_copies = max(1, min(16, COPIES_BYTES // (2 * shape.num_outputs * shape.num_inputs)))
    plain = torch.randn(plain_copies, shape.num_outputs, shape.num_inputs, dtype=DTYPE, device="cuda")
    records = []
    for num_rows in rows:
        x = torch.randn(num_rows, shape.num_inputs, dtype=DTYPE, device="cuda")
        num_flops = 2.0 * num_rows * shape.num_outputs * shape.num_inputs
        floor = max(num_bytes / options.copy_tb_per_s, num_flops / options.matrix_tflop_per_s) * 1e-6
        record: dict[str, Any] = {"shape": shape.name, "rows": num_rows, "floor_us": round(floor, 2)}
        ways = {"cublas": {"bfloat16": multiply_plain(x, plain)}, **list_ways(shape, num_rows, packed)}
        for way, tilings in ways.items():
            count = len(plain) if way == "cublas" else num_copies
            times = {name: measure(run, count) for name, run in tilings.items() if try_once(name, run)}
            best = sorted(times, key=lambda name: times[name])
            record[f"{way}_us"] = round(times[best[0]], 2) if best else None
            if len(tilings) > 1:
                record[way] = ", ".join(f"{name} {times[name]:.1f}" for name in best[:3])
        records.append(record)
        print(json.dumps(record), flush=True)
    return records


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--rows", type=lambda text: tuple(map(int, text.split(","))), default=ROWS)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--copy-tb-per-s", type=float, default=4.3)
    parser.add_argument("--matrix-tflop-per-s", type=float, default=790.0)
    parser.add_argument("--compile-part", type=int, help=argparse.SUPPRESS)
    add_plot_option(parser)
    options = parser.parse_args()
    if options.compile_part is not None:
        compile_part(options.compile_part, options.jobs, options.rows, options.group_size, options.bits)
        return
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/packed.py needs a CUDA GPU, and torch finds none")
    command = [sys.executable, *sys.argv, "--compile-part"]
    children = [subprocess.Popen([*command, str(part)]) for part in range(options.jobs)]
    codes = [child.wait() for child in children]
    if any(codes):
        raise SystemExit("a process that compiles kernels has failed")
    records = [record for shape in SHAPES for record in measure_shape(shape, options.rows, options)]
    for num_rows, times in sum_rows(records).items():
        total = {f"{way}_ms": round(time * NUM_LAYERS / 1e3, 3) for way, time in times.items()}
        cublas = sum(record["cublas_us"] for record in records if record["rows"] == num_rows)
        print(json.dumps({"step_rows": num_rows, **total, "cublas_ms": round(cublas * NUM_LAYERS / 1e3, 3)}))
    print(json.dumps({"fastest_up_to_rows": find_limits(records)}))
    if options.plot is not None:
        series = {"few_us": "few", "tiles_us": "tiles", "out_us": "out", "cublas_us": "cuBLAS, bfloat16"}
        bars = [{**record, "name": f"{record['shape']} {record['rows']}"} for record in records]
        save_plot(options.plot, "Products with packed weights", [make_bars("microseconds", bars, "name", series)])


if __name__ == "__main__":
    main()
