"""Numbers of tokens and rows that steps on a GPU are filled up to.

cuBLAS has kernels for many sizes of a product, and loads each when it is first used, which takes the host a while and
waits for all that is being computed. With few sizes, all of them used once at start, no request meets that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def row_sizes(max_batch_size: int) -> list[int]:
    """Numbers of rows that give a next token, ascending: the steps grow with them, so that few rows are padding."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_batch_size + 32, 32)]
    return sorted({min(size, max_batch_size) for size in sizes})


def token_sizes(max_tokens: int) -> list[int]:
    """Numbers of tokens of a step, ascending, up to `max_tokens`."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 2048, 64), *range(2048, 4096, 256), *range(4096, max_tokens, 512)]
    return [size for size in sizes if size < max_tokens] + [max_tokens]


def fill_up(count: int, sizes: Sequence[int]) -> int:
    """The size that `count` is filled up to; itself beyond the last one."""
    return sizes[bisect_left(sizes, count)] if count <= sizes[-1] else count
