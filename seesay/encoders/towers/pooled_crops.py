"""Molmo's tower (arXiv 2409.17146, section 2): a CLIP on a picture and on overlapping crops of it, learned vectors for
patches in padding, attention over squares of four patches, and a gated feed-forward behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint.parts import Source
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.transfers import upload
from seesay.encoders.towers.layers import GatedMlp, PixelNormalizer, join_squares
from seesay.encoders.towers.tiles import TileEncoder, TileLoader
from seesay.encoders.towers.vit import Vit, VitConfig

SIDE = 2
"""Squares of so many patches in each direction become one row."""


class _SquarePooling(nn.Module):
    """Squares [N, patches, in_size] to rows [N, size]: their mean asks, and all of them answer."""

    def __init__(self, in_size: int, size: int, num_heads: int) -> None:
        super().__init__()
        self.wq = Linear(in_size, size)
        self.kv = Linear(in_size, sources=[Source(module=name, num_outputs=size) for name in ("wk", "wv")])
        self.wo = Linear(size, size)
        self._num_heads = num_heads

    def forward(self, squares: Tensor) -> Tensor:
        query = self.wq(squares.mean(dim=1, keepdim=True))
        key, value = self.kv(squares).chunk(2, dim=-1)
        heads = [x.view(*x.shape[:2], self._num_heads, -1).transpose(1, 2) for x in (query, key, value)]
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        result: Tensor = self.wo(mixed.transpose(1, 2).flatten(1))
        return result


class PooledCropVit(nn.Module):
    """Patch vectors [N, patches, 3·p·p + 2] of crops, the last two components of which say whether all or some of the
    patch is padding, to rows [N, patches / 4, out_hidden_size].

    inner_size: of the feed-forward. Each row is added to the embedding of the token in its place, which is row
    `token_row` of the `num_added` ones that the decoder's table has behind its vocabulary.
    """

    def __init__(
        self, config: VitConfig, *, inner_size: int, out_hidden_size: int, num_added: int, token_row: int
    ) -> None:
        super().__init__()
        self.config = config
        size = config.rows.size
        self.tower = Vit(config)
        self.pad_embed = nn.Parameter(torch.empty(2, size))
        self.pooling = _SquarePooling(size, config.hidden_size, config.layers.num_heads)
        self.projector = GatedMlp(
            config.hidden_size, inner_size, "silu", bias=False, modules=("w1", "w3"), out_size=out_hidden_size
        )
        self.added_tokens = nn.Parameter(torch.empty(num_added, out_hidden_size))
        self._token_row = token_row

    def forward(self, patches: Tensor) -> Tensor:
        vectors, flags = patches[..., :-2].contiguous(), patches[..., -2:]
        hidden = self.tower(vectors)[:, 1:] + flags @ self.pad_embed
        squares = join_squares(hidden, self.config.grid, SIDE).view(-1, SIDE**2, hidden.shape[2])
        rows: Tensor = self.projector(self.pooling(squares)) + self.added_tokens[self._token_row]
        return rows.view(len(hidden), -1, rows.shape[1])


class _CropLoader(TileLoader):
    """Makes the input of the tower: see `PooledCropEncoder`."""

    def __init__(
        self, normalizer: PixelNormalizer, config: VitConfig, *, window: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__(
            normalizer, tile_size=config.image_size, patch_size=config.patch_size, device=device, dtype=dtype
        )
        self._window, self._grid = window, config.grid

    def load_pixels(self, *features: Mapping[str, object]) -> Tensor:
        """Return the items' normalized patch vectors, crop after crop: float32 [P, p·p·3]."""
        return torch.cat([self._cut(item)[0] for item in features]).flatten(0, 1)

    def load_patches(self, features: Sequence[Mapping[str, object]]) -> Tensor:
        """Return the items' normalized patch vectors with their flags [crops, patches, p·p·3 + 2]."""
        return torch.cat([torch.cat(self._cut(item), dim=2) for item in features])

    def _cut(self, item: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return an item's vectors [crops, patches, p·p·3], laid out as (y, x, channel), and their flags."""
        whole, picture, padding = upload([item["whole"], item["picture"], item["padding"]], self._device)
        side = self._tile_size[0]
        windows = picture.unfold(0, side, self._window).unfold(1, side, self._window)  # [rows, columns, 3, S, S]
        crops = torch.cat((whole[None], windows.permute(0, 1, 3, 4, 2).flatten(0, 1)))
        pixels = self._normalizer(crops, channel_dim=3)
        (rows, columns), (high, wide) = self._grid, self._patch_size
        squares = pixels.view(len(pixels), rows, high, columns, wide, 3).transpose(2, 3)
        vectors = squares.reshape(len(pixels), rows * columns, -1)
        return vectors, padding.to(vectors.dtype)


class PooledCropEncoder(TileEncoder):
    """The model as an encoder. Features of an item: `whole` float32 [S, S, 3] and `picture` float32 [H, W, 3], from 0
    to 255, the second of which is cut into crops of S² pixels that begin `window` pixels apart, row by row; `padding`
    uint8 [crops, patches, 2], whether all and whether some of a patch is padding, the whole picture's first;
    `num_tiles`; and those of `arrange_rows`."""

    def __init__(
        self, model: PooledCropVit, normalizer: PixelNormalizer, *, window: int, weights: LoadedLayers | None = None
    ) -> None:
        config = model.config
        super().__init__(
            model,
            normalizer,
            tile_size=config.image_size,
            patch_size=config.patch_size,
            hidden_size=model.added_tokens.shape[1],
            weights=weights,
        )
        self._loader = _CropLoader(normalizer, config, window=window, device=self.device, dtype=self.dtype)
