"""Decoders that run through Transformers' modules: those of models that no family here describes, and those beside a
tower of ours. The modules compute, our engine does the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.spec import DecoderConfig
from seesay.vl.family import Backbone, Family
from seesay.vl.nearest_models import describe_nearest
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.llm.models.decoder import Decoder
    from seesay.llm.models.module_decoder import ModuleDecoder
    from seesay.llm.models.module_model import ModuleModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleBackbone(Backbone):
    """The decoder of a Transformers model. family: has its modules, which are built when they are needed.
    num_position_axes: rotary positions of a token."""

    is_ours: ClassVar[bool] = False
    num_position_axes: int = 1
    family: ModuleDecoderFamily = field(repr=False)

    def decoder_config(
        self,
        *,
        session_len: int,
        rope_scaling_factor: float = 0.0,
        use_logn_attn: bool = False,
    ) -> DecoderConfig:
        raise ConfigError(
            f"{self.family.checkpoint.architecture} runs through Transformers' modules, which cannot be quantized here"
        )

    def load_decoder(
        self,
        checkpoint: Checkpoint,
        *,
        session_len: int,
        rope_scaling_factor: float = 0.0,
        use_logn_attn: bool = False,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Decoder:
        from seesay.llm.models.module_decoder import ModuleDecoder

        if checkpoint.quantization is not None:
            raise CheckpointError(
                f"{checkpoint.path}: {checkpoint.architecture} runs through Transformers' modules, with plain weights "
                "only: take a folder without quantization_config, and leave quantization= out"
            )
        options = {"rope_scaling_factor": rope_scaling_factor, "use_logn_attn": use_logn_attn}
        if given := [f"{name}={value}" for name, value in options.items() if value]:
            raise ConfigError(
                f"{given[0]}: {checkpoint.architecture} runs through Transformers' modules, which have their own "
                "rotary embedding and attention: leave it out"
            )
        decoder = ModuleDecoder(
            self.family.model,
            device=device,
            dtype=dtype,
            media_run=self.media_run,
            num_position_axes=self.num_position_axes,
            num_deep_layers=self.num_deep_layers,
        )
        self.family.check(decoder)
        return decoder


class ModuleDecoderFamily(Family):
    """A family whose decoder runs through Transformers' modules.

    auto_class: the name of Transformers' class that makes them. decoder_prefix: the beginning of the names of their
    tensors in the checkpoint, whose `text_config` they are made of; None for a model that is no part of another one.
    """

    auto_class: ClassVar[str] = "AutoModelForCausalLM"
    decoder_prefix: ClassVar[str | None] = None

    @cached_property
    def model(self) -> ModuleModel:
        """The modules, without weights. Raises `CheckpointError` saying why they cannot run here."""
        return self.build_modules(self.checkpoint)

    @classmethod
    def build_modules(cls, checkpoint: Checkpoint) -> ModuleModel:
        """Return the modules of a checkpoint, without weights: config.json is enough. Raises as `model` does."""
        from seesay.llm.models.module_model import ModuleModel

        nearest = describe_nearest(checkpoint.config.get("model_type"))
        return ModuleModel(checkpoint, cls.auto_class, prefix=cls.decoder_prefix, nearest=nearest)

    def check(self, decoder: ModuleDecoder) -> None:
        """Raise `CheckpointError` if prompts with media are not computed as the whole model computes them."""

    def backbone(self) -> ModuleBackbone:
        return ModuleBackbone(
            text_config=self.checkpoint.text_config,
            decoder_name=self.weights.decoder_name,
            tie_word_embeddings=False,
            family=self,
        )


class ModuleTextFamily(ModuleDecoderFamily, TextFamily):
    """A text model through Transformers' modules."""

    architectures: ClassVar[tuple[str, ...]] = ()
    weights = WeightMap(decoder={"": ""})

    @property
    def name(self) -> str:
        return "transformers"


def is_known_to_transformers(architecture: str) -> bool:
    """Return whether Transformers has a causal language model of this name, in whatever case: some checkpoints are
    older than its class. Imports Transformers."""
    return architecture.lower() in map(str.lower, list_causal_models())


def list_causal_models() -> tuple[str, ...]:
    """Return the names of Transformers' causal language models. Imports Transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return tuple(name for each in names for name in ((each,) if isinstance(each, str) else each))
