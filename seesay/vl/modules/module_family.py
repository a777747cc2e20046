"""Decoders that run through Transformers' modules: those of models that no family here describes, and those beside a
tower of ours. The modules compute, our engine does the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.layouts.original_omni import THINKER, THINKERS
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.configs.kinds import list_backbones
from seesay.llm.models.spec import DecoderConfig
from seesay.vl.bases.timm_tower import check_timm_models
from seesay.vl.family import Backbone, Family
from seesay.vl.nearest_models import describe_nearest
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.device.ranks import Ranks, Stages
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.models.modules.module_decoder import ModuleDecoder
    from seesay.llm.models.modules.module_model import ModuleModel


_CAUSAL = "AutoModelForCausalLM"
_PLAIN, _HEAD = "model.", "lm_head."
"""How the names of Transformers' causal models begin: of their decoder, and of its head."""


class ModulesOwner(Protocol):
    """Has the modules of a decoder."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def model(self) -> ModuleModel: ...

    def check(self, decoder: ModuleDecoder) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleBackbone(Backbone):
    """The decoder of a Transformers model. owner: has its modules, which are built when they are needed.
    num_position_axes: rotary positions of a token."""

    is_ours: ClassVar[bool] = False
    num_position_axes: int = 1
    owner: ModulesOwner = field(repr=False)

    def decoder_config(
        self,
        *,
        session_len: int,
        rope_scaling_factor: float = 0.0,
        use_logn_attn: bool = False,
    ) -> DecoderConfig:
        raise ConfigError(
            f"{self.owner.checkpoint.architecture} runs through Transformers' modules, which cannot be quantized here"
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
        ranks: Ranks | Stages | None = None,
        expert_parallel: bool = False,
    ) -> Decoder:
        from seesay.llm.models.modules.module_decoder import ModuleDecoder

        if ranks is not None and ranks.place.size > 1:
            raise CheckpointError(
                f"{checkpoint.path}: {checkpoint.architecture} is computed as modules of Transformers, which cannot be "
                "divided; use tp=1 and pp=1"
            )
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
            self.owner.model,
            device=device,
            dtype=dtype,
            media_run=self.media_run,
            num_position_axes=self.num_position_axes,
            num_deep_layers=self.num_deep_layers,
        )
        self.owner.check(decoder)
        return decoder


class ModuleDecoderFamily(Family):
    """A family whose decoder runs through Transformers' modules.

    auto_class: the name of Transformers' class that makes them.
    """

    auto_class: ClassVar[str] = _CAUSAL

    @cached_property
    def model(self) -> ModuleModel:
        """The modules, without weights. Raises `CheckpointError` saying why they cannot run here."""
        return self.build_modules(self.checkpoint)

    @classmethod
    def build_modules(cls, checkpoint: Checkpoint) -> ModuleModel:
        """Return the modules of a checkpoint, without weights: config.json is enough. Raises as `model` does."""
        from seesay.llm.models.modules.module_model import DecoderNames, ModuleModel

        check_timm_models(checkpoint.hf_config().to_dict(), checkpoint.path)
        names = None
        if checkpoint.config.get("model_type") in THINKERS:  # beside the model that speaks
            names = DecoderNames(prefixes={THINKER: ""}, is_own=lambda name: name.startswith(THINKER), is_text=False)
        nearest = describe_nearest(checkpoint.config.get("model_type"))
        return ModuleModel(checkpoint, cls.auto_class, names=names, nearest=nearest)

    def check(self, decoder: ModuleDecoder) -> None:
        """Raise `CheckpointError` if prompts with media are not computed as the whole model computes them."""

    def backbone(self) -> ModuleBackbone:
        return ModuleBackbone(
            text_config=self.checkpoint.text_config,
            decoder_name=self.weights.decoder_name,
            tie_word_embeddings=False,
            owner=self,
        )


class ModuleTextFamily(ModuleDecoderFamily, TextFamily):
    """A text model through Transformers' modules."""

    architectures: ClassVar[tuple[str, ...]] = ()
    weights = WeightMap(decoder={"": ""})

    @property
    def name(self) -> str:
        return "transformers"


class ForeignDecoder:
    """The modules of a decoder that we do not compose, behind a tower of ours: a causal model of Transformers.
    backbone: as the family describes it."""

    def __init__(self, family: Family, backbone: Backbone) -> None:
        self._checkpoint = family.checkpoint
        self._weights, self._is_tied = family.weights, backbone.tie_word_embeddings

    @property
    def checkpoint(self) -> Checkpoint:
        return self._checkpoint

    @cached_property
    def model(self) -> ModuleModel:
        """The modules, without weights. Raises `CheckpointError` saying why they cannot run here."""
        from seesay.llm.models.modules.module_model import DecoderNames, ModuleModel

        given, stored = self._weights.decoder, self._checkpoint.tensor_names()
        used = (prefix for prefix in given if any(name.startswith(prefix) for name in stored))
        names = DecoderNames(
            prefixes={
                prefix: new if (new := given[prefix]).startswith(_HEAD) else _PLAIN + new
                for prefix in sorted(used, key=len, reverse=True)
            },
            is_own=lambda name: self._weights.decoder_name(name) is not None,
            is_tied=self._is_tied,
        )
        nearest = describe_nearest(self._checkpoint.config.get("model_type"))
        return ModuleModel(self._checkpoint, _CAUSAL, names=names, nearest=nearest)

    def check(self, decoder: ModuleDecoder) -> None:
        """The tower is not one of the modules: nothing but the decoder is compared."""


def find_backbone(family: Family) -> Backbone:
    """Return the text decoder of a family: as it describes it, or where we do not compose decoders of its type and
    Transformers has a causal model of that type, the modules of that model."""
    backbone = family.backbone()
    kind = backbone.text_config.model_type
    is_plain = not (backbone.num_deep_layers or backbone.media_rows or backbone.is_prefix_lm or backbone.media_run)
    if not backbone.is_ours or backbone.kind is not None or not is_plain or kind in list_backbones():
        return backbone
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return backbone
    return ModuleBackbone(
        text_config=backbone.text_config,
        decoder_name=backbone.decoder_name,
        tie_word_embeddings=backbone.tie_word_embeddings,
        owner=ForeignDecoder(family, backbone),
    )


def is_known_to_transformers(architecture: str) -> bool:
    """Return whether Transformers has a causal language model of this name, in whatever case: some checkpoints are
    older than its class. Imports Transformers."""
    return architecture.lower() in map(str.lower, list_causal_models())


def list_causal_models() -> tuple[str, ...]:
    """Return the names of Transformers' causal language models. Imports Transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return tuple(name for each in names for name in ((each,) if isinstance(each, str) else each))
