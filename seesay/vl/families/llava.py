"""LLaVA-1.5 in its Transformers form: a CLIP tower on a square picture, two linear layers, a text decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.images import center_crop, pad_to_square, resize, shortest_edge_size
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.vl.family import (
    NESTED_DECODER,
    NESTED_FRONTS,
    Family,
    Features,
    WeightMap,
    is_layer_above,
    make_expansion,
    own_pixels,
)
from seesay.vl.pixels import PixelSettings, read_processor, read_square

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_TOWERS = ("vision_tower.", "vision_tower.vision_model.")
_UNUSED = ("post_layernorm.", "embeddings.position_ids")


class Llava(Family):
    """Features: `pixels` uint8 [1, S, S, 3], S being the tower's `image_size`, and the plan's measures."""

    architectures = ("LlavaForConditionalGeneration",)
    modalities = (Modality.IMAGE,)
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            **{front + tower: "tower." for front in NESTED_FRONTS for tower in _TOWERS},
            **{front + "multi_modal_projector.": "projector." for front in NESTED_FRONTS},
        },
        ignored=tuple(front + tower + name for front in NESTED_FRONTS for tower in _TOWERS for name in _UNUSED),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config = checkpoint.model_config
        vision, where = config.vision_config, checkpoint.path
        if vision.model_type != "clip_vision_model":
            raise CheckpointError(
                f"{where}: vision tower {vision.model_type!r} is not supported (clip_vision_model is)"
            )
        if config.vision_feature_select_strategy not in ("default", "full"):
            strategy = config.vision_feature_select_strategy
            raise CheckpointError(
                f"{where}: vision_feature_select_strategy={strategy!r} is neither 'default' nor 'full'"
            )
        self._settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(self._settings, where, processor="LlavaImageProcessor")
        self._image_size: int = vision.image_size
        self._num_patches: int = (vision.image_size // vision.patch_size) ** 2
        self._num_rows = self._num_patches + (config.vision_feature_select_strategy == "full")
        layers = config.vision_feature_layer
        layers = (layers,) if isinstance(layers, int) else tuple(layers)
        self._feature_layers = tuple(i if i >= 0 else i + vision.num_hidden_layers + 1 for i in layers)
        if not all(0 <= i <= vision.num_hidden_layers for i in self._feature_layers):
            raise CheckpointError(
                f"{where}: vision_feature_layer={layers} is outside of {vision.num_hidden_layers} layers"
            )
        self._image_token: int = config.image_token_index
        self._markers = {Modality.IMAGE: self.token_text(self._image_token)}
        final = self._settings["crop_size"] if self._crops else self._size
        if read_square(final, where, "crop_size" if self._crops else "size") != (vision.image_size, vision.image_size):
            raise CheckpointError(
                f"{where}: the processor makes pictures of {final}, the tower takes {vision.image_size}"
            )

    @property
    def _crops(self) -> bool:
        return bool(self._settings.get("do_center_crop", True)) and "crop_size" in self._settings

    @property
    def _pads(self) -> bool:
        return bool(self._settings.get("do_pad", False))

    @property
    def _size(self) -> Any:
        return self._settings.get("size", {"shortest_edge": self._image_size})

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        crop = self._settings["crop_size"] if self._crops else None
        return {"pixels": self._pixels.as_json(), "size": self._size, "crop": crop, "pads": self._pads}

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        frames = media.frames
        if self._pads:
            frames = pad_to_square(frames, [int(value * 255) for value in self._pixels.mean])
        edge = self._size if isinstance(self._size, int) else self._size.get("shortest_edge")
        if edge is not None:
            target = shortest_edge_size(frames.shape[1], frames.shape[2], edge)
        else:
            target = read_square(self._size, self.checkpoint.path, "size")
        frames = resize(frames, target, resample=self._pixels.resample)
        if self._crops:
            frames = center_crop(frames, (self._image_size, self._image_size))
        return {**measures, "pixels": own_pixels(frames)}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:  # noqa: ARG002
        return {"num_tiles": 1, "resized": (self._image_size, self._image_size)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:  # noqa: ARG002
        return make_expansion(([self._image_token] * self._num_rows, True))

    def num_units(self, measures: Features) -> int:  # noqa: ARG002
        return self._num_patches

    def largest_size(self) -> tuple[int, int] | None:
        return self._image_size, self._image_size

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        import torch

        from seesay.encoders.clip import ClipConfig, ClipEncoder, ProjectedClip
        from seesay.encoders.layers import PixelNormalizer
        from seesay.encoders.weights import load_tower

        config = self.checkpoint.model_config
        vision = config.vision_config
        sizes = ClipConfig(
            hidden_size=vision.hidden_size,
            num_heads=vision.num_attention_heads,
            intermediate_size=vision.intermediate_size,
            image_size=vision.image_size,
            patch_size=vision.patch_size,
            activation=vision.hidden_act,
            norm_eps=vision.layer_norm_eps,
            feature_layers=self._feature_layers,
            keeps_class_row=config.vision_feature_select_strategy == "full",
            out_hidden_size=config.text_config.hidden_size,
            projector_activation=config.projector_hidden_act,
            projector_bias=config.multimodal_projector_bias,
        )
        with torch.device("meta"):
            model = ProjectedClip(sizes)
        weights = load_tower(model, self.checkpoint, self._used_tower_name, device=device, dtype=dtype)
        return ClipEncoder(model, PixelNormalizer(**self._pixels.statistics), weights)

    def _used_tower_name(self, name: str) -> str | None:
        """Return the tower's name of a tensor; None for layers above the last one whose output is used."""
        parameter = self.weights.tower_name(name)
        if parameter is not None and is_layer_above(parameter, "tower.encoder.layers.", max(self._feature_layers)):
            return None
        return parameter
