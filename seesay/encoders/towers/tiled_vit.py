"""A tower that sees all tiles of a picture at once, and makes the keys and values to which a decoder attends (Llama 3.2
Vision, Meta 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.device.linear.linear import Linear
from seesay.encoders.towers.layers import Mlp, PixelNormalizer, RMSNorm, make_empty_embedding
from seesay.encoders.towers.tiles import TileLoader
from seesay.encoders.towers.vit_layers import Attention, LayerConfig
from seesay.encoders.towers.weights import load_tower

_ROW_MULTIPLE = 8
"""The rows of a tile are filled up to a multiple of this: real rows attend to these, too, as the published code has
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledVitConfig:
    """Sizes of a tower. `image_size`, of a tile, and `patch_size` are (height, width) in pixels.

    num_layers, num_global_layers: those before and behind the positions of tiles, the latter with gates. The inputs of
    `kept_layers`, of the former, are features beside the output. max_tiles: of a picture; all are computed, blank ones
    too. num_ratios: shapes of pictures in tiles. hidden_size: of what the projector makes. media_layers: the decoder's
    layers that attend to pictures, with `kv_heads` (count, size) each; kv_eps: of the norm of their keys.
    """

    layers: LayerConfig
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    num_layers: int
    num_global_layers: int
    kept_layers: tuple[int, ...]
    max_tiles: int
    num_ratios: int
    hidden_size: int
    media_layers: tuple[int, ...]
    kv_heads: tuple[int, int]
    kv_eps: float

    @property
    def num_rows(self) -> int:
        """Rows of a tile: those of its patches, and one for the class token."""
        height, width = (size // patch for size, patch in zip(self.image_size, self.patch_size, strict=True))
        return height * width + 1

    @property
    def kv_size(self) -> int:
        return self.kv_heads[0] * self.kv_heads[1]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of patches of the picture, and those that fill up tiles and pictures: int64 [R] and [T - R]."""

    real: Tensor
    filled: Tensor


class _TileAttention(Attention):
    """Rows of the picture attend to all, those that fill up to rows of the picture alone."""

    def attend(self, x: Tensor, rows: _Rows) -> Tensor:
        query, key, value = self.qkv(x).view(len(x), 3, *self.heads).unbind(1)
        output = torch.empty_like(query)
        output[rows.real] = _attend(query[rows.real], key, value)
        output[rows.filled] = _attend(query[rows.filled], key[rows.real], value[rows.real])
        result: Tensor = self.proj(output.flatten(1))
        return result


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    parts = [part.transpose(0, 1)[None] for part in (query, key, value)]
    return F.scaled_dot_product_attention(parts[0], parts[1], parts[2])[0].transpose(0, 1)


class _Layer(nn.Module):
    """One layer, under the names of the checkpoints."""

    def __init__(self, config: LayerConfig, *, is_gated: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = config.make_norm(), config.make_norm()
        self.self_attn = _TileAttention(config)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size, config.activation)
        self.gate_attn = nn.Parameter(torch.empty(1)) if is_gated else None
        self.gate_ffn = nn.Parameter(torch.empty(1)) if is_gated else None

    def forward(self, x: Tensor, rows: _Rows) -> Tensor:
        x = x + _gate(self.self_attn.attend(self.input_layernorm(x), rows), self.gate_attn)
        return x + _gate(self.mlp(self.post_attention_layernorm(x)), self.gate_ffn)


def _gate(update: Tensor, gate: Tensor | None) -> Tensor:
    return update if gate is None else update * gate.tanh()


class _TilePositions(nn.Module):
    """What is added to each tile, by the shape of its picture."""

    def __init__(self, config: TiledVitConfig) -> None:
        super().__init__()
        self.embedding = make_empty_embedding(config.num_ratios + 1, config.max_tiles * config.layers.hidden_size)
        self.gate = nn.Parameter(torch.empty(1))
        self._shape = (config.max_tiles, 1, config.layers.hidden_size)

    def forward(self, x: Tensor, ratio: int) -> Tensor:
        return x + self.embedding.weight[ratio].view(self._shape) * self.gate.tanh()


class _RowPositions(nn.Module):
    """What is added to each row of a tile, alike in all tiles, and by the shape of its picture."""

    def __init__(self, config: TiledVitConfig) -> None:
        super().__init__()
        size = config.layers.hidden_size
        self.embedding = nn.Parameter(torch.empty(config.num_rows, size))
        self.tile_embedding = make_empty_embedding(config.num_ratios + 1, config.max_tiles * config.num_rows * size)
        self.gate = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor, ratio: int) -> Tensor:
        gate = self.gate.tanh()
        return x + (1 - gate) * self.embedding + gate * self.tile_embedding.weight[ratio].view(x.shape)


class TiledVit(nn.Module):
    """Patch vectors [N, patches, 3·ph·pw] of the tiles of a picture of this `ratio`, which is the number of its shape
    from 1 on, to rows [N · R, hidden · (1 + kept layers)]."""

    def __init__(self, config: TiledVitConfig) -> None:
        super().__init__()
        layers, self.config = config.layers, config
        self.patch_embedding = Linear(3 * config.patch_size[0] * config.patch_size[1], layers.hidden_size, bias=False)
        self.class_embedding = nn.Parameter(torch.empty(layers.hidden_size))
        self.gated_positional_embedding = _RowPositions(config)
        self.pre_tile_positional_embedding = _TilePositions(config)
        self.post_tile_positional_embedding = _TilePositions(config)
        self.layernorm_pre, self.layernorm_post = (nn.LayerNorm(layers.hidden_size) for _ in range(2))
        self.transformer = _make_layers(layers, config.num_layers, is_gated=False)
        self.global_transformer = _make_layers(layers, config.num_global_layers, is_gated=True)

    def forward(self, patches: Tensor, ratio: int) -> Tensor:
        config, count = self.config, len(patches)
        x = F.pad(self.patch_embedding(patches), (0, 0, 0, 0, 0, config.max_tiles - count))
        x = self.pre_tile_positional_embedding(x, ratio)
        x = torch.cat((self.class_embedding.expand(len(x), 1, -1), x), dim=1)
        x = self.layernorm_pre(self.gated_positional_embedding(x, ratio))
        x = F.pad(x, (0, 0, 0, -config.num_rows % _ROW_MULTIPLE))
        tiles = x.shape
        is_real = torch.zeros(tiles[:2], dtype=torch.bool, device=x.device)
        is_real[:count, : config.num_rows] = True
        rows = _Rows(*(mask.flatten().nonzero()[:, 0] for mask in (is_real, ~is_real)))
        x, kept = x.flatten(0, 1), []
        for index, layer in enumerate(cast("nn.ModuleList", self.transformer["layers"])):
            if index in config.kept_layers:
                kept.append(x)
            x = layer(x, rows)
        x = self.post_tile_positional_embedding(self.layernorm_post(x).view(tiles), ratio).flatten(0, 1)
        for layer in cast("nn.ModuleList", self.global_transformer["layers"]):
            x = layer(x, rows)
        return torch.cat((x, torch.stack(kept, dim=-1).flatten(1)), dim=1)[rows.real]


def _make_layers(config: LayerConfig, count: int, *, is_gated: bool) -> nn.ModuleDict:
    return nn.ModuleDict({"layers": nn.ModuleList(_Layer(config, is_gated=is_gated) for _ in range(count))})


class _KeyValue(nn.Module):
    """Keys and values of one of the decoder's layers, under the names of its tensors."""

    def __init__(self, config: TiledVitConfig) -> None:
        super().__init__()
        self.k_proj = Linear(config.hidden_size, config.kv_size, bias=False)
        self.v_proj = Linear(config.hidden_size, config.kv_size, bias=False)
        self.k_norm = RMSNorm(config.kv_heads[1], config.kv_eps)

    def forward(self, rows: Tensor) -> Tensor:
        keys = self.k_norm(self.k_proj(rows).view(len(rows), -1, self.k_norm.weight.shape[0]))
        return torch.cat((keys.flatten(1), self.v_proj(rows)), dim=1)


class MediaKeyValues(nn.Module):
    """Tower, projector, and keys and values of all layers, one after another: [rows, layers · 2 · G · D]."""

    def __init__(self, config: TiledVitConfig) -> None:
        super().__init__()
        self.tower = TiledVit(config)
        size = config.layers.hidden_size * (1 + len(config.kept_layers))
        self.projector = Linear(size, config.hidden_size)
        self.kv = nn.ModuleDict({str(index): _KeyValue(config) for index in config.media_layers})

    def forward(self, patches: Tensor, ratio: int) -> Tensor:
        rows = self.projector(self.tower(patches, ratio))
        return torch.cat([layer(rows) for layer in self.kv.values()], dim=1)


class TiledEncoder:
    """Encodes pictures one by one. Features: those of `TileLoader`, and `ratio`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        name_of: Callable[[str], str | None],
        config: TiledVitConfig,
        normalizer: PixelNormalizer,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Load the tower. `name_of` is that of `load_tower`. Raises `CheckpointError` naming a tensor that does not
        fit."""
        with torch.device("meta"):
            self.model = MediaKeyValues(config)
        self.weights = load_tower(self.model, checkpoint, name_of, device=device, dtype=dtype)
        self.device, self.dtype = device, dtype
        self.hidden_size = 2 * config.kv_size * len(config.media_layers)
        self._loader = TileLoader(
            normalizer, tile_size=config.image_size, patch_size=config.patch_size, device=device, dtype=dtype
        )

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """As `TileLoader.load_pixels`."""
        return self._loader.load_pixels(*features)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return keys and values for every item: [rows, hidden_size]."""
        patches = [self._loader.load_patches([item]).to(self.dtype) for item in features]
        return [self.model(each, int(item["ratio"])) for each, item in zip(patches, features, strict=True)]

    def disable_graphs(self) -> None:
        """There are none."""

    def forget_graphs(self) -> None:
        """There are none."""
