"""A tower for pictures of one size with a projector: LLaVA's (arXiv 2310.03744), Idefics3's (arXiv 2408.12637),
InternVL's (arXiv 2404.16821), PerceptionLM's (arXiv 2504.13180), GLM-4V's (arXiv 2406.12793), CogVLM's (arXiv
2311.03079), DeepSeek-VL2's (arXiv 2412.10302) or Gemma 3's (arXiv 2503.19786)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.linear.norm import rms_norm
from seesay.encoders.towers.arrangement import LearnedRows
from seesay.encoders.towers.downsampler import Downsampler
from seesay.encoders.towers.layers import PixelNormalizer, get_activation, join_squares
from seesay.encoders.towers.tiles import TileEncoder
from seesay.encoders.towers.vit import TowerRows, Vit, VitConfig
from seesay.encoders.towers.weights import load_tower


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorConfig:
    """The projector behind the tower: two linear layers, or one without an `activation`, or a `Downsampler` with an
    `inner_size`. inner_sizes: the outputs of both, behind which the activation and one more linear layer follow
    (Llama 4).

    keeps_class_row: the row of the class token is kept. merge: squares of merge² patches are joined to one row; rows
    then lie column by column if it `turns_grid`. pads_grid: zeros are added at the right and the bottom of a grid that
    is not made of whole squares. joins_by_channel: see `join_squares`. norms_joined: rows are normed before the first
    layer. pool: the rows of squares of pool² patches are averaged.
    learned_rows: see `LearnedRows`; learned_axes: the number of axes in which the checkpoint has each, all but the last
    of length 1; projects_learned: they have the projector's input size, and pass through it. divisor: of all rows, also
    of learned ones that do not pass through the projector. merged_size: see `Downsampler`.
    """

    out_hidden_size: int
    activation: str | None = "gelu"
    has_bias: bool = True
    keeps_class_row: bool = False
    merge: int = 1
    turns_grid: bool = False
    pads_grid: bool = False
    joins_by_channel: bool = False
    norms_joined: bool = False
    pool: int = 1
    learned_rows: tuple[str, ...] = ()
    learned_axes: tuple[int, ...] = ()
    projects_learned: bool = False
    inner_size: int | None = None
    inner_sizes: tuple[int, int] | None = None
    divisor: float = 1.0
    merged_size: int | None = None


class _Projector(nn.Module):
    """Two linear layers, with the mean of squares of pool² rows between them: the second layer has a quarter of the
    work for pool = 2, and makes the same of a mean as the mean of what it makes of each."""

    def __init__(self, in_size: int, grid: tuple[int, int], config: ProjectorConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(in_size) if config.norms_joined else None
        inner_size, out_size = config.inner_sizes or (config.out_hidden_size, config.out_hidden_size)
        self.linear_1 = Linear(in_size, inner_size, bias=config.has_bias)
        self.linear_2 = Linear(inner_size, out_size, bias=config.has_bias)
        self.activation = get_activation(str(config.activation))
        self._grid, self._pool = grid, config.pool

    def forward(self, x: Tensor) -> Tensor:
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        inner = self.activation(self.linear_1(x))
        if self._pool > 1:
            height, width = self._grid
            squares = inner.view(len(inner), height, width, -1).permute(0, 3, 1, 2)
            means = F.adaptive_avg_pool2d(squares, (height // self._pool, width // self._pool))
            inner = means.flatten(2).transpose(1, 2).contiguous()
        return self.linear_2(inner)


class _LastLayer(nn.Module):
    """The activation and a linear layer behind a projector, under the names of Llama 4's checkpoints."""

    def __init__(self, in_size: int, config: ProjectorConfig) -> None:
        super().__init__()
        self.linear_1 = Linear(in_size, config.out_hidden_size, bias=config.has_bias)
        self.activation = get_activation(str(config.activation))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_1(self.activation(x))


class _Connector(nn.Module):
    """Idefics3's projector, under the names of its checkpoints."""

    def __init__(self, in_size: int, config: ProjectorConfig) -> None:
        super().__init__()
        proj = Linear(in_size, config.out_hidden_size, bias=config.has_bias)
        self.modality_projection = nn.ModuleDict({"proj": proj})

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.modality_projection["proj"](x)
        return result


def _make_projector(rows: TowerRows, config: ProjectorConfig) -> _Projector | Downsampler:
    if config.inner_size is None:
        return _Projector(rows.size * config.merge**2, rows.grid, config)
    return Downsampler(
        rows.size,
        config.merge**2,
        config.out_hidden_size,
        inner_size=config.inner_size,
        activation=str(config.activation),
        merged_size=config.merged_size,
    )


class ProjectedVit(nn.Module):
    """Tower and projector: patch vectors [N, patches, 3·ph·pw] to rows [N, R, out_hidden_size].

    `tower` makes the `rows` of patch vectors."""

    def __init__(self, tower: nn.Module, rows: TowerRows, projector: ProjectorConfig) -> None:
        super().__init__()
        self.rows, self.config = rows, projector
        self.tower = tower
        in_size = rows.size * projector.merge**2
        last: _Connector | _Projector | Downsampler
        if projector.activation is None:
            last = self.connector = _Connector(in_size, projector)
        else:
            last = self.projector = _make_projector(rows, projector)
        sizes = projector.inner_sizes
        self.multi_modal_projector = None if sizes is None else _LastLayer(sizes[1], projector)
        divide = None if projector.divisor == 1 else partial(torch.div, other=projector.divisor)
        self.learned = LearnedRows(
            projector.learned_rows,
            in_size if projector.projects_learned else projector.out_hidden_size,
            axes=projector.learned_axes,
            project=last.forward if projector.projects_learned else divide,
        )

    def forward(self, patches: Tensor) -> Tensor:
        hidden, projector = self.tower(patches), self.config
        if self.rows.has_class_token and not projector.keeps_class_row:
            hidden = hidden[:, 1:]
        if projector.merge > 1:
            hidden = self._join(hidden)
        last = self.connector if projector.activation is None else self.projector
        result: Tensor = last(hidden)
        if self.multi_modal_projector is not None:
            result = self.multi_modal_projector(result)
        result = result.view(len(hidden), -1, result.shape[-1])
        return result if projector.divisor == 1 else result / projector.divisor

    def _join(self, hidden: Tensor) -> Tensor:
        grid, projector = self.rows.grid, self.config
        below, right = (-length % projector.merge if projector.pads_grid else 0 for length in grid)
        if below or right:
            hidden = F.pad(hidden.reshape(len(hidden), *grid, -1), (0, 0, 0, right, 0, below)).flatten(1, 2)
            grid = (grid[0] + below, grid[1] + right)
        return join_squares(
            hidden, grid, projector.merge, turns=projector.turns_grid, by_channel=projector.joins_by_channel
        )


class _OffsetNorm(nn.Module):
    """RMS norm whose weight is stored less 1."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x.float(), 1 + self.weight.float(), self._eps).to(x.dtype)


class _PooledProjector(nn.Module):
    """The parameters are named, and the matrix [hidden, out] lies, as in Gemma 3's checkpoints."""

    def __init__(self, config: VitConfig, out_hidden_size: int) -> None:
        super().__init__()
        self.mm_soft_emb_norm = _OffsetNorm(config.hidden_size, config.layers.norm_eps)
        self.mm_input_projection_weight = nn.Parameter(torch.empty(config.hidden_size, out_hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.mm_soft_emb_norm(x)
        return normed @ self.mm_input_projection_weight


class PooledVit(nn.Module):
    """Patch vectors [N, patches, 3·P·P] to rows [N, patches / pool², out_hidden_size]: squares of `pool`² patches are
    averaged, normed and projected."""

    def __init__(self, config: VitConfig, *, out_hidden_size: int, pool: int) -> None:
        super().__init__()
        self.rows = config.rows
        self.tower = Vit(config)
        self.projector = _PooledProjector(config, out_hidden_size)
        self._pool = pool

    def forward(self, patches: Tensor) -> Tensor:
        hidden, pool, (height, width) = self.tower(patches), self._pool, self.rows.grid
        squares = hidden.view(len(hidden), height // pool, pool, width // pool, pool, -1)
        result: Tensor = self.projector(squares.mean(dim=(2, 4)).flatten(1, 2))
        return result


def make_encoder(
    model: ProjectedVit | PooledVit,
    normalizer: PixelNormalizer,
    hidden_size: int,
    weights: LoadedLayers | None = None,
) -> TileEncoder:
    """Return tower and projector as an encoder. Features: those of `TileEncoder`, with tiles of `image_size`."""
    return TileEncoder(
        model,
        normalizer,
        tile_size=model.rows.image_size,
        patch_size=model.rows.patch_size,
        hidden_size=hidden_size,
        learned=model.learned if isinstance(model, ProjectedVit) else None,
        weights=weights,
    )


def load_encoder(
    checkpoint: Checkpoint,
    name_of: Callable[[str], str | None],
    tower: VitConfig,
    projector: ProjectorConfig,
    normalizer: PixelNormalizer,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> TileEncoder:
    """Return a tower and its projector with the weights of a checkpoint, as an encoder on `device`. `name_of` is that
    of `load_tower`. Raises `CheckpointError` naming a tensor that does not fit."""
    with torch.device("meta"):
        model = ProjectedVit(Vit(tower), tower.rows, projector)
    weights = load_tower(model, checkpoint, name_of, device=device, dtype=dtype)
    return make_encoder(model, normalizer, projector.out_hidden_size, weights)
