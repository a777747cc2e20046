"""DeepSeek-VL (arXiv 2403.05525): pictures that are padded to squares, a SigLIP tower, two linear layers, and a Llama.
This one is without the tower of high resolution (`deepseek_vl_hybrid`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.frame_chain import Chain, Resize, Tiles, pad_to
from seesay.processors.media.images import longest_edge_size
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.pixels import (
    PixelSettings,
    check_num_rows,
    count_patches,
    read_count,
    read_padding_color,
    read_processor,
    read_tile,
)
from seesay.vl.published import Published
from seesay.vl.tower_names import CLIP_TOWER
from seesay.vl.weight_map import NESTED_DECODER, NESTED_FRONTS, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.vit import VitConfig

_TOWERS = ("vision_model.", "vision_model.vision_model.")


class DeepseekVL(Family):
    """Features: one tile of S² pixels, S being the tower's `image_size`, or frames; and the plan's measures.

    processor: class of the image processor, for settings that its file leaves out."""

    architectures: ClassVar[tuple[str, ...]] = ("DeepseekVLForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="llama",
            names=("deepseek-community/deepseek-vl-1.3b-chat", "deepseek-community/deepseek-vl-1.3b-base"),
        ),
    )
    modalities = (Modality.IMAGE,)
    processor: ClassVar[str] = "DeepseekVLImageProcessor"
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            **{front + tower: "tower." for front in NESTED_FRONTS for tower in _TOWERS},
            **{front + "aligner.": "projector." for front in NESTED_FRONTS},
        },
        tower_patterns=(*CLIP_TOWER, (r"^projector\.linear(\d)\.", r"projector.linear_\1.")),
        ignored=tuple(
            front + tower + name
            for front in NESTED_FRONTS
            for tower in _TOWERS
            for name in ("embeddings.position_ids", "head.")
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        vision = config.vision_config
        if vision.model_type != "siglip_vision_model":
            raise CheckpointError(
                f"{where}: vision tower {vision.model_type!r} is not supported (siglip_vision_model is)"
            )
        self.settings = read_processor(checkpoint, "image_processor")
        self.pixels = PixelSettings.read(self.settings, where, processor=self.processor)
        self.tile = read_tile(self.settings, vision.image_size, where, default=384)
        if self.settings.get("do_pad") not in (True, None):  # older files have null, and pictures were padded
            raise CheckpointError(f"{where}: processor setting do_pad=false is not supported")
        self.min_size = read_count(self.settings, "min_size", 14, most=vision.image_size, where=where)
        self.color = read_padding_color(self.settings, where, processor=self.processor)
        self.grid_side = count_patches(vision, where)
        self._num_rows: int = self.grid_side**2
        check_num_rows(checkpoint, "num_image_tokens", self._num_rows)
        self._image_token: int = config.image_token_id
        self._markers = {Modality.IMAGE: self.token_text(self._image_token)}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self.pixels.as_json(), "tile": self.tile, "min": self.min_size, "color": self.color}

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:  # noqa: ARG002
        return ((*self.make_square(size, self.tile, self.pixels, self.color), Tiles(self.tile)),)

    def make_square(
        self, size: MediaSize, tile: tuple[int, int], pixels: PixelSettings, color: tuple[int, int, int]
    ) -> Chain:
        """Return the steps that fit frames of this size into the middle of a square `tile` of one color."""
        fitted = longest_edge_size(size.height, size.width, tile[0], least=self.min_size)
        return (Resize(fitted, pixels.resample), *pad_to(fitted, tile, color))

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:  # noqa: ARG002
        return {"num_tiles": 1, "resized": self.tile}

    def expand(self, modality: Modality, measures: Features) -> Expansion:  # noqa: ARG002
        return make_expansion(([self._image_token] * self._num_rows, True))

    def num_units(self, measures: Features) -> int:  # noqa: ARG002
        return self._num_rows

    def largest_size(self) -> tuple[int, int] | None:
        return self.tile

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.layers import PixelNormalizer
        from seesay.encoders.projected_vit import ProjectorConfig, load_encoder

        projector = ProjectorConfig(out_hidden_size=self.checkpoint.model_config.text_config.hidden_size)
        normalizer, name_of = PixelNormalizer(**self.pixels.statistics), self.weights.tower_name
        return load_encoder(
            self.checkpoint, name_of, self.read_siglip(), projector, normalizer, device=device, dtype=dtype
        )

    def read_siglip(self) -> VitConfig:
        """Return the sizes of the SigLIP."""
        from seesay.encoders.vit import VitConfig

        vision = self.checkpoint.model_config.vision_config
        return VitConfig.of_clip(
            vision, has_class_token=False, feature_layers=(vision.num_hidden_layers,), has_final_norm=True
        )
