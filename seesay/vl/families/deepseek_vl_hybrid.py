"""DeepSeek-VL with a second tower for pictures of high resolution (arXiv 2403.05525, section 2.3): a SigLIP and a SAM
see the same picture, and one row is made of those of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.host_chain import run_chains
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles, pack
from seesay.vl.bases.pixels import PixelSettings, count_patches, read_padding_color, read_tile
from seesay.vl.bases.sam import read_sam
from seesay.vl.bases.tower_names import SAM_NECK, SAM_TOWER
from seesay.vl.families.deepseek_vl import DeepseekVL
from seesay.vl.family import Features
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_PREFIXES, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.sam import SamConfig

_HIGH = "high_res_"
_ORIGINAL = "vision_model.vision_tower_high.vision_tower."
_ORIGINAL_LOW = "vision_model.vision_tower_low.vision_tower."
_ORIGINAL_BEHIND = {
    "neck_hd.": "high_res_vision_neck.",
    "downsamples.": "high_res_vision_proj.",
    "hd_alpha_downsamples": "high_res_vision_alpha",
}
_BEHIND = ("high_res_vision_neck.", "high_res_vision_proj.", "high_res_vision_alpha")
"""Tensors of what comes behind the SAM."""
_SHARED = ("do_normalize", "do_rescale", "do_resize", "rescale_factor", "image_processor_type")


class DeepseekVLHybrid(DeepseekVL):
    """Features: `pixels` and `high_pixels`, one tile each in the sizes of both towers, or frames with a chain for each;
    and the plan's measures. In the authors' layout, `pixels` are the larger tile, or frames have its chain alone."""

    architectures = ("DeepseekVLHybridForConditionalGeneration",)
    published = (
        Published(
            decoder="llama",
            names=("deepseek-community/deepseek-vl-7b-chat", "deepseek-community/deepseek-vl-7b-base"),
            architecture="DeepseekVLHybridForConditionalGeneration",
        ),
        Published(
            decoder="llama",
            names=("deepseek-ai/deepseek-vl-7b-chat", "deepseek-ai/deepseek-vl-7b-base"),
            architecture="MultiModalityCausalLM",
        ),
    )
    processor = "DeepseekVLHybridImageProcessor"
    weights = WeightMap(
        decoder=DeepseekVL.weights.decoder,
        tower={
            **DeepseekVL.weights.tower,
            **{prefix + "high_res_vision_model.vision_encoder.": "high." for prefix in NESTED_PREFIXES},
            **{prefix + name: name for prefix in NESTED_PREFIXES for name in _BEHIND},
            _ORIGINAL_LOW: "tower.",
            _ORIGINAL: "high.",
            **{_ORIGINAL + name: known for name, known in _ORIGINAL_BEHIND.items()},
        },
        tower_patterns=(
            (r"^projector\.low_up_proj\.", "projector.vision_proj."),
            (r"^projector\.high_up_proj\.", "projector.high_res_vision_proj."),
            (r"^projector\.layers\.1\.", "projector.proj."),
            *SAM_NECK,
            (r"^high_res_vision_proj\.0\.", "high_res_vision_proj.conv1."),
            (r"^high_res_vision_proj\.1\.", "high_res_vision_proj.conv2."),
            *DeepseekVL.weights.tower_patterns,
            *SAM_TOWER,
        ),
        ignored=(
            *DeepseekVL.weights.ignored,
            f"{_ORIGINAL_LOW}attn_pool.",
            "vision_model.high_layer_norm.",
            "vision_model.low_layer_norm.",
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        where, vision = checkpoint.path, checkpoint.model_config.high_res_vision_config
        own = {name.removeprefix(_HIGH): value for name, value in self.settings.items() if name.startswith(_HIGH)}
        shared = {name: self.settings[name] for name in _SHARED if name in self.settings}
        high = {**shared, **own}
        self._high_pixels = PixelSettings.read(high, where, processor=self.processor, library=self.library)
        self._high_color = self.color
        if self.statistics is None:
            self._high_color = read_padding_color(high, where, processor=self.processor)
        self._high_tile = read_tile(self.settings, vision.image_size, where, default=1024, name="high_res_size")
        self._num_high_patches: int = count_patches(vision, where) ** 2
        if vision.model_type != "sam_vision_model":
            raise CheckpointError(
                f"{where}: high resolution tower {vision.model_type!r} is not supported (sam_vision_model is)"
            )

    def read_original(self, given: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
        """The processor makes the larger picture. The tower makes the smaller one of it."""
        if not (statistics["low"] and statistics["high"]):
            raise CheckpointError(f"{self.checkpoint.path}: both towers must have pixel_mean and pixel_std")
        own = super().read_original(given, statistics)
        high = {"size": own["size"], "resample": own["resample"], **statistics["high"]}
        small = {"size": self.checkpoint.model_config.vision_config.image_size}
        return {**own, **small, **{_HIGH + name: value for name, value in high.items()}}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        high = {"pixels": self._high_pixels.as_json(), "tile": self._high_tile, "color": self._high_color}
        return {**super().preprocessing, "high": high}

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        """The smaller picture is made of the larger one, as published; by the encoder in the authors' layout."""
        square = self.make_square(size, self._high_tile, self._high_pixels, self._high_color)
        if self.statistics is not None:
            return ((*square, Tiles(self._high_tile)),)
        small = (self.pixels.resize(self.tile), Tiles(self.tile))
        return (*square, *small), (*square, Tiles(self._high_tile))

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        if self.statistics is not None:
            return super().preprocess(media, measures)
        chains = self.chain_frames(media.modality, media.size, measures)
        if self.may_send_frames(media.size, chains):
            return {**measures, "frames": media.frames, "chains": pack(chains)}
        high = run_chains(media.frames, chains[1:])
        low = run_chains(high, (chains[0][-2:],))
        return {**measures, "pixels": low, "high_pixels": high}

    def num_units(self, measures: Features) -> int:
        return super().num_units(measures) + self._num_high_patches

    def largest_size(self) -> tuple[int, int] | None:
        return self._high_tile

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.hybrid_vit import HybridEncoder
        from seesay.encoders.towers.layers import PixelNormalizer

        both = (self.pixels, self._high_pixels)
        low, high = (PixelNormalizer(**pixels.statistics) for pixels in both)
        return HybridEncoder(
            self.checkpoint,
            self.weights.tower_name,
            (self.read_siglip(), self._read_sam()),
            (low, high),
            hidden_size=self.checkpoint.model_config.text_config.hidden_size,
            shrinks=self.statistics is not None,
            device=device,
            dtype=dtype,
        )

    def _read_sam(self) -> SamConfig:
        """Return the sizes of the SAM, which keeps the rows behind its first layer without windows."""
        vision = self.checkpoint.model_config.high_res_vision_config
        sam = read_sam(vision, f"{self.checkpoint.path}: high_res_vision_config")
        return replace(sam, kept_layer=sam.global_layers[0])
