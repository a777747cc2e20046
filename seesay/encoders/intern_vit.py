"""The InternViT tower with pixel shuffle and projector (arXiv 2404.16821): tiles of one size to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.encoders.layers import Mlp, PixelNormalizer, RMSNorm, cut_patches, get_activation


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVisionConfig:
    """Sizes of tower and projector. `image_size` and `patch_size` are (height, width) in pixels.

    `num_layers` are the layers that run; `has_final_norm` puts a layer norm after the last. Squares of
    `shuffle`² patches are joined to one row.
    """

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
    shuffle: int
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


class _Attention(nn.Module):
    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.has_attention_bias
        self.q_proj = nn.Linear(size, size, bias=bias)
        self.k_proj = nn.Linear(size, size, bias=bias)
        self.v_proj = nn.Linear(size, size, bias=bias)
        self.projection_layer = nn.Linear(size, size)
        self.q_norm: nn.Module = RMSNorm(size, 1e-6) if config.uses_qk_norm else nn.Identity()
        self.k_norm: nn.Module = RMSNorm(size, 1e-6) if config.uses_qk_norm else nn.Identity()
        self.num_heads = config.num_heads

    def forward(self, x: Tensor) -> Tensor:
        inputs = (self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x))
        heads = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in inputs)
        result: Tensor = self.projection_layer(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return result


def _make_norm(config: InternVisionConfig) -> nn.Module:
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

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.lambda_1 * self.attention(self.layernorm_before(x))
        result: Tensor = x + self.lambda_2 * self.mlp(self.layernorm_after(x))
        return result


class _Embeddings(nn.Module):
    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        patch_dim = 3 * config.patch_size[0] * config.patch_size[1]
        self.patch_embeddings = nn.ModuleDict({"projection": nn.Linear(patch_dim, config.hidden_size)})
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
        final_norm = nn.LayerNorm(config.hidden_size, config.norm_eps) if config.has_final_norm else nn.Identity()
        self.layernorm: nn.Module = final_norm

    def forward(self, patches: Tensor) -> Tensor:
        x = self.embeddings(patches)
        for layer in self.encoder.layer:
            x = layer(x)
        result: Tensor = self.layernorm(x)
        return result


class _Projector(nn.Module):
    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        joined = config.hidden_size * config.shuffle**2
        self.layer_norm = nn.LayerNorm(joined)
        self.linear_1 = nn.Linear(joined, config.out_hidden_size)
        self.linear_2 = nn.Linear(config.out_hidden_size, config.out_hidden_size)
        self.activation = get_activation(config.projector_activation)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear_2(self.activation(self.linear_1(self.layer_norm(x))))
        return result


class ProjectedIntern(nn.Module):
    """Tower, pixel shuffle and projector: patch vectors to rows [N, num_rows, out_hidden_size]."""

    def __init__(self, config: InternVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = InternTower(config)
        self.projector = _Projector(config)

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.tower(patches)[:, 1:]
        height, width = self.config.grid
        side = self.config.shuffle
        squares = hidden.reshape(len(hidden), height // side, side, width // side, side, -1).permute(0, 1, 3, 2, 4, 5)
        result: Tensor = self.projector(squares.reshape(len(hidden), self.config.num_rows, -1))
        return result


class InternEncoder:
    """Tower and projector as an encoder. Features: `pixels` uint8 [tiles, height, width, 3]."""

    def __init__(self, model: ProjectedIntern, normalizer: PixelNormalizer) -> None:
        self.model = model
        self._normalizer = normalizer
        self.hidden_size = model.config.out_hidden_size
        self.dtype = model.projector.linear_1.weight.dtype
        self.device = model.projector.linear_1.weight.device

    def load_pixels(self, features: Mapping[str, Any]) -> Tensor:
        """One item's normalized tiles, float32 [tiles, H, W, 3] on the tower's device."""
        return self._normalizer(torch.from_numpy(features["pixels"]).to(self.device), channel_dim=3)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Rows [tiles · num_rows, hidden_size] for every item, from one call of the tower."""
        tiles = torch.cat([self.load_pixels(item).to(self.dtype) for item in features])
        rows = self.model(cut_patches(tiles, self.model.config.patch_size))
        return [part.flatten(0, 1) for part in rows.split([len(item["pixels"]) for item in features])]
