"""Products of low rank on a GPU: what adapters add to each linear layer of a decoder layer.

    python benchmarks/low_rank.py [--rows 256,8192] [--slots 1,32,256] [--rank 16]

Sizes are those of Qwen2.5-VL-7B; row i has the factors of slot i modulo the number, in prompts of 744 rows from 512
rows on. Slots are as far from each other as those of adapters of the whole model. Times are medians in microseconds
over replays of a CUDA graph, in which layers rotate so that caches do not hold their factors; of a gated layer without
what its activation takes alone. Prints a line for each layer, and the terabytes of factors and rows per second.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from experts import time_us

from seesay.device.transfers import upload
from seesay.kernels import low_rank
from seesay.kernels.low_rank import SlotProducts
from seesay.kernels.token_kernels import act_and_mul
from seesay.llm.ops.low_rank import LARGE_TILE, SMALL_TILE, SPAN, SlotOutputs, count_tiles, sort_by_slot

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
NUM_LAYERS, ALL_LAYERS, PROMPT_ROWS, FEW_ROWS = 4, 28, 744, 512


class Site(NamedTuple):
    """A linear layer: the first output of each source, and the number of outputs; and its inputs."""

    bounds: tuple[int, ...]
    num_inputs: int
    activation: str | None = None

    def count(self, rank: int) -> int:
        """Return how many numbers the factors have."""
        return rank * ((len(self.bounds) - 1) * self.num_inputs + self.bounds[-1])


SITES = {
    "qkv": Site((0, 3584, 4096, 4608), 3584),
    "o": Site((0, 3584), 3584),
    "gate and up": Site((0, 18944, 37888), 3584, "silu"),
    "down": Site((0, 3584), 18944),
}


def make_factors(memory: torch.Tensor, site: Site, place: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A, B) in the slots `memory` [slots, numbers], from a place on."""
    num_made = (len(site.bounds) - 1) * rank
    num_a = num_made * site.num_inputs
    a, b = memory[:, place : place + num_a], memory[:, place + num_a : place + site.count(rank)]
    num_slots, num_outputs = len(memory), site.bounds[-1]
    return a.view(num_slots, num_made, site.num_inputs), b.view(num_slots, rank, num_outputs)


def make_tiles(num_rows: int, num_slots: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the tokens, the tiles and the rows of a tile: of few rows as in a CUDA graph."""
    rows: npt.NDArray[np.int64] = np.arange(num_rows)
    is_decode = num_rows < FEW_ROWS
    slots = rows % num_slots if is_decode else rows // PROMPT_ROWS % num_slots
    found = sort_by_slot(slots, tile_rows=SMALL_TILE if is_decode else LARGE_TILE)
    tiles = np.zeros((count_tiles(num_rows, num_slots) if is_decode else len(found.tiles), 3), dtype=np.int32)
    tiles[: len(found.tiles)] = found.tiles
    tokens, there = upload([found.tokens, tiles], DEVICE)
    return tokens, there, found.tile_rows


def measure(name: str, site: Site, memory: torch.Tensor, place: int, num_rows: int, rank: int) -> float:
    """Print and return the microseconds of one layer."""
    num_slots, num_sources = len(memory), len(site.bounds) - 1
    outputs, ranks = (
        SlotOutputs.make(site.bounds, DEVICE),
        torch.full((num_slots, num_sources), rank, dtype=torch.int32, device=DEVICE),
    )
    tokens, tiles, tile_rows = make_tiles(num_rows, num_slots)
    x = torch.randn(num_rows, site.num_inputs, dtype=DTYPE, device=DEVICE)
    y = [torch.randn(num_rows, site.bounds[-1], dtype=DTYPE, device=DEVICE) for _ in range(NUM_LAYERS)]
    stride = memory.shape[1] // ALL_LAYERS
    products = [
        SlotProducts(
            *make_factors(memory, site, place + stride * layer, rank),
            ranks,
            outputs.spans,
            tokens,
            tiles,
            tile_rows,
            span=SPAN,
            is_aligned=outputs.is_aligned,
        )
        for layer in range(NUM_LAYERS)
    ]
    own = list(zip(y, products, strict=True))
    if site.activation is None:
        us = time_us([partial(low_rank.add_low_rank, each, x, one) for each, one in own])
    else:
        us = time_us([partial(low_rank.add_and_gate, each, x, one, site.activation) for each, one in own])
        us -= time_us([partial(act_and_mul, each, site.activation) for each in y])
    num_bytes = 2 * (min(num_rows, num_slots) * site.count(rank) + num_rows * (site.num_inputs + 2 * site.bounds[-1]))
    print(f"  {name:12} {us:8.1f} us {num_bytes / us / 1e6:6.2f} TB/s", flush=True)
    return us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="256,8192", help="with commas")
    parser.add_argument("--slots", default="1,32,256", help="with commas")
    parser.add_argument("--rank", type=int, default=16, help="a multiple of 16")
    args = parser.parse_args()
    size = sum(site.count(args.rank) for site in SITES.values())
    for num_slots in map(int, args.slots.split(",")):
        memory = torch.randn(num_slots, ALL_LAYERS * size, device=DEVICE, dtype=DTYPE).mul_(0.01)
        for num_rows in map(int, args.rows.split(",")):
            print(f"{num_rows} rows, {num_slots} slots")
            total, place = 0.0, 0
            for name, site in SITES.items():
                total += measure(name, site, memory, place, num_rows, args.rank)
                place += site.count(args.rank)
            print(f"  {'layer':12} {total:8.1f} us", flush=True)
        del memory


if __name__ == "__main__":
    main()
