"""The tower of audio of Phi-4-multimodal (arXiv 2503.01743, section 2.2.2): a conformer (arXiv 2005.08100) over log-mel
frames of which eight become one row, with biases by the distance of rows, and a projector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint import Checkpoint
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.device.transfers import upload
from seesay.encoders.towers.layers import get_activation, make_empty_embedding
from seesay.encoders.towers.weights import load_tower

REDUCTION = 8
"""Frames that become one row."""
FRAME_SAMPLES, HOP = 400, 160
"""Samples that a frame sees, and between two frames."""
MOST_ROWS = 500
"""Rows that attend to each other: those of a longer audio are cut into such pieces, the last filled up with zeros."""
_PIECES = 4
"""Pieces that go through the layers together."""
_FFT_SIZE, _HIGHEST_HZ, _PREEMPHASIS, _LOUDEST = 512, 7690.0, 0.97, 32768
_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerConfig:
    """num_bins: mel bins of a frame. conv_channels: of the convolutions that shorten frames. kernel: rows that the
    convolution of a layer sees. max_distance: distances beyond which have the same bias; is_symmetric: those before
    and behind a row have the same."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    activation: str
    num_bins: int
    rate_hz: int
    conv_channels: int
    kernel: int
    max_distance: int
    is_symmetric: bool
    out_hidden_size: int


class _Spectrogram:
    """Computes the frames float32 [T, num_bins] of samples float32 [S]."""

    def __init__(self, config: ConformerConfig, device: torch.device) -> None:
        from transformers.audio_utils import mel_filter_bank

        filters = mel_filter_bank(
            num_frequency_bins=_FFT_SIZE // 2 + 1,
            num_mel_filters=config.num_bins,
            min_frequency=0,
            max_frequency=_HIGHEST_HZ,
            sampling_rate=config.rate_hz,
            triangularize_in_mel_space=True,
            mel_scale="kaldi",
        )
        self._filters = torch.from_numpy(filters).to(device, torch.float32)
        self._window = torch.hamming_window(FRAME_SAMPLES, periodic=False, device=device, dtype=torch.float64)

    def __call__(self, samples: Tensor) -> Tensor:
        frames = samples.unfold(0, FRAME_SAMPLES, HOP)
        before = torch.roll(frames, 1, dims=1)
        before[:, 0] = before[:, 1]
        raised = (frames - _PREEMPHASIS * before) * _LOUDEST
        spectrum = torch.fft.rfft(self._window * raised, n=_FFT_SIZE, dim=1).to(torch.complex64)
        found: Tensor = (spectrum.abs().square_() @ self._filters).clamp_(min=1.0).log_()
        return found


class _Conv(nn.Module):
    """A convolution in one or two axes."""

    def __init__(self, shape: Sequence[int], **options: Any) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(*shape)), nn.Parameter(torch.empty(shape[0]))
        self._convolve = partial(F.conv2d if len(shape) == 4 else F.conv1d, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(x, self.weight, self.bias)


class _Shortening(nn.Module):
    """Frames [T, num_bins] to rows [T / 8, hidden_size]."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        channels, bins, step = config.conv_channels, config.num_bins, {"stride": 2, "padding": 1}
        layers: dict[str, nn.Module] = {"0": _Conv((channels, 1, 3, 3), **step)}
        for index in (2, 5):
            layers[str(index)] = _Conv((channels, 1, 3, 3), groups=channels, **step)
            layers[str(index + 1)] = _Conv((channels, channels, 1, 1))
        self.conv = nn.ModuleDict(layers)
        for _ in range(3):
            bins = -(-bins // 2)
        self.out = Linear(channels * bins, config.hidden_size)

    def forward(self, frames: Tensor) -> Tensor:
        x = F.relu(self.conv["0"](frames[None, None]))
        for index in (2, 5):
            x = F.relu(self.conv[str(index + 1)](self.conv[str(index)](x)))
        rows: Tensor = self.out(x[0].transpose(0, 1).flatten(1))
        return rows


class _FeedForward(nn.Module):
    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.hidden_size, _NORM_EPS)
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)
        self._activation = get_activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        up, gate = self.gate_up_proj(self.layer_norm(x)).chunk(2, dim=-1)
        return self.down_proj(up * self._activation(gate))


class _Attention(nn.Module):
    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.q_proj, self.k_proj, self.v_proj = Linear(size, size), Linear(size, size), Linear(size, size)
        self.o_proj = Linear(size, size)
        self._heads = (config.num_heads, size // config.num_heads)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        heads = [each(x).view(*x.shape[:2], *self._heads).transpose(1, 2) for each in self._projections]
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=bias)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    @property
    def _projections(self) -> tuple[Linear, Linear, Linear]:
        return self.q_proj, self.k_proj, self.v_proj


class _Glu(nn.Module):
    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.ext_pw_conv_1d = _Conv((2 * size, size, 1))
        self.b1, self.b2 = nn.Parameter(torch.empty(1, size, 1)), nn.Parameter(torch.empty(1, size, 1))
        self._activation = get_activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.ext_pw_conv_1d(x).chunk(2, dim=1)
        result: Tensor = (value + self.b1) * self._activation(gate + self.b2)
        return result


class _Separable(nn.Module):
    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        size, kernel = config.hidden_size, config.kernel
        self.dw_conv = _Conv((size, 1, kernel), groups=size)
        self.pw_conv = _Conv((size, size, 1))
        self._num_before = kernel - 1

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.pw_conv(self.dw_conv(F.pad(x, (self._num_before, 0))))
        return result


class _Convolution(nn.Module):
    """Each row sees those before it."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.hidden_size, _NORM_EPS)
        self.glu = _Glu(config)
        self.dw_sep_conv_1d = _Separable(config)
        self.ext_pw_conv_1d = _Conv((config.hidden_size, config.hidden_size, 1))
        self._activation = get_activation(config.activation)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dw_sep_conv_1d(self.glu(self.layer_norm(x).transpose(1, 2)))
        result: Tensor = self.ext_pw_conv_1d(self._activation(x)).transpose(1, 2)
        return result


class _Layer(nn.Module):
    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.feed_forward_in, self.feed_forward_out = _FeedForward(config), _FeedForward(config)
        self.self_attn, self.conv = _Attention(config), _Convolution(config)
        self.layer_norm_att = nn.LayerNorm(config.hidden_size, _NORM_EPS)
        self.layer_norm = nn.LayerNorm(config.hidden_size, _NORM_EPS)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = x + 0.5 * self.feed_forward_in(x)
        x = x + self.self_attn(self.layer_norm_att(x), bias)
        x = x + self.conv(x)
        result: Tensor = self.layer_norm(x + 0.5 * self.feed_forward_out(x))
        return result


class _Encoder(nn.Module):
    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.encoder_embedding = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(config.num_bins)) for name in ("global_mean", "global_invstd")}
        )
        self.embed = _Shortening(config)
        num_biases = config.max_distance * (1 if config.is_symmetric else 2)
        self.relative_attention_bias_layer = nn.ModuleDict(
            {"bias_values": make_empty_embedding(num_biases, config.num_heads)}
        )
        self.encoders = nn.ModuleList(_Layer(config) for _ in range(config.num_layers))
        self._most, self._is_symmetric = config.max_distance, config.is_symmetric

    def forward(self, frames: Tensor) -> Tensor:
        """Return the rows [T / 8, hidden_size] of the frames [T, num_bins] of an audio."""
        settings = self.encoder_embedding
        rows = torch.cat(list(self._shorten((frames - settings["global_mean"]) * settings["global_invstd"])))
        num_rows = len(rows)
        if num_rows > MOST_ROWS:
            rows = F.pad(rows, (0, 0, 0, -num_rows % MOST_ROWS))
        pieces = rows.view(-1, min(num_rows, MOST_ROWS), rows.shape[1])
        bias = self._find_bias(pieces.shape[1], rows.device)
        found = [self._run(part, bias) for part in torch.split(pieces, _PIECES)]
        return torch.cat(found).flatten(0, 1)[:num_rows]

    def _shorten(self, frames: Tensor) -> Iterator[Tensor]:
        """Yield the rows of frames, a few at a time. A row sees the eight frames before its own."""
        for start in range(0, -(-len(frames) // REDUCTION), MOST_ROWS):
            before = min(start, 1)
            rows = self.embed(frames[REDUCTION * (start - before) : REDUCTION * (start + MOST_ROWS)])
            yield rows[before:]

    def _run(self, x: Tensor, bias: Tensor) -> Tensor:
        for layer in self.encoders:
            x = layer(x, bias)
        return x

    def _find_bias(self, length: int, device: torch.device) -> Tensor:
        """Return [1, heads, length, length]: what is added to the product of a query and a key."""
        places = torch.arange(length, device=device)
        distances = (places[None] - places[:, None]).clamp(-self._most, self._most - 1)
        table = self.relative_attention_bias_layer["bias_values"]
        numbers = distances.abs() if self._is_symmetric else distances + self._most
        biases: Tensor = table(numbers)
        return biases.permute(2, 0, 1)[None].contiguous()


class _Tower(nn.Module):
    """Named as in the checkpoint."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.encoder = _Encoder(config)
        self.up_proj_for_speech = Linear(config.hidden_size, config.out_hidden_size)
        self.down_proj_for_speech = Linear(config.out_hidden_size, config.out_hidden_size)

    def forward(self, frames: Tensor) -> Tensor:
        return self.down_proj_for_speech(F.gelu(self.up_proj_for_speech(self.encoder(frames))))


class ConformerEncoder:
    """Features: `samples` float32 [S] of an audio. Items are encoded one after another: they have any length."""

    def __init__(self, model: _Tower, config: ConformerConfig, weights: LoadedLayers) -> None:
        self.model, self.weights = model, weights
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self.hidden_size = config.out_hidden_size
        self._spectrogram = _Spectrogram(config, self.device)

    @classmethod
    def load(
        cls,
        config: ConformerConfig,
        checkpoint: Checkpoint,
        name_of: Callable[[str], str | None],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Self:
        """Return the tower with the weights of a checkpoint. Raises `CheckpointError`: see `load_tower`."""
        with torch.device("meta"):
            model = _Tower(config)
        return cls(model, config, load_tower(model, checkpoint, name_of, device=device, dtype=dtype))

    @torch.inference_mode()
    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return the rows of every item: [R, out_hidden_size]."""
        samples = upload([item["samples"] for item in features], self.device)
        return [self.model(self._spectrogram(each).to(self.dtype)) for each in samples]

    def disable_graphs(self) -> None:
        """None are recorded."""

    def forget_graphs(self) -> None:
        """None are recorded."""
