"""The vision towers of CLIP (arXiv 2103.00020) and SigLIP (arXiv 2303.15343), and with the projector of LLaVA (arXiv
2310.03744) or Idefics3 (arXiv 2408.12637): pictures of one size to rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from seesay.device.layer_loading import LoadedLayers
from seesay.device.linear import Linear
from seesay.encoders.arrangement import LearnedRows
from seesay.encoders.layers import (
    Mlp,
    Norm,
    PixelNormalizer,
    SegmentGroup,
    SplitAttention,
    add_norm,
    get_activation,
    join_squares,
)
from seesay.encoders.tiles import TileEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """Sizes of tower and projector. `image_size` and `patch_size` are in pixels.

    `feature_layers` are the layers whose outputs are joined for the projector (0: the embeddings, i: after layer i);
    layers above the last of them are not built. `has_class_token`: CLIP's tower has a class token before the patches, a
    norm before the first layer, and no bias in the patch embedding; SigLIP's is the other way round. `keeps_class_row`:
    the row of the class token is kept. `has_final_norm`: the last layer's output, the only feature layer, is normed.
    `merge`: squares of merge² patches are joined for the projector. `learned_rows`: see `LearnedRows`;
    `learned_axes`: the number of axes in which the checkpoint has each, all but the last of length 1;
    `projects_learned`: they have the projector's input size, and pass through it.

    position_side: None if each patch has a learned position of its own. Otherwise the side of a square table of
        positions; patches take that of their share of the picture (`find_positions`).
    projector_activation: that between LLaVA's two linear layers; None for Idefics3's one.
    """

    hidden_size: int
    num_heads: int
    intermediate_size: int
    image_size: int
    patch_size: int
    activation: str
    norm_eps: float
    feature_layers: tuple[int, ...]
    has_class_token: bool
    out_hidden_size: int
    keeps_class_row: bool = False
    has_final_norm: bool = False
    merge: int = 1
    position_side: int | None = None
    projector_activation: str | None = "gelu"
    projector_bias: bool = True
    learned_rows: tuple[str, ...] = ()
    learned_axes: tuple[int, ...] = ()
    projects_learned: bool = False

    @classmethod
    def of(cls, config: Any, **options: Any) -> Self:
        """Return what a model's configuration says under Transformers' names, and `options`, which have precedence."""
        vision = config.vision_config
        sizes = {
            "hidden_size": vision.hidden_size,
            "num_heads": vision.num_attention_heads,
            "intermediate_size": vision.intermediate_size,
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
            "activation": vision.hidden_act,
            "norm_eps": vision.layer_norm_eps,
            "out_hidden_size": config.text_config.hidden_size,
        }
        return cls(**{**sizes, **options})

    @property
    def grid_side(self) -> int:
        """Patches in the height and in the width of a picture."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        return self.grid_side**2

    @property
    def num_positions(self) -> int:
        """Learned positions in the checkpoint."""
        count = self.num_patches if self.position_side is None else self.position_side**2
        return count + self.has_class_token

    @property
    def joined_size(self) -> int:
        """Size of the projector's input."""
        return self.hidden_size * len(self.feature_layers) * self.merge**2


def find_positions(grid_side: int, table_side: int) -> list[int]:
    """Return the position that each patch of a square picture takes from a table of table_side²: that of its share of
    the picture's height and width (NaViT's fractional coordinates, arXiv 2307.06304, section 2.1), in float32."""
    with torch.device("cpu"):
        boundaries = torch.arange(1 / table_side, 1.0, 1 / table_side)
        shares = torch.arange(grid_side, dtype=torch.float32) * (1.0 / torch.tensor(grid_side))
        places = torch.bucketize(shares.clamp(max=1.0 - 1e-6), boundaries, right=True)
        found: list[int] = (places[:, None] * table_side + places).flatten().tolist()
        return found


@dataclass(frozen=True, slots=True)
class Packing:
    """Pictures of any sizes in one call, one after another: the learned position int64 [P] of each patch, and the
    pictures' segments, each of which attends within itself."""

    positions: Tensor
    segments: Sequence[SegmentGroup]


class _Attention(SplitAttention):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__(config.hidden_size, config.num_heads, bias=True)
        self.out_proj = Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, packing: Packing | None) -> Tensor:
        return self.out_proj(self.attend(x, None if packing is None else packing.segments))


class _Layer(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.layer_norm1 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size, config.activation)
        self.layer_norm2 = nn.LayerNorm(config.hidden_size, config.norm_eps)

    def forward(self, x: Tensor, normed: Tensor, next_norm: Norm | None, packing: Packing | None) -> Tensor:
        """Add to x, whose norm is given, in place. Return the next layer's norm of x."""
        normed = add_norm(x, self.self_attn(normed, packing), self.layer_norm2)
        return add_norm(x, self.mlp(normed), next_norm)


class _Embeddings(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.empty(config.hidden_size)) if config.has_class_token else None
        self.patch_embedding = Linear(3 * config.patch_size**2, config.hidden_size, bias=not config.has_class_token)
        self.position_embedding = nn.Embedding(config.num_positions, config.hidden_size)
        self._places: Tensor | None = None
        if config.position_side is not None:
            places = find_positions(config.grid_side, config.position_side)
            if places != list(range(config.num_positions)):
                self._places = torch.tensor(places, device="cpu")

    @property
    def _positions(self) -> Tensor:
        weight: Tensor = self.position_embedding.weight
        if self._places is None:
            return weight
        if self._places.device != weight.device:
            self._places = self._places.to(weight.device)
        return weight[self._places]

    def forward(self, patches: Tensor, packing: Packing | None) -> Tensor:
        x = self.patch_embedding(patches)
        if packing is not None:
            packed: Tensor = x + self.position_embedding(packing.positions)
            return packed
        if self.class_embedding is not None:
            x = torch.cat((self.class_embedding.expand(len(patches), 1, -1), x), dim=1)
        return x + self._positions


class _Encoder(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(max(config.feature_layers)))


class ClipTower(nn.Module):
    """Patch vectors [N, patches, 3·P·P] to the joined feature layers [N, patches, hidden · layers], with a row for the
    class token before those of the patches if there is one. A tower without a class token also takes packed vectors
    [P, 3·P·P], and makes [P, hidden · layers]."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        # As checkpoints spell it.
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.norm_eps) if config.has_class_token else None
        self.encoder = _Encoder(config)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.norm_eps) if config.has_final_norm else None
        self.feature_layers = config.feature_layers

    def forward(self, patches: Tensor, packing: Packing | None = None) -> Tensor:
        x = self.embeddings(patches, packing)
        if self.pre_layrnorm is not None:
            x = self.pre_layrnorm(x)
        layers = cast("list[_Layer]", list(self.encoder.layers))
        norms = [*(layer.layer_norm1 for layer in layers), self.post_layernorm]
        outputs = {0: x.clone()} if 0 in self.feature_layers else {}
        normed = x if norms[0] is None else norms[0](x)
        for index, (layer, next_norm) in enumerate(zip(layers, norms[1:], strict=True), start=1):
            normed = layer(x, normed, next_norm, packing)
            if index in self.feature_layers:
                outputs[index] = x.clone() if self.post_layernorm is None else normed
        return torch.cat([outputs[index] for index in self.feature_layers], dim=-1)


class _Projector(nn.Module):
    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.linear_1 = Linear(config.joined_size, config.out_hidden_size, bias=config.projector_bias)
        self.linear_2 = Linear(config.out_hidden_size, config.out_hidden_size, bias=config.projector_bias)
        self.activation = get_activation(str(config.projector_activation))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.activation(self.linear_1(x)))


class _Connector(nn.Module):
    """Idefics3's projector, under the names of its checkpoints."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        proj = Linear(config.joined_size, config.out_hidden_size, bias=config.projector_bias)
        self.modality_projection = nn.ModuleDict({"proj": proj})

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.modality_projection["proj"](x)
        return result


class ProjectedClip(nn.Module):
    """Tower and projector: patch vectors to rows [N, num_rows, out_hidden_size]."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = ClipTower(config)
        last: _Connector | _Projector
        if config.projector_activation is None:
            last = self.connector = _Connector(config)
        else:
            last = self.projector = _Projector(config)
        self.learned = LearnedRows(
            config.learned_rows,
            config.joined_size if config.projects_learned else config.out_hidden_size,
            axes=config.learned_axes,
            project=last.forward if config.projects_learned else None,
        )

    def forward(self, patches: Tensor) -> Tensor:
        hidden = self.tower(patches)
        if self.config.has_class_token and not self.config.keeps_class_row:
            hidden = hidden[:, 1:]
        if self.config.merge > 1:
            hidden = join_squares(hidden, (self.config.grid_side, self.config.grid_side), self.config.merge)
        last = self.connector if self.config.projector_activation is None else self.projector
        result: Tensor = last(hidden)
        return result


class ClipEncoder(TileEncoder):
    """Tower and projector as an encoder. Features: those of `TileEncoder`, with tiles of `image_size`²."""

    def __init__(self, model: ProjectedClip, normalizer: PixelNormalizer, weights: LoadedLayers | None = None) -> None:
        config = model.config
        super().__init__(
            model,
            normalizer,
            tile_size=(config.image_size, config.image_size),
            patch_size=(config.patch_size, config.patch_size),
            hidden_size=config.out_hidden_size,
            learned=model.learned,
            weights=weights,
        )
