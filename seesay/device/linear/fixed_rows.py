"""Products whose result for a row has the same bits, whatever rows are multiplied beside it and wherever it is.

On the CPU, libraries choose kernels by the number of rows. So a product is computed in tiles of few fixed numbers of
rows, and the start tries whether a row gets the same bits in each of these tiles, at any place and by any threads. On a
GPU, see `seesay.kernels.fixed_matmul`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from seesay.device.backends import has_kernels
from seesay.device.linear.linear_method import LinearKernel, Product, Sizes
from seesay.device.query import cpu_threads
from seesay.errors import ConfigError

TILES = (64, 16)
"""Numbers of rows of a tile, the largest first. Only the last one may have rows that are filled up."""
_LEAST_TRIED = 7
"""Places of a tile that are tried, besides the first and the last."""


_Kind = tuple[str, int, int, torch.dtype, int]
_tiles: dict[_Kind, tuple[int, ...]] = {}
"""The tiles of products that were tried: by method, outputs, inputs, dtype and threads."""


def fix_rows(product: Product, bias: torch.Tensor | None, sizes: Sizes, *, dtype: torch.dtype, name: str) -> Product:
    """Return the product of the same weight and bias whose results do not depend on other rows. Raises `ConfigError`
    that names the method `name` where there is none."""
    device = product.tensors[0].device
    if has_kernels(device):
        return _fix_on_gpu(product, bias, name)
    num_inputs = sizes.inputs + -sizes.inputs % sizes.input_multiple
    kind = name, sum(sizes.outputs), num_inputs, dtype, torch.get_num_threads()
    tiles = _tiles.get(kind)
    if tiles is None:
        tiles = _tiles[kind] = find_tiles(product.run, num_inputs, dtype)
    if not tiles:
        raise ConfigError(
            f"deterministic: on this CPU, {name} products of {num_inputs} inputs depend on the place of a row: "
            "leave it out, or take another dtype"
        )
    return replace(product, run=partial(_run_tiles, product, tiles), add=partial(_add_tiles, product, tiles))


def _fix_on_gpu(product: Product, bias: torch.Tensor | None, name: str) -> Product:
    matrix = None if product.make_matrix is None else product.make_matrix()
    if matrix is None or matrix.group_size is not None or all(matrix.numbers is not each for each in product.tensors):
        raise ConfigError(
            f"deterministic: there is no kernel for {name} weights whose results do not depend on other rows: "
            "leave it out, or take a checkpoint with plain weights"
        )
    from seesay.kernels.fixed_matmul import add_product, multiply

    weight = matrix.numbers
    return Product(
        tensors=product.tensors,
        run=partial(multiply, weight=weight, bias=bias, scale=matrix.scale),
        add=partial(add_product, weight=weight, scale=matrix.scale),
    )


def find_tiles(run: LinearKernel, num_inputs: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Return those of `TILES` in which a row gets the same bits at all places that are tried, with one thread and with
    all, as in the smallest tile; empty where it does not even there."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, num_inputs, generator=generator).to(dtype)
    wanted: torch.Tensor | None = None
    found = []
    for size in reversed(TILES):
        rows = torch.randn(size, num_inputs, generator=generator).to(dtype)
        results = []
        for num_threads in {1, torch.get_num_threads()}:
            with cpu_threads(num_threads):
                results += [_try_place(run, rows, row, place) for place in _choose_places(size)]
        wanted = results[0] if wanted is None else wanted
        if all(map(partial(torch.equal, wanted), results)):
            found.append(size)
        elif not found:
            return ()
    return tuple(reversed(found))


def _try_place(run: LinearKernel, rows: torch.Tensor, row: torch.Tensor, place: int) -> torch.Tensor:
    rows = rows.clone()
    rows[place] = row[0]
    with torch.inference_mode():
        return run(rows)[place].nan_to_num()


def _choose_places(size: int) -> list[int]:
    return sorted({0, size - 1, *range(0, size, max(1, size // _LEAST_TRIED))})


def _run_tiles(product: Product, tiles: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if not len(rows):
        return product.run(x)
    return _in_tiles(product.run, tiles, rows).view(*x.shape[:-1], -1)


def _add_tiles(product: Product, tiles: tuple[int, ...], target: torch.Tensor, x: torch.Tensor) -> None:
    def multiply(rows: torch.Tensor) -> torch.Tensor:
        made = rows.new_zeros(len(rows), target.shape[1])
        product.add(made, rows)
        return made

    if len(x):
        target.add_(_in_tiles(multiply, tiles, x))


def _in_tiles(
    compute: Callable[[torch.Tensor], torch.Tensor], tiles: tuple[int, ...], rows: torch.Tensor
) -> torch.Tensor:
    pieces = []
    for start, stop, size in _cut(len(rows), tiles):
        tile = rows[start:stop].contiguous()
        if len(tile) < size:
            tile = torch.cat((tile, tile.new_zeros(size - len(tile), tile.shape[1])))
        pieces.append(compute(tile)[: stop - start])
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _cut(count: int, tiles: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, one past the last row, size of the tile)."""
    start = 0
    for size in tiles:
        while count - start >= size or (size == tiles[-1] and start < count):
            stop = min(count, start + size)
            yield start, stop, size
            start = stop
