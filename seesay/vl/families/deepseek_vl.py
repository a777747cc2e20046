"""DeepSeek-VL (arXiv 2403.05525): pictures that are padded to squares, a SigLIP tower, two linear layers, and a Llama.
This one is without the tower of high resolution (`deepseek_vl_hybrid`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.images import floored_edge_size, longest_edge_size
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Library, Tiles, pad_to
from seesay.vl.bases.pixels import (
    PixelSettings,
    check_num_rows,
    count_patches,
    read_count,
    read_padding_color,
    read_processor,
    read_tile,
)
from seesay.vl.bases.tower_names import CLIP_TOWER, TIMM_TOWER, TWO_LAYERS
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, NESTED_PREFIXES, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.vit import VitConfig

_TOWERS = ("vision_model.", "vision_model.vision_model.")
_ORIGINAL_TOWER = "vision_model.vision_tower."
_BICUBIC = 3


class DeepseekVL(Family):
    """Features: one tile of S² pixels, S being the tower's `image_size`, or frames; and the plan's measures.

    processor: class of the image processor, for settings that its file leaves out."""

    architectures: ClassVar[tuple[str, ...]] = ("DeepseekVLForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="llama",
            names=("deepseek-community/deepseek-vl-1.3b-chat", "deepseek-community/deepseek-vl-1.3b-base"),
            architecture="DeepseekVLForConditionalGeneration",
        ),
        Published(
            decoder="llama",
            names=("deepseek-ai/deepseek-vl-1.3b-chat", "deepseek-ai/deepseek-vl-1.3b-base"),
            architecture="MultiModalityCausalLM",
        ),
    )
    modalities = (Modality.IMAGE,)
    processor: ClassVar[str] = "DeepseekVLImageProcessor"
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            **{prefix + tower: "tower." for prefix in NESTED_PREFIXES for tower in _TOWERS},
            **{prefix + "aligner.": "projector." for prefix in NESTED_PREFIXES},
            _ORIGINAL_TOWER: "tower.",
        },
        tower_patterns=(
            *CLIP_TOWER,
            *TIMM_TOWER,
            (r"^projector\.layers\.", "projector."),
            *TWO_LAYERS,
            (r"^projector\.linear(\d)\.", r"projector.linear_\1."),
        ),
        ignored=(
            *(
                prefix + tower + name
                for prefix in NESTED_PREFIXES
                for tower in _TOWERS
                for name in ("embeddings.position_ids", "head.")
            ),
            f"{_ORIGINAL_TOWER}attn_pool.",
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
        given = read_processor(checkpoint, "image_processor")
        self.statistics: Mapping[str, Any] | None = getattr(config, "tower_statistics", None)
        """Mean and standard deviation of each tower in the authors' layout."""
        self.settings = given if self.statistics is None else self.read_original(given, self.statistics)
        self.library: Library = "torchvision" if self.statistics is None else "pillow"
        self.pixels = PixelSettings.read(self.settings, where, processor=self.processor, library=self.library)
        self.tile = read_tile(self.settings, vision.image_size, where, default=384)
        if self.settings.get("do_pad") not in (True, None):  # older files have null, and pictures were padded
            raise CheckpointError(f"{where}: processor setting do_pad=false is not supported")
        self.min_size = read_count(self.settings, "min_size", 14, most=vision.image_size, where=where)
        self.color = read_padding_color(given, where, processor=self.processor)
        self.grid_side = count_patches(vision, where)
        self._num_rows: int = self.grid_side**2
        check_num_rows(checkpoint, "num_image_tokens", self._num_rows)
        token = getattr(config, "image_token", None)
        self._image_token: int = config.image_token_id if token is None else self.token_id(token)
        self._markers = {Modality.IMAGE: self.token_text(self._image_token)}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        size = {"tile": self.tile, "min": self.min_size, "is_floored": self.statistics is not None}
        return {"pixels": self.pixels.as_json(), **size, "color": self.color}

    def read_original(self, given: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings `given` of the authors' processor, under the names of Transformers. Raises
        `CheckpointError` where processor and tower both normalize pixels."""
        own = {**given, "size": given.get("image_size"), "resample": _BICUBIC}
        if any(statistics.values()):
            if given.get("do_normalize", True):
                raise CheckpointError(
                    f"{self.checkpoint.path}: pixels are normalized twice, by do_normalize=true of the processor and "
                    "by pixel_mean of the tower, which is not supported"
                )
            own |= {"do_normalize": True, **(statistics["low"] or {})}
        return own

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return ((*self.make_square(size, self.tile, self.pixels, self.color), Tiles(self.tile)),)

    def make_square(
        self, size: MediaSize, tile: tuple[int, int], pixels: PixelSettings, color: tuple[int, int, int]
    ) -> Chain:
        """Return the steps that fit frames of this size into the middle of a square `tile` of one color."""
        fit = longest_edge_size if self.statistics is None else floored_edge_size
        fitted = fit(size.height, size.width, tile[0], least=self.min_size)
        return (pixels.resize(fitted), *pad_to(fitted, tile, color))

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        return {"num_tiles": 1, "resized": self.tile}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self._image_token] * self._num_rows, True))

    def num_units(self, measures: Features) -> int:
        return self._num_rows

    def largest_size(self) -> tuple[int, int] | None:
        return self.tile

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder

        projector = ProjectorConfig(out_hidden_size=self.checkpoint.model_config.text_config.hidden_size)
        normalizer, name_of = PixelNormalizer(**self.pixels.statistics), self.weights.tower_name
        return load_encoder(
            self.checkpoint, name_of, self.read_siglip(), projector, normalizer, device=device, dtype=dtype
        )

    def read_siglip(self) -> VitConfig:
        """Return the sizes of the SigLIP."""
        from seesay.encoders.towers.vit import VitConfig

        vision = self.checkpoint.model_config.vision_config
        tower = VitConfig.of_clip(
            vision, has_class_token=False, feature_layers=(vision.num_hidden_layers,), has_final_norm=True
        )
        if self.statistics is None:
            return tower
        return replace(tower, layers=replace(tower.layers, qkv=("qkv",)), has_batch_axes=True)
