"""What a model takes of GPUs, from the names, shapes and types of its tensors: nothing is loaded, and no GPU is needed.

Activations are an estimate, as they are measured when a model starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seesay.checkpoint.parts import FLOATS, Part
from seesay.device.linear.matrix_linear import MatrixLinear
from seesay.device.ranks import Place, Unconnected
from seesay.engine.core.loading.length_warning import warn_beyond_training
from seesay.engine.core.loading.resolved_config import resolve
from seesay.errors import ConfigError
from seesay.llm.memory.kv_cache import bytes_per_block, make_layouts
from seesay.llm.memory.state_cache import bytes_per_state
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.division import make_division
from seesay.llm.models.stage import LaterStage, split_layers
from seesay.llm.running.cache_size import count_states
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.vl.modules.module_family import ModuleDecoderFamily

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.engine.core.loading.resolved_config import ResolvedConfig
    from seesay.engine.opened_model import OpenedModel

CONTEXT_BYTES = 1 << 30
"""What CUDA, kernels and graphs take of a GPU."""
_STEP_TOKENS, _SAMPLED_ROWS = 8192, 512
_MATRIX = 2
_NUMBERS = (".weight", ".qweight", ".weight_packed")
"""Endings of the names of the tensors that have the numbers of a quantized matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What the fullest of `tp` GPUs holds of a model, or that of one of `pp` stages, in bytes. kv_bytes_per_token: keys
    and values of one token. state_bytes: what layers keep of one sequence as a whole; `limits` say how many of these
    there are."""

    tp: int = 1
    pp: int = 1
    weight_bytes: int
    activation_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    limits: RunnerLimits

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp

    def count_tokens(self, gpu_bytes: int, share: float) -> int:
        """Return the tokens that the KV cache holds on GPUs of `gpu_bytes` where it takes this share of what is left;
        0 where the model does not fit."""
        left = gpu_bytes - CONTEXT_BYTES - self.weight_bytes - self.activation_bytes
        if self.state_bytes:
            block_bytes = self.kv_bytes_per_token * self.limits.block_size
            num_states = count_states(self.limits, max(0, int(left * share)), self.state_bytes, block_bytes)
            left -= (num_states + 1) * self.state_bytes
        return max(0, int(left * share) // max(1, self.kv_bytes_per_token))


class Capacity:
    """The shares of one model. resolved: the options that it would have on a GPU."""

    def __init__(self, model: OpenedModel, config: EngineConfig, *, has_tower: bool = True) -> None:
        """`has_tower`: whether the vision encoder, if there is one, is on one of these GPUs. Raises `ConfigError` for a
        model that cannot be planned for, `CheckpointError` as loading would."""
        import torch

        if isinstance(model.family, ModuleDecoderFamily):
            raise ConfigError(
                f"{model.checkpoint.path}: its memory cannot be planned, as it is computed as modules of Transformers; "
                "it runs on one GPU (tp=1)"
            )
        self._model, self._config = model, config
        self._has_tower = has_tower and bool(model.family.modalities) and not config.disable_vision_encoder
        self.resolved: ResolvedConfig = resolve(config, model.checkpoint, model.backbone, torch.device("meta"))
        warn_beyond_training(config, model.backbone)
        self._decoder_config = model.backbone.decoder_config(session_len=self.resolved.session_len)
        self._limits = RunnerLimits(
            max_batch_size=self.resolved.max_batch_size,
            max_step_tokens=min(_STEP_TOKENS, config.max_prefill_token_num),
            session_len=self.resolved.session_len,
            block_size=config.block_size,
            kv_format=self.resolved.kv_format,
        )

    @property
    def num_parameters(self) -> int:
        """The elements of the stored tensors that are used; packed ones count as they are stored."""
        return sum(math.prod(self._model.checkpoint.stored[name].shape) for name in self._used())

    def measure(self, tp: int) -> Share:
        """Return what the fullest of `tp` GPUs holds. Raises `ConfigError` where the model cannot be divided so."""
        division = make_division(
            self._decoder_config,
            Unconnected(Place(0, tp)),
            self._model.checkpoint.quantization,
            expert_parallel=self._config.expert_parallel and tp > 1,
        )
        return self._measure(self._make_decoder(ComposedDecoder, division=division), tp=tp)

    def measure_stages(self, pp: int) -> list[Share]:
        """Return what the GPU of each of `pp` stages holds. Raises `ConfigError` where the model has no such stages."""
        found = []
        for rank in range(pp):
            kind = LaterStage if rank else ComposedDecoder
            decoder = self._make_decoder(kind, layers=split_layers(self._decoder_config, Place(rank, pp)))
            found.append(self._measure(decoder, pp=pp, has_tower=rank == 0))
        return found

    def _make_decoder(self, kind: type[ComposedDecoder], **options: Any) -> ComposedDecoder:
        import torch

        return kind(self._decoder_config, device=torch.device("meta"), dtype=self.resolved.dtype, **options)

    def _measure(self, decoder: ComposedDecoder, *, tp: int = 1, pp: int = 1, has_tower: bool = True) -> Share:
        weights, shares, matrices = self._model.family.weights, _find_shares(decoder), _find_matrices(decoder)
        weight_bytes = 0.0
        for name in self._used():
            own = weights.decoder_name(name)
            is_matrix = own is not None and own.rpartition(".")[0] in matrices
            share = float(has_tower) if own is None else _share_of(own, shares)
            weight_bytes += self._loaded_bytes(name, is_matrix=is_matrix) * share
        layouts = make_layouts(
            decoder.traits.kv_shapes,
            block_size=self._config.block_size,
            dtype=self.resolved.dtype,
            format=self.resolved.kv_format,
        )
        return Share(
            tp=tp,
            pp=pp,
            weight_bytes=int(weight_bytes),
            activation_bytes=self._estimate_activations(tp),
            kv_bytes_per_token=bytes_per_block(layouts) // self._config.block_size,
            state_bytes=bytes_per_state(decoder.traits.state_shapes, self.resolved.dtype),
            limits=self._limits,
        )

    def _used(self) -> Iterator[str]:
        """Yield the names of the tensors that the model reads."""
        weights, is_tied = self._model.family.weights, self._decoder_config.tied_embeddings
        for name in self._model.checkpoint.stored:
            own = weights.decoder_name(name)
            is_head = is_tied and own == "lm_head.weight"
            if (own is not None and not is_head) or (self._has_tower and weights.tower_name(name) is not None):
                yield name

    def _loaded_bytes(self, name: str, *, is_matrix: bool) -> int:
        """Return the bytes of a whole tensor as it is in memory. is_matrix: it is of a `MatrixLinear`."""
        stored, size = self._model.checkpoint.stored[name], self.resolved.dtype.itemsize
        if stored.dtype not in FLOATS:
            is_plain = is_matrix and name.endswith(_NUMBERS)
            return stored.num_bytes * self._count_in_byte(name, is_matrix=is_matrix) * (size if is_plain else 1)
        own = self._model.family.weights.decoder_name(name) or ""
        is_layer = own.startswith("layers.") and len(stored.shape) >= _MATRIX and not is_matrix
        return math.prod(stored.shape) * (1 if self._config.quantization and is_layer else size)

    def _count_in_byte(self, name: str, *, is_matrix: bool) -> int:
        """Return how many numbers a stored byte has that lie one by one in memory: those of experts of 4 bits, and of
        a `MatrixLinear`."""
        quantization = self._model.checkpoint.quantization
        if quantization is None:
            return 1
        is_packed = quantization.is_packed and (".experts." in name or is_matrix) and name.endswith(_NUMBERS)
        is_mxfp4 = quantization.format == "mxfp4" and name.endswith("_blocks")
        return 8 // quantization.bits if is_packed or is_mxfp4 else 1

    def _estimate_activations(self, tp: int) -> int:
        """Return about what the largest step takes, on each GPU."""
        config, size = self._decoder_config, self.resolved.dtype.itemsize
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        inner = max(layer.feed_forward.total_size for layer in config.layers)
        per_token = 4 * config.hidden_size + (heads + 3 * inner) // tp
        return self._limits.max_step_tokens * per_token * size + _SAMPLED_ROWS * config.vocab_size * (size + 4)


def _share_of(own: str, shares: Mapping[str, float]) -> float:
    """Return the share of a tensor; of those that a quantized layer has instead of its weight, that of the weight."""
    return shares.get(own, shares.get(f"{own.rpartition('.')[0]}.weight", 0.0))


def _find_shares(decoder: ComposedDecoder) -> dict[str, float]:
    """Return which share of each tensor of the checkpoint a decoder has, by the model's names."""
    weights = [*decoder.plain_weights]
    for path, linear in decoder.linears.items():
        weights += linear.make_group(path).weights
    shares: dict[str, float] = {}
    for part in (part for weight in weights for part in weight.parts):
        shares[part.tensor] = shares.get(part.tensor, 0.0) + _picked_share(part)
    return shares


def _find_matrices(decoder: ComposedDecoder) -> frozenset[str]:
    """Return the modules, by the model's names, that are plain matrices in memory, however they are stored."""
    found = (linear.modules_in(path) for path, linear in decoder.linears.items() if isinstance(linear, MatrixLinear))
    return frozenset(module for modules in found for module in modules)


def _picked_share(part: Part) -> float:
    counts = [(axis.num_picked, axis.size) for axis in part.axes]
    picked, size = (math.prod(each) for each in zip(*counts, strict=True)) if counts else (1, 1)
    return picked / size / (1 if part.stack is None else part.stack.count)
