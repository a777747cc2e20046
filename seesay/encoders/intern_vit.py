"""The InternViT tower with pixel shuffle and projector (arXiv 2404.16821): tiles of one size to rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from seesay.device.layer_loading import LoadedLayers
from seesay.device.linear import Linear
from seesay.encoders.layers import (
    QKV,
    Mlp,
    Norm,
    PixelNormalizer,
    RMSNorm,
    SplitAttention,
    add_norm,
    get_activation,
    join_squares,
)
from seesay.encoders.tiles import TileEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVisionConfig:
    """Sizes of tower and projector. `image_size` and `patch_size` are (height, width) in pixels.

    `num_layers` layers run; `has_final_norm`: a layer norm follows the last one. `has_joined_qkv`: the checkpoint has
    one weight for queries, keys and values. Squares of `shuffle`² patches are joined to one row; rows then lie column
    by column if the first version of pixel shuffle `turns_grid`."""

    hidden_size: int
    num_heads: int
    intermediate_size: int
    num_layers: int
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    activation: str
    norm_eps: float
    uses_rms_norm: bool
    uses_qk_norm: bool
    has_attention_bias: bool
    has_positions: bool
    has_final_norm: bool
    has_joined_qkv: bool
    shuffle: int
    turns_grid: bool
    out_hidden_size: int
    projector_activation: str

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in a tile's height and width."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def num_rows(self) -> int:
        """Rows that one tile becomes."""
        return self.num_patches // self.shuffle**2


class _Attention(SplitAttention):
    def __init__(self, config: InternVisionConfig) -> None:
        modules = ("qkv",) if config.has_joined_qkv else QKV
        super().__init__(config.hidden_size, config.num_heads, bias=config.has_attention_bias, modules=modules)
        self.projection_layer = Linear(config.hidden_size, config.hidden_size)
        if config.uses_qk_norm:
            self.q_norm, self.k_norm = RMSNorm(config.hidden_size, 1e-6), RMSNorm(config.hidden_size, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.projection_layer(self.attend(x))


def _make_norm(config: InternVisionConfig) -> Norm:
    kind = RMSNorm if config.uses_rms_norm else nn.LayerNorm
    return kind(config.hidden_size, config.norm_eps)


class _Layer(nn.Module):
    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size, config.activation)
        self.layernorm_before, self.layernorm_after = _make_norm(config), _make_norm(config)
        self.lambda_1 = nn.Parameter(torch.empty(config.hidden_size))
        self.lambda_2 = nn.Parameter(torch.empty(config.hidden_size))

    def forward(self, x: Tensor, normed: Tensor, next_norm: Norm | None) -> Tensor:
        """Add to x, whose norm is given, in place. Return the next layer's norm of x."""
        normed = add_norm(x, self.attention(normed), self.layernorm_after, self.lambda_1)
        return add_norm(x, self.mlp(normed), next_norm, self.lambda_2)


class _Embeddings(nn.Module):
    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        patch_dim = 3 * config.patch_size[0] * config.patch_size[1]
        self.patch_embeddings = nn.ModuleDict({"projection": Linear(patch_dim, config.hidden_size)})
        self.position_embeddings: nn.Parameter | None = None
        if config.has_positions:
            self.position_embeddings = nn.Parameter(torch.empty(1, config.num_patches + 1, config.hidden_size))

    def forward(self, patches: Tensor) -> Tensor:
        first = self.cls_token.expand(len(patches), -1, -1)
        x = torch.cat((first, self.patch_embeddings["projection"](patches)), dim=1)
        return x if self.position_embeddings is None else x + self.position_embeddings


class _Encoder(nn.Module):
    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))


class InternTower(nn.Module):
    """Patch vectors [N, patches, 3·ph·pw] to hidden rows [N, patches + 1, hidden]."""

    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.encoder = _Encoder(config)
        self.layernorm = nn.LayerNorm(config.hidden_size, config.norm_eps) if config.has_final_norm else None

    def forward(self, patches: Tensor) -> Tensor:
        x = self.embeddings(patches)
        layers = cast("list[_Layer]", list(self.encoder.layer))
        norms = [*(layer.layernorm_before for layer in layers), self.layernorm]
        normed: Tensor = x if norms[0] is None else norms[0](x)
        for layer, next_norm in zip(layers, norms[1:], strict=True):
            normed = layer(x, normed, next_norm)
        return normed


class _Projector(nn.Module):
    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        joined = config.hidden_size * config.shuffle**2
        self.layer_norm = nn.LayerNorm(joined)
        self.linear_1 = Linear(joined, config.out_hidden_size)
        self.linear_2 = Linear(config.out_hidden_size, config.out_hidden_size)
        self.activation = get_activation(config.projector_activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.activation(self.linear_1(self.layer_norm(x))))


class ProjectedIntern(nn.Module):
    """Tower, pixel shuffle and projector: patch vectors to rows [N, num_rows, out_hidden_size]."""

    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = InternTower(config)
        self.projector = _Projector(config)

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.tower(patches)[:, 1:]
        config = self.config
        result: Tensor = self.projector(join_squares(hidden, config.grid, config.shuffle, turns=config.turns_grid))
        return result


class InternEncoder(TileEncoder):
    """Tower and projector as an encoder. Features: those of `TileEncoder`."""

    def __init__(
        self, model: ProjectedIntern, normalizer: PixelNormalizer, weights: LoadedLayers | None = None
    ) -> None:
        config = model.config
        super().__init__(
            model,
            normalizer,
            tile_size=config.image_size,
            patch_size=config.patch_size,
            hidden_size=config.out_hidden_size,
            weights=weights,
        )
