"""The towers of DeepSeek-OCR (arXiv 2510.18234, section 3.2) and DeepSeek-OCR 2 (arXiv 2601.20552, section 3): a SAM
shrinks a square to a sixteenth of its rows, and a second tower sees these: a CLIP, or a decoder whose queries attend to
them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.parts import Source
from seesay.device.linear.linear import Linear
from seesay.encoders.graphs import GraphedEncoder, GraphedTower
from seesay.encoders.towers.arrangement import LearnedRows, arrange_rows
from seesay.encoders.towers.fractional_positions import stretch_positions
from seesay.encoders.towers.layers import GatedMlp, PixelNormalizer, RMSNorm
from seesay.encoders.towers.sam import Sam, SamConfig, Shrinking
from seesay.encoders.towers.tiles import TileLoader
from seesay.encoders.towers.vit_layers import QKV, Block, LayerConfig, run_blocks
from seesay.encoders.towers.weights import load_tower


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """A CLIP without a patch embedding. num_positions: of the square table, without that of the class token."""

    layers: LayerConfig
    num_layers: int
    num_positions: int

    @property
    def size(self) -> int:
        return self.layers.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConfig:
    """A decoder with as many queries as there are rows. num_kv_heads: each is for several heads. num_queries: of each
    learned table; they are those of squares of one side each."""

    size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inner_size: int
    activation: str
    norm_eps: float
    theta: float
    num_layers: int
    num_queries: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepConfig:
    """inner_size: channels between the two convolutions behind the SAM. learned_rows: see `LearnedRows`."""

    sam: SamConfig
    inner_size: int
    second: ClipConfig | QueryConfig
    out_hidden_size: int
    learned_rows: tuple[str, ...]

    @property
    def projected_size(self) -> int:
        """Inputs of the projector: a CLIP's rows are joined with those that it was given."""
        return 2 * self.second.size if isinstance(self.second, ClipConfig) else self.second.size


class _Clip(nn.Module):
    """Rows [N, side², size] to rows [N, side², 2 · size]: those of the last layer, then those that it was given."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.empty(config.size))
        self.pos_embed = nn.Parameter(torch.empty(config.num_positions + 1, config.size))
        self.norm_pre = config.layers.make_norm()
        self.blocks = nn.ModuleList(Block(config.layers) for _ in range(config.num_layers))

    def forward(self, rows: Tensor) -> Tensor:
        side = math.isqrt(rows.shape[1])
        positions = torch.cat((self.pos_embed[:1], stretch_positions(self.pos_embed[1:], (side, side), antialias=True)))
        x = torch.cat((self.cls_token.expand(len(rows), 1, -1), rows), dim=1) + positions
        x = self.norm_pre(x)
        for _ in run_blocks(self.blocks, x, None, [None] * len(self.blocks)):
            pass
        return torch.cat((x[:, 1:], rows), dim=-1)


class _QueryLayer(nn.Module):
    """One layer of a Qwen2."""

    def __init__(self, config: QueryConfig) -> None:
        super().__init__()
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        sources = [
            Source(module=name, num_outputs=count * config.head_dim) for name, count in zip(QKV, heads, strict=True)
        ]
        self.input_layernorm, self.post_attention_layernorm = (RMSNorm(config.size, config.norm_eps) for _ in range(2))
        self.attn = nn.ModuleDict(
            {
                "qkv": Linear(config.size, bias=True, sources=sources),
                "proj": Linear(config.num_heads * config.head_dim, config.size, bias=False),
            }
        )
        self.mlp = GatedMlp(config.size, config.inner_size, config.activation, bias=False)
        self._heads, self._dim = heads, config.head_dim

    def forward(self, x: Tensor, turn: Callable[[Tensor], Tensor], mask: Tensor) -> Tensor:
        qkv = self.attn["qkv"](self.input_layernorm(x)).unflatten(-1, (-1, self._dim)).transpose(1, 2)
        query, key, value = qkv.split(self._heads, dim=1)
        mixed = F.scaled_dot_product_attention(turn(query), turn(key), value, attn_mask=mask, enable_gqa=True)
        x = x + self.attn["proj"](mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class _QueryTower(nn.Module):
    """Rows [N, R, size] to what as many queries become [N, R, size]. The rows see each other, a query sees all rows and
    the queries before it."""

    def __init__(self, config: QueryConfig) -> None:
        super().__init__()
        self.config = config
        self.queries = nn.ParameterList(torch.empty(count, config.size) for count in config.num_queries)
        self.layers = nn.ModuleList(_QueryLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.size, config.norm_eps)

    def forward(self, rows: Tensor) -> Tensor:
        count = rows.shape[1]
        [queries] = [table for table in self.queries if len(table) == count]
        x = torch.cat((rows, queries.expand(len(rows), -1, -1)), dim=1)
        places = torch.arange(2 * count, device=rows.device)
        cos, sin = self._find_angles(places)

        def turn(heads: Tensor) -> Tensor:
            first, last = heads.float().chunk(2, dim=-1)
            return torch.cat((first * cos - last * sin, last * cos + first * sin), dim=-1).to(heads.dtype)

        mask = (places < count) | (places[:, None] >= places)
        for layer in self.layers:
            x = layer(x, turn, mask)
        result: Tensor = self.norm(x[:, count:])
        return result

    def _find_angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin float32 [2 · R, head_dim / 2]."""
        half = self.config.head_dim // 2
        exponents = torch.arange(half, dtype=torch.float32, device=places.device) / half
        angles = places[:, None].float() * self.config.theta**-exponents
        return angles.cos(), angles.sin()


class DeepTower(nn.Module):
    """Patch vectors [N, patches, 3·P²] of squares of one side to rows [N, ⌈side / 4⌉², out_hidden_size]."""

    def __init__(self, config: DeepConfig) -> None:
        super().__init__()
        second = config.second
        self.high = Sam(config.sam)
        self.shrink = Shrinking(config.sam.out_channels, config.inner_size, second.size)
        self.tower = _Clip(second) if isinstance(second, ClipConfig) else _QueryTower(second)
        self.projector = Linear(config.projected_size, config.out_hidden_size)
        self.learned = LearnedRows(config.learned_rows, config.out_hidden_size)

    def plan(self, shape: torch.Size, *, num_before: int) -> Callable[[Tensor], Tensor]:
        """Return what computes squares of any side."""
        del shape, num_before
        return self

    def forward(self, patches: Tensor) -> Tensor:
        channels, _ = self.high(patches)
        return self.projector(self.tower(self.shrink(channels)))


class DeepEncoder(GraphedEncoder):
    """Encodes a picture as a whole and, in smaller squares, tiles of it.

    Features: `pixels` uint8 [1, S, S, 3], the whole picture; `tiles` uint8 [T, s, s, 3], where it is cut; or its
    decoded `frames` and the packed `chains` of both. `num_tiles`: 1 + T. `rows`: see `arrange_rows`; those of the whole
    picture come before those of the tiles.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        name_of: Callable[[str], str | None],
        config: DeepConfig,
        sides: tuple[int, int],
        normalizer: PixelNormalizer,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Load the towers. `sides` are those of the whole picture and of a tile in pixels. Raises `CheckpointError`
        naming a tensor that does not fit."""
        with torch.device("meta"):
            self._model = DeepTower(config)
        self.weights = load_tower(self._model, checkpoint, name_of, device=device, dtype=dtype)
        self.hidden_size, self.device, self.dtype = config.out_hidden_size, device, dtype
        self._graphed = GraphedTower(self._model.plan)
        patch = 2 * (config.sam.patch_size,)
        self._whole, self._tiles = (
            TileLoader(normalizer, tile_size=2 * (side,), patch_size=patch, device=device, dtype=dtype)
            for side in sides
        )

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """As `TileLoader.load_pixels`, of the whole pictures."""
        return self._whole.load_pixels(*map(pick_whole, features))

    def load_tile_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """As `TileLoader.load_pixels`, of the tiles of pictures that are cut, of which there is one at least."""
        return self._tiles.load_pixels(*filter(None, map(pick_tiles, features)))

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, object]]) -> list[Tensor]:
        """Return rows for every item, from two calls of the towers at most: [S, hidden_size]."""
        parts = [[rows] for rows in self._compute(self._whole, list(map(pick_whole, features)))]
        cut = {index: tiles for index, item in enumerate(features) if (tiles := pick_tiles(item)) is not None}
        for index, rows in zip(cut, self._compute(self._tiles, list(cut.values())) if cut else (), strict=True):
            parts[index].append(rows)
        return arrange_rows([torch.cat(each) for each in parts], self._model.learned, features)

    def _compute(self, loader: TileLoader, items: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return the rows [tiles · R, hidden_size] of each item."""
        patches = loader.load_patches(items)
        rows = self._graphed(patches, patches.shape[:2], self.dtype)
        return [part.flatten(0, 1) for part in torch.split(rows, [int(item["num_tiles"]) for item in items])]


def pick_whole(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the features of the whole picture alone."""
    if "frames" in item:
        return {"num_tiles": 1, "frames": item["frames"], "chains": item["chains"][:1]}
    return {"num_tiles": 1, "pixels": item["pixels"]}


def pick_tiles(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the features of the tiles alone; None for a picture that is not cut."""
    if (count := item["num_tiles"] - 1) == 0:
        return None
    if "frames" in item:
        return {"num_tiles": count, "frames": item["frames"], "chains": item["chains"][1:]}
    return {"num_tiles": count, "pixels": item["tiles"]}
