"""The CLIP vision tower (arXiv 2103.00020) and LLaVA's projector (arXiv 2310.03744): pictures of one size to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.encoders.layers import Mlp, PixelNormalizer, cut_patches, get_activation


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """Sizes of tower and projector. `image_size` and `patch_size` are in pixels.

    `feature_layers` are the layers whose outputs are joined for the projector (0: the embeddings, i: after layer i);
    layers above the last of them are not built. `keeps_class_row`: the class token's row goes along.
    """

    hidden_size: int
    num_heads: int
    intermediate_size: int
    image_size: int
    patch_size: int
    activation: str
    norm_eps: float
    feature_layers: tuple[int, ...]
    keeps_class_row: bool
    out_hidden_size: int
    projector_activation: str
    projector_bias: bool

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_rows(self) -> int:
        """Rows that one picture becomes."""
        return self.num_patches + self.keeps_class_row


class _Attention(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.out_proj = nn.Linear(size, size)
        self.num_heads = config.num_heads

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        result: Tensor = self.out_proj(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return result


class _Layer(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size, config.activation)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        result: Tensor = x + self.mlp(self.layer_norm2(x))
        return result


class _Embeddings(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.empty(config.hidden_size))
        self.patch_embedding = nn.Linear(3 * config.patch_size**2, config.hidden_size, bias=False)
        self.position_embedding = nn.Embedding(config.num_patches + 1, config.hidden_size)

    def forward(self, patches: Tensor) -> Tensor:
        first = self.class_embedding.expand(len(patches), 1, -1)
        return torch.cat((first, self.patch_embedding(patches)), dim=1) + self.position_embedding.weight


class _Encoder(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(max(config.feature_layers)))


class ClipTower(nn.Module):
    """Patch vectors [N, patches, 3·P·P] to the joined feature layers [N, patches + 1, hidden · layers]."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.norm_eps)  # spelled so in checkpoints
        self.encoder = _Encoder(config)
        self.feature_layers = config.feature_layers

    def forward(self, patches: Tensor) -> Tensor:
        outputs = [self.pre_layrnorm(self.embeddings(patches))]
        for layer in self.encoder.layers:
            outputs.append(layer(outputs[-1]))
        return torch.cat([outputs[index] for index in self.feature_layers], dim=-1)


class _Projector(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        joined = config.hidden_size * len(config.feature_layers)
        self.linear_1 = nn.Linear(joined, config.out_hidden_size, bias=config.projector_bias)
        self.linear_2 = nn.Linear(config.out_hidden_size, config.out_hidden_size, bias=config.projector_bias)
        self.activation = get_activation(config.projector_activation)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear_2(self.activation(self.linear_1(x)))
        return result


class ProjectedClip(nn.Module):
    """Tower and projector: patch vectors to rows [N, num_rows, out_hidden_size]."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = ClipTower(config)
        self.projector = _Projector(config)

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.tower(patches)
        result: Tensor = self.projector(hidden if self.config.keeps_class_row else hidden[:, 1:])
        return result


class ClipEncoder:
    """Tower and projector as an encoder. Features: `pixels` uint8 [1, image_size, image_size, 3]."""

    def __init__(self, model: ProjectedClip, normalizer: PixelNormalizer) -> None:
        self.model = model
        self._normalizer = normalizer
        self.hidden_size = model.config.out_hidden_size
        self.dtype = model.projector.linear_1.weight.dtype
        self.device = model.projector.linear_1.weight.device

    def load_pixels(self, features: Mapping[str, Any]) -> Tensor:
        """One item's normalized picture, float32 [1, H, W, 3] on the tower's device."""
        return self._normalizer(torch.from_numpy(features["pixels"]).to(self.device), channel_dim=3)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Rows [num_rows, hidden_size] for every item, from one call of the tower."""
        frames = torch.cat([self.load_pixels(item).to(self.dtype) for item in features])
        side = self.model.config.patch_size
        return list(self.model(cut_patches(frames, (side, side))).unbind(0))
