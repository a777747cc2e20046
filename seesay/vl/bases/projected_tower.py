"""The base of families whose tower is a CLIP or SigLIP for squares of one size, with two linear layers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Modality
from seesay.values.frame_chain import Library
from seesay.vl.bases.pixels import PixelSettings, count_patches, find_library, read_processor
from seesay.vl.bases.tower_names import CLIP_TOWER, TWO_LAYERS
from seesay.vl.family import Family, Features
from seesay.vl.weight_map import BARE_DECODER, NESTED_DECODER, NESTED_PREFIXES, WeightMap, is_layer_above

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_TOWERS = ("vision_tower.", "vision_tower.vision_model.", "vision_tower.vision_tower.vision_model.")
_UNUSED = ("post_layernorm.", "embeddings.position_ids", "head.")
_HAS_CLASS_TOKEN = {"clip_vision_model": True, "siglip_vision_model": False}


def make_weights(learned_rows: tuple[str, ...] = ()) -> WeightMap:
    """Return the weight map of such a family, in whose checkpoints `learned_rows` stand beside the tower. In the layout
    of LLaVA's authors all of it stands beside the decoder's layers."""
    return WeightMap(
        decoder={**NESTED_DECODER, **{f"model.{name}": name for name in BARE_DECODER}},
        tower={
            **{prefix + tower: "tower." for prefix in NESTED_PREFIXES for tower in _TOWERS},
            **{prefix + "multi_modal_projector.": "projector." for prefix in NESTED_PREFIXES},
            **{prefix + name: f"learned.{name}" for prefix in NESTED_PREFIXES for name in learned_rows},
            "model.mm_projector.": "projector.",
        },
        tower_patterns=(*CLIP_TOWER, *TWO_LAYERS),
        ignored=tuple(prefix + tower + name for prefix in NESTED_PREFIXES for tower in _TOWERS for name in _UNUSED),
    )


class ProjectedTowerFamily(Family):
    """Reads the tower's settings, and builds it.

    strategies: values of `vision_feature_select_strategy` that the family supports. processor: class of the image
    processor, for settings that its file leaves out. learned_rows: see `LearnedRows`. projector_options: further fields
    of `ProjectorConfig`. An instance may have others of these two than its class."""

    strategies: ClassVar[tuple[str, ...]] = ("default", "full")
    processor: ClassVar[str]
    library: ClassVar[Library] = "torchvision"
    learned_rows: tuple[str, ...] = ()
    projector_options: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config = checkpoint.model_config
        vision, where = config.vision_config, checkpoint.path
        self._check_tower(checkpoint.config.get("mm_vision_tower"))
        self.settings = read_processor(checkpoint, "image_processor")
        self.has_class_token, self.image_size, self.grid_side = self.read_tower()
        strategy = config.vision_feature_select_strategy
        if strategy not in self.strategies:
            raise CheckpointError(
                f"{where}: vision_feature_select_strategy must be one of {', '.join(self.strategies)}, got {strategy!r}"
            )
        if strategy == "default" and not self.has_class_token:
            raise CheckpointError(
                f"{where}: vision_feature_select_strategy='default' drops the row of a class token, which a "
                f"{vision.model_type} has not"
            )
        library = find_library(checkpoint, self.library)
        self.pixels = PixelSettings.read(self.settings, where, processor=self.processor, library=library)
        self.image_token, image_text = self.find_placeholder(Modality.IMAGE)
        self._markers = {Modality.IMAGE: image_text}

    def read_tower(self) -> tuple[bool, int, int]:
        """Read the tower's settings. Return whether it has a class token, the side of its pictures in pixels, and that
        of its rows' square. Raises `CheckpointError` naming what is not supported."""
        config, where = self.checkpoint.model_config, self.checkpoint.path
        vision, layers = config.vision_config, config.vision_feature_layer
        if vision.model_type not in _HAS_CLASS_TOKEN:
            known = " and ".join(_HAS_CLASS_TOKEN)
            raise CheckpointError(f"{where}: vision tower {vision.model_type!r} is not supported ({known} are)")
        layers = (layers,) if isinstance(layers, int) else tuple(layers)
        self._feature_layers = tuple(i if i >= 0 else i + vision.num_hidden_layers + 1 for i in layers)
        if not all(0 <= i <= vision.num_hidden_layers for i in self._feature_layers):
            raise CheckpointError(
                f"{where}: vision_feature_layer={layers} is outside of {vision.num_hidden_layers} layers"
            )
        return _HAS_CLASS_TOKEN[vision.model_type], vision.image_size, count_patches(vision, where)

    def _check_tower(self, name: str | None) -> None:
        """Raise `CheckpointError` where LLaVA's own code would take the tower's weights from the model of this name."""
        names = map(self.weights.tower_name, self.checkpoint.tensor_names())
        if name is not None and not any(own is not None and own.startswith("tower.") for own in names):
            raise CheckpointError(
                f"{self.checkpoint.path}: the folder has no weights of its vision tower, which LLaVA's own code takes "
                f"from another model, mm_vision_tower={str(name)[:80]!r}: use a folder that has them, as those of "
                "llava-hf do"
            )

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    def find_placeholder(self, modality: Modality) -> tuple[int, str]:
        """Return the token at each place that takes a row of a picture or video, and the text that stands for one in a
        prompt. LLaVA's authors have no token for it: the last of the vocabulary stands there, which is not looked up.
        """
        config = self.checkpoint.model_config
        if not getattr(config, "has_media_tokens", True):
            return config.text_config.vocab_size - 1, f"<{modality.value}>"
        token: int = config.image_token_index if modality is Modality.IMAGE else config.video_token_index
        return token, self.token_text(token)

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self.grid_side**2

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder
        from seesay.encoders.towers.vit import VitConfig

        config = self.checkpoint.model_config
        tower = VitConfig.of_clip(
            config.vision_config,
            has_class_token=self.has_class_token,
            feature_layers=self._feature_layers,
            image_size=(self.image_size, self.image_size),
        )
        projector = ProjectorConfig(
            out_hidden_size=config.text_config.hidden_size,
            activation=config.projector_hidden_act,
            has_bias=config.multimodal_projector_bias,
            keeps_class_row=config.vision_feature_select_strategy == "full",
            learned_rows=self.learned_rows,
            **self.projector_options,
        )
        normalizer = PixelNormalizer(**self.pixels.statistics)
        name_of = self._used_tower_name
        return load_encoder(self.checkpoint, name_of, tower, projector, normalizer, device=device, dtype=dtype)

    def _used_tower_name(self, name: str) -> str | None:
        """Return the tower's name of a tensor; None for layers above the last one whose output is used."""
        parameter = self.weights.tower_name(name)
        if parameter is not None and is_layer_above(parameter, "tower.blocks.", max(self._feature_layers)):
            return None
        return parameter
