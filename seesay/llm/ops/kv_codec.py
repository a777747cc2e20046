"""Keys and values to and from the blocks of a layer's cache, in plain torch. The oracle of the kernels that do so.

Integers have a scale and a zero point per head and token (asymmetric quantization, as in LMDeploy's KV cache), FP8 a
scale. Rounding takes the parameters as they are stored, so their own rounding costs no accuracy.
"""

from __future__ import annotations

import torch

from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache

MAX_FP8 = 448.0
LEAST_FP8_PEAK = 1e-30
"""Vectors of smaller components are taken as zero: the inverse of their scale would overflow."""
_STEPS: dict[KVFormat, int] = {"int8": 255, "int4": 15}


def write_tokens(cache: LayerCache, slots: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor | None:
    """Write keys and values [T, 2, G, D], or latent rows [T, 1, 1, D], to `slots` int64 [T] of the cache. Return the
    parameters [T, 2, G, P] of quantized ones, which are not finite where keys or values are not, or are too large for
    the format."""
    layout = cache.layout
    if layout.format == "plain":
        cache.data.flatten(0, 1).index_copy_(0, slots, pairs)
        return None
    blocks, places = slots // layout.block_size, slots % layout.block_size
    if layout.turned_dim:
        parts = [quantize(part, layout.format) for part in _split(pairs.float(), layout)]
        data, params = torch.cat([part for part, _ in parts], dim=-1), torch.cat([part for _, part in parts], dim=1)
    else:
        data, params = quantize(pairs.float(), layout.format)
        cache.values[blocks, :, :, places] = data[:, 1]
    cache.keys[blocks, :, places] = data[:, 0]
    cache.params[blocks, :, :, places] = params.view(torch.float32).squeeze(-1)
    return params.float()


def read_blocks(cache: LayerCache, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return keys and values [N, block_size, 2, G, D] of the blocks int64 [N]. Latent rows are both."""
    layout = cache.layout
    if layout.format == "plain":
        return cache.data.index_select(0, blocks).expand(-1, -1, 2, -1, -1)
    keys = cache.keys.index_select(0, blocks).transpose(1, 2).unsqueeze(2)
    params = cache.params.index_select(0, blocks).permute(0, 3, 1, 2)
    if layout.turned_dim:
        return _read_rows(keys, params, layout).to(dtype).expand(-1, -1, 2, -1, -1)
    values = cache.values.index_select(0, blocks).permute(0, 3, 1, 2).unsqueeze(2)
    return dequantize(torch.cat((keys, values), dim=2), params, layout.format).to(dtype)


def read_tokens(cache: LayerCache, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return keys and values [T, 2, G, D] of the slots int64 [T]. Latent rows are both."""
    layout = cache.layout
    if layout.format == "plain":
        return cache.data.flatten(0, 1).index_select(0, slots).expand(-1, 2, -1, -1)
    blocks, places = slots // layout.block_size, slots % layout.block_size
    keys, params = cache.keys[blocks, :, places].unsqueeze(1), cache.params[blocks, :, :, places]
    if layout.turned_dim:
        return _read_rows(keys, params, layout).to(dtype).expand(-1, 2, -1, -1)
    values = cache.values[blocks, :, :, places].unsqueeze(1)
    return dequantize(torch.cat((keys, values), dim=1), params, layout.format).to(dtype)


def _split(rows: torch.Tensor, layout: KVLayout) -> tuple[torch.Tensor, ...]:
    """Return what is rotated in latent rows [..., D], and what is not."""
    return torch.split(rows, [layout.turned_dim, layout.head_dim - layout.turned_dim], dim=-1)


def _read_rows(data: torch.Tensor, params: torch.Tensor, layout: KVLayout) -> torch.Tensor:
    """Return the latent rows float32 [..., 1, 1, D] of bytes of that shape and parameters [..., 2, 1]."""
    parts = zip(_split(data, layout), torch.split(params, 1, dim=-2), strict=True)
    return torch.cat([dequantize(part, own, layout.format) for part, own in parts], dim=-1)


def quantize(x: torch.Tensor, kind: KVFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes [..., R] and parameters [..., P] of vectors x float32 [..., D]: P is 2, float16 scale and zero
    point, for integers, and 1, a float32 scale, for FP8."""
    if kind == "fp8":
        peak = x.abs().amax(dim=-1, keepdim=True)
        inverse = torch.where(peak >= LEAST_FP8_PEAK, MAX_FP8 / peak, 0.0)
        numbers = (x * inverse).clamp(-MAX_FP8, MAX_FP8).to(torch.float8_e4m3fn)
        return numbers.view(torch.uint8), peak / MAX_FP8
    steps = _STEPS[kind]
    low, high = x.amin(dim=-1, keepdim=True).clamp(max=0), x.amax(dim=-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / steps).half()
    inverse = torch.where(scale > 0, 1 / scale.float(), 0.0)
    zero = (-low * inverse).half()
    numbers = (x * inverse + zero.float() + 0.5).nan_to_num(0.0).clamp(0, steps + 0.5).to(torch.uint8)
    if kind == "int4":
        first, last = numbers.chunk(2, dim=-1)
        numbers = first | last << 4
    return numbers, torch.cat((scale, zero), dim=-1)


def dequantize(data: torch.Tensor, params: torch.Tensor, kind: KVFormat) -> torch.Tensor:
    """Return the vectors float32 [..., D] of bytes [..., R] and parameters [...], four bytes each seen as float32."""
    if kind == "fp8":
        return data.contiguous().view(torch.float8_e4m3fn).float() * params.unsqueeze(-1)
    scale, zero = params.unsqueeze(-1).contiguous().view(torch.float16).float().chunk(2, dim=-1)
    if kind == "int4":
        data = torch.cat((data & 15, data >> 4), dim=-1)
    return (data.float() - zero) * scale
