"""The tower of audio: Whisper's encoder (arXiv 2212.04356), and what makes rows of the decoder of its rows: a
projector of two layers, as in Voxtral (arXiv 2507.13264), or one with norms and gates, as in Ultravox."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.transfers import upload
from seesay.encoders.graphs import GraphedEncoder, GraphedTower, plan_alike
from seesay.encoders.towers.audio.log_mel import LogMel, MelConfig
from seesay.encoders.towers.layers import Norm, RMSNorm, Segments, get_activation
from seesay.encoders.towers.vit_layers import Angles, Attention, Block, LayerConfig, run_blocks
from seesay.encoders.towers.weights import load_tower

MAX_WINDOWS = 8
"""Most windows that go through the tower together: the rest of a longer audio follows."""
_KERNEL, STRIDE = 3, 2
"""Of the convolutions over time, the second of which moves by two frames."""
_NORM_EPS, _GATED_EPS = 1e-5, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    """num_layers: of the encoder. num_positions: most rows of a window, each of two frames. join: neighbouring rows
    that become one row of the projector.

    inner_size: outputs of the projector's first layer; activation: behind that. is_gated: its outputs are halves of a
    SwiGLU, and its inputs have a norm, and either what is between its layers, or its outputs if it `norms_outputs`.
    """

    layers: LayerConfig
    num_layers: int
    mel: MelConfig
    num_positions: int
    join: int
    inner_size: int
    out_hidden_size: int
    activation: str
    is_gated: bool = False
    norms_outputs: bool = False

    @classmethod
    def of(cls, audio: Any, **others: Any) -> Self:
        """Return the configuration of Transformers' encoder `audio`, with the fields of mel bins and projector."""
        layers = LayerConfig(
            hidden_size=audio.hidden_size,
            num_heads=audio.num_attention_heads,
            intermediate_size=audio.intermediate_size,
            activation=audio.activation_function,
            norm_eps=_NORM_EPS,
            has_key_bias=False,
        )
        num_layers, num_positions = audio.num_hidden_layers, audio.max_source_positions
        return cls(layers=layers, num_layers=num_layers, num_positions=num_positions, **others)

    @property
    def num_frames(self) -> int:
        """Frames of a whole window."""
        return self.num_positions * STRIDE


class _Projector(nn.Module):
    """Joined rows [N, R, size · join] to rows [N, R, out_hidden_size]."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        in_size, inner_size = config.layers.hidden_size * config.join, config.inner_size
        self.linear_1 = Linear(in_size, inner_size, bias=False)
        self.ln_pre: Norm | None = None
        self.ln_mid: Norm | None = None
        self.ln_post: Norm | None = None
        self._activation, self._is_gated = get_activation(config.activation), config.is_gated
        if config.is_gated:
            inner_size //= 2
            self.ln_pre = RMSNorm(in_size, _GATED_EPS)
            if config.norms_outputs:
                self.ln_post = RMSNorm(config.out_hidden_size, _GATED_EPS)
            else:
                self.ln_mid = RMSNorm(inner_size, _GATED_EPS)
        self.linear_2 = Linear(inner_size, config.out_hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.linear_1(x if self.ln_pre is None else self.ln_pre(x))
        if self._is_gated:
            value, gate = inner.chunk(2, dim=-1)
            inner = value * self._activation(gate)
        else:
            inner = self._activation(inner)
        result = self.linear_2(inner if self.ln_mid is None else self.ln_mid(inner))
        return result if self.ln_post is None else self.ln_post(result)


class _ClippedAttention(Attention):
    """Attention to the first `num_keys` rows alone; None: to all."""

    num_keys: int | None = None

    def forward(self, x: Tensor, segments: Segments | None = None, angles: Angles | None = None) -> Tensor:
        if self.num_keys is None:
            return super().forward(x, segments, angles)
        projected = self.qkv(x).view(*x.shape[:2], 3, *self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key[:, :, : self.num_keys], value[:, :, : self.num_keys])
        return mixed.transpose(1, 2).flatten(2)


class Whisper(nn.Module):
    """Frames [N, T, bins] of N windows, at most `num_frames`, to rows [N, T / 2 / join, out_hidden_size], of which the
    last one is filled up with zeros."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        size = config.layers.hidden_size
        self.conv1 = Linear(_KERNEL * config.mel.num_bins, size)
        self.conv2 = Linear(_KERNEL * size, size)
        self.positions = nn.Parameter(torch.empty(config.num_positions, size))
        self._attention = [_ClippedAttention(config.layers) for _ in range(config.num_layers)]
        self.blocks = nn.ModuleList(Block(config.layers, attention) for attention in self._attention)
        self.norm = nn.LayerNorm(size, config.layers.norm_eps)
        self.projector = _Projector(config)
        self._join = config.join

    def forward(self, frames: Tensor) -> Tensor:
        return self._project(self._encode(frames))

    def end(self, frames: Tensor) -> Tensor:
        """Return the rows of frames [1, T, bins] that end a longer audio: the last row is filled up with what the
        encoder makes of silence behind the end, to which no row attends."""
        num_keys = -(-frames.shape[1] // STRIDE)
        num_rows = min(-(-num_keys // self._join) * self._join, len(self.positions))
        frames = F.pad(frames, (0, 0, 0, min(STRIDE * num_rows + 1, STRIDE * len(self.positions)) - frames.shape[1]))
        for attention in self._attention:
            attention.num_keys = num_keys
        try:
            return self._project(self._encode(frames, num_rows))
        finally:
            for attention in self._attention:
                attention.num_keys = None

    def _encode(self, frames: Tensor, num_rows: int | None = None) -> Tensor:
        x = F.gelu(self.conv1(_slide(frames, 1)))
        x = F.gelu(self.conv2(_slide(x, STRIDE)))[:, :num_rows]
        x = x + self.positions[: x.shape[1]]
        [rows] = deque(run_blocks(self.blocks, x, self.norm, [None] * len(self.blocks)), maxlen=1)
        return rows

    def _project(self, rows: Tensor) -> Tensor:
        rows = F.pad(rows, (0, 0, 0, -rows.shape[1] % self._join))
        joined: Tensor = self.projector(rows.reshape(len(rows), -1, self._join * rows.shape[2]))
        return joined


def _slide(x: Tensor, stride: int) -> Tensor:
    """Return what a kernel of three sees of x [N, T, C] at each of its steps, with zeros around: [N, T / stride, 3C],
    laid out as (channel, time)."""
    return F.pad(x, (0, 0, 1, 1)).unfold(1, _KERNEL, stride).flatten(2)


class WhisperEncoder(GraphedEncoder):
    """Features: `samples` float32 [S] of an audio, a whole number of hops. It is seen in windows; one that fills none
    as it is, and the rest behind the last whole window by `Whisper.end`."""

    def __init__(self, model: Whisper, config: WhisperConfig, weights: LoadedLayers) -> None:
        self.model, self.weights = model, weights
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self.hidden_size = config.out_hidden_size
        self._num_frames = config.num_frames
        self._log_mel = LogMel(config.mel, self.device)
        self._graphed = GraphedTower(plan_alike(model))

    @classmethod
    def load(
        cls,
        config: WhisperConfig,
        checkpoint: Checkpoint,
        name_of: Callable[[str], str | None],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Self:
        """Return the tower with the weights of a checkpoint. Raises `CheckpointError`: see `load_tower`."""
        with torch.device("meta"):
            model = Whisper(config)
        weights = load_tower(model, checkpoint, name_of, device=device, dtype=dtype)
        return cls(model, config, weights)

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return the rows of every item: [R, out_hidden_size]."""
        samples = upload([item["samples"] for item in features], self.device)
        frames = [self._log_mel(each) for each in samples]
        ends = [len(each) // self._num_frames * self._num_frames for each in frames]
        rows = self._encode_windows(torch.cat([each[:end] for each, end in zip(frames, ends, strict=True)]))
        return [torch.cat(list(self._join(*each, rows))) for each in zip(frames, ends, strict=True)]

    def _encode_windows(self, frames: Tensor) -> Iterator[Tensor]:
        """Yield the rows of each window of frames that are as many whole windows."""
        windows = frames.reshape(-1, self._num_frames, frames.shape[1])
        for part in torch.split(windows, MAX_WINDOWS) if len(windows) else ():
            yield from self._graphed(part, len(part), self.dtype)

    def _join(self, frames: Tensor, end: int, rows: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield the rows of an audio: the next of `rows` up to the frame `end`, and those of the rest."""
        yield from islice(rows, end // self._num_frames)
        if end < len(frames):
            rest = frames[None, end:].to(self.dtype)
            yield (self.model.end(rest) if end else self.model(rest))[0]
