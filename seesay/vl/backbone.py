"""The text decoder of a checkpoint, as its family describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.llm.models.configs.expert_kinds import restack_experts
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.decoder_kind import DecoderKind
from seesay.llm.models.spec import DecoderConfig, MediaRowsSpec

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint.model_config import ModelConfig
    from seesay.device.ranks import Ranks, Stages
    from seesay.llm.models.decoder import Decoder

_MOST_PREDICTING = 64
"""Layers that predict further tokens; published are one to three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """The text decoder of a checkpoint.

    `decoder_name` maps a checkpoint tensor's name to the decoder's, or to None when it is not the decoder's.
    `tie_word_embeddings`: the checkpoint has no `lm_head.weight` of its own; the embedding table is used twice.
    stacked_experts: by the layer, whether its experts are stored in tensors of all of them; as the kind says of layers
    that are not there. num_deep_layers, media_run, media_rows, is_prefix_lm, projection_size: see `DecoderConfig`.
    kind: how the decoder
    departs from Llama; None: as its `model_type` says. is_ours: whether the decoder is composed here, of a
    `DecoderConfig`.
    """

    is_ours: ClassVar[bool] = True
    text_config: ModelConfig
    decoder_name: Callable[[str], str | None]
    tie_word_embeddings: bool
    stacked_experts: Mapping[int, bool] = field(default_factory=dict)
    num_deep_layers: int = 0
    media_run: int = 0
    media_rows: MediaRowsSpec | None = None
    is_prefix_lm: bool = False
    projection_size: int = 0
    kind: DecoderKind | None = None

    def decoder_config(
        self, *, session_len: int, rope_scaling_factor: float = 0.0, use_logn_attn: bool = False
    ) -> DecoderConfig:
        """Return the decoder's options, for texts of at most `session_len` tokens. Raises `CheckpointError` naming what
        is not supported."""
        config = read_decoder_config(
            self.text_config,
            tied_embeddings=self.tie_word_embeddings,
            session_len=session_len,
            num_deep_layers=self.num_deep_layers,
            media_run=self.media_run,
            media_rows=self.media_rows,
            is_prefix_lm=self.is_prefix_lm,
            kind=self.kind,
            rope_scaling_factor=rope_scaling_factor,
            use_logn_attn=use_logn_attn,
        )
        layers = tuple(
            restack_experts(layer, is_stacked=self.stacked_experts.get(index))
            for index, layer in enumerate(config.layers)
        )
        return replace(config, layers=layers, projection_size=self.projection_size)

    def _name_layers(self, num_layers: int) -> Callable[[str], str | None]:
        """Return `decoder_name` without layers behind the last one that predict further tokens."""
        count = getattr(self.text_config, "num_nextn_predict_layers", None) or 0
        behind = tuple(f"layers.{num_layers + index}." for index in range(min(count, _MOST_PREDICTING)))

        def find(name: str) -> str | None:
            found = self.decoder_name(name)
            return None if found is None or found.startswith(behind) else found

        return find if behind else self.decoder_name

    def load_decoder(
        self,
        checkpoint: Checkpoint,
        *,
        session_len: int,
        rope_scaling_factor: float = 0.0,
        use_logn_attn: bool = False,
        device: torch.device,
        dtype: torch.dtype,
        ranks: Ranks | Stages | None = None,
        expert_parallel: bool = False,
    ) -> Decoder:
        """Return the decoder with its weights, or with `ranks` this rank's stage or share of it: with
        `expert_parallel`, whole experts and not a slice of each. Raises `CheckpointError`, and `ConfigError` for a
        number of ranks that cannot divide it."""
        from seesay.device.ranks import Stages
        from seesay.llm.models.composed_decoder import ComposedDecoder
        from seesay.llm.models.stage import LaterStage, split_layers

        config = self.decoder_config(
            session_len=session_len, rope_scaling_factor=rope_scaling_factor, use_logn_attn=use_logn_attn
        )
        layers, kind = None, ComposedDecoder
        if isinstance(ranks, Stages):
            layers = split_layers(config, ranks.place)
            kind, ranks = LaterStage if ranks.place.rank else ComposedDecoder, None
        return kind.load(
            checkpoint,
            config,
            decoder_name=self._name_layers(config.num_layers),
            device=device,
            dtype=dtype,
            ranks=ranks,
            expert_parallel=expert_parallel,
            layers=layers,
        )
