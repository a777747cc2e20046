"""How keys and values lie in a layer's KV blocks. Each layer has a layout of its own.

A plain block is [block_size, 2, G, D] in the model's dtype, keys before values. A quantized block is bytes: all keys
[G, block_size, R], all values [G, R, block_size], and a parameter of four bytes per key and value [2, G, block_size].
So what one head has of a block is contiguous, and both products of attention read along the axis that they sum over.
Latent rows are keys and values at once: a plain block has one of each token, and a quantized one has all rows
[block_size, R], and a parameter each of what is rotated in a row and of what is not [2, block_size].

R is D bytes, but for int4, whose byte j has component j in its low bits and component j + D / 2 in its high bits. The
parameter of integers is two float16, scale and zero point: x = scale · (q - zero). That of FP8 is a float32, the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from seesay.errors import ConfigError

KVFormat = Literal["plain", "int8", "int4", "fp8"]

_ALIGNMENT = 16
"""Bytes to which parts of a block are aligned: what a GPU's thread loads at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The layout of one layer's blocks. dtype: that of plain keys and values. turned_dim: a row is both, of one head,
    and its first components are rotated; 0: they are two."""

    format: KVFormat = "plain"
    dtype: torch.dtype
    block_size: int
    num_kv_heads: int
    head_dim: int
    turned_dim: int = 0

    def __post_init__(self) -> None:
        if self.format != "plain" and self.head_dim % 2:
            raise ConfigError(f"a KV cache in {self.format} needs an even head_dim, got {self.head_dim}")
        if self.format == "int4" and self.turned_dim:
            raise ConfigError("latent rows are not kept in int4: take kv_cache_dtype='fp8', 'int8' or 'auto'")

    @property
    def num_parts(self) -> int:
        """Rows that a block has of each head and token."""
        return 1 if self.turned_dim else 2

    @property
    def row_bytes(self) -> int:
        """Bytes of one head's key or value, without its parameter."""
        if self.format == "plain":
            return self.head_dim * self.dtype.itemsize
        return self.head_dim // 2 if self.format == "int4" else self.head_dim

    @property
    def values_at(self) -> int:
        """Of a quantized block, the byte where values begin."""
        return self.num_kv_heads * self.block_size * self.row_bytes

    @property
    def params_at(self) -> int:
        """Of a quantized block, the byte where parameters begin."""
        return _aligned(self.num_parts * self.values_at)

    @property
    def block_bytes(self) -> int:
        if self.format == "plain":
            return self.block_size * self.num_parts * self.num_kv_heads * self.row_bytes
        return _aligned(self.params_at + 2 * self.num_kv_heads * self.block_size * 4)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of a block as a tensor of `element_type`."""
        if self.format == "plain":
            return self.block_size, self.num_parts, self.num_kv_heads, self.head_dim
        return (self.block_bytes,)

    @property
    def element_type(self) -> torch.dtype:
        return self.dtype if self.format == "plain" else torch.uint8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCache:
    """What one layer keeps: of tokens `data` [num_blocks, *layout.block_shape], and of sequences `states`
    [num_slots, …] each."""

    layout: KVLayout
    data: torch.Tensor
    states: tuple[torch.Tensor, ...] = ()

    @classmethod
    def plain(cls, data: torch.Tensor) -> LayerCache:
        """Return the cache whose plain blocks are `data` [num_blocks, block_size, 2, G, D]."""
        _, block_size, two, num_kv_heads, head_dim = data.shape
        assert two == 2, data.shape
        layout = KVLayout(dtype=data.dtype, block_size=block_size, num_kv_heads=num_kv_heads, head_dim=head_dim)
        return cls(layout=layout, data=data)

    @classmethod
    def zeros(cls, layout: KVLayout, num_blocks: int, device: torch.device) -> LayerCache:
        """Return a cache of zeros."""
        data = torch.zeros((num_blocks, *layout.block_shape), dtype=layout.element_type, device=device)
        return cls(layout=layout, data=data)

    # Views of quantized blocks.

    @property
    def keys(self) -> torch.Tensor:
        """uint8 [num_blocks, G, block_size, R]; or latent rows."""
        at = self.layout
        return self.data[:, : at.values_at].view(-1, at.num_kv_heads, at.block_size, at.row_bytes)

    @property
    def values(self) -> torch.Tensor:
        """uint8 [num_blocks, G, R, block_size]."""
        at = self.layout
        part = self.data[:, at.values_at : 2 * at.values_at]
        return part.view(-1, at.num_kv_heads, at.row_bytes, at.block_size)

    @property
    def params(self) -> torch.Tensor:
        """float32 [num_blocks, 2, G, block_size], bits of parameters: of keys and values, or of a row's parts."""
        at = self.layout
        part = self.data[:, at.params_at : at.params_at + 8 * at.num_kv_heads * at.block_size]
        return part.view(torch.float32).view(-1, 2, at.num_kv_heads, at.block_size)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
