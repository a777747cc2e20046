"""Kimi-VL (arXiv 2504.07491): pictures at about their own size through a MoonViT, whose neighbouring patches are
joined, and a mixture of experts, which Transformers' modules compute."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Pad, Patches
from seesay.vl.bases.pixels import PixelSettings, read_count, read_processor, refuse_thin
from seesay.vl.constants import LOW_DETAIL_PIXELS
from seesay.vl.family import MAX_UNITS, Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint.model_config import ModelConfig
    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

_START, _CONTENT, _PLACE, _END = "<|media_start|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"
_KIND = "image"
_BEFORE = _START + _KIND + _CONTENT
_MERGE = 2
_MAX_SIDE = 511
"""Most patches in a side of a picture: the published code has rotary positions for so many."""
_BLACK = (0, 0, 0)


class KimiVL(Family):
    """Configuration, processor, tokenizer and model are code beside the weights; none of it is run.

    Features: patches [P, 3·P·P] in merge-group order, or frames; and the plan's measures, with `grid` (1, h, w) in
    patches and the size `fitted` of the picture in its padding.
    """

    architectures = ("KimiVLForConditionalGeneration",)
    published = (
        Published(
            decoder="deepseek_v3",
            names=("moonshotai/Kimi-VL-A3B-Instruct", "moonshotai/Kimi-VL-A3B-Thinking-2506"),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: ("max_pixels",)}
    weights = WeightMap(
        decoder={"language_model.model.": "", "language_model.lm_head.": "lm_head."},
        tower={
            "vision_tower.encoder.": "",
            "vision_tower.patch_embed.proj.": "patch_embed.",
            "vision_tower.patch_embed.pos_emb.": "pos_embed.",
            "vision_tower.encoder.final_layernorm.": "merger.ln_q.",
            "multi_modal_projector.pre_norm.": "merger.pre_norm.",
            "multi_modal_projector.linear_1.": "merger.mlp.0.",
            "multi_modal_projector.linear_2.": "merger.mlp.2.",
        },
        tower_patterns=(
            (r"\.norm1\.", ".norm2."),
            (r"\.norm0\.", ".norm1."),
            (r"\.wqkv\.", ".attn.qkv."),
            (r"\.wo\.", ".attn.proj."),
            (r"\.fc1\.", ".fc2."),
            (r"\.fc0\.", ".fc1."),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="KimiVLImageProcessor", library="pillow")
        self._limit = read_count(settings, "in_token_limit", 4096, most=MAX_UNITS, where=where)
        self._patch: int = config.vision_config.patch_size
        expected = {"patch_size": self._patch, "merge_kernel_size": [_MERGE, _MERGE], "pad_input": True}
        for name, value in expected.items():
            if (found := settings.get(name, None if name == "pad_input" else value)) != value:
                raise CheckpointError(f"{where}: processor setting {name} must be {value}, got {str(found)[:40]}")
        self._image_token: int = config.image_token_index
        if self.token_id(_PLACE) != self._image_token:
            raise CheckpointError(
                f"{where}: media_placeholder_token_id={self._image_token} of config.json is not the tokenizer's "
                f"{_PLACE}, {self.token_id(_PLACE)}"
            )
        kind = tokenizer.encode(_KIND, add_special_tokens=False)
        self._before = [self.token_id(_START), *kind, self.token_id(_CONTENT)]
        self._after = [self.token_id(_END)]

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: _BEFORE + _PLACE + _END}

    @property
    def spellings(self) -> Mapping[Modality, str]:
        marker, place = re.escape(_BEFORE + _PLACE + _END), re.escape(_PLACE)
        return {Modality.IMAGE: f"{marker}|{place}"}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "limit": self._limit, "patch": self._patch}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        usual = self._limit * self._patch**2
        return {**options, "max_pixels": min(LOW_DETAIL_PIXELS, options.get("max_pixels", usual))}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """A picture of more whole patches than its limit is shrunk to it; then both sides are padded to whole merge
        groups. With `max_pixels` the limit is of as many patches as so many pixels have."""
        limit = min(self._limit, max(1, options["max_pixels"] // self._patch**2)) if options else self._limit
        height, width = size.height, size.width
        count = (height // self._patch) * (width // self._patch)
        if count > limit:
            scale = math.sqrt(limit / count)
            height, width = int(height * scale), int(width * scale)
            if not height or not width:
                refuse_thin(size, limit, self._patch, unit="pixel")
        unit = self._patch * _MERGE
        padded = (-(-height // unit) * unit, -(-width // unit) * unit)
        grid = (1, padded[0] // self._patch, padded[1] // self._patch)
        if max(grid) > _MAX_SIDE:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"a picture of {size.width}x{size.height} pixels has a side of {max(grid)} patches, more than the "
                f"{_MAX_SIDE} that this model has positions for: crop or pad it",
                "messages",
            )
        return {"grid": grid, "num_tiles": 1, "resized": padded, "fitted": (height, width)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        rows = [self._image_token] * (math.prod(measures["grid"]) // _MERGE**2)
        return make_expansion((self._before, False), (rows, True), (self._after, False))

    def num_units(self, measures: Features) -> int:
        return math.prod(measures["grid"])

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        cut = Patches((self._patch, self._patch), (_MERGE, _MERGE), 1)
        resize = self._pixels.resize(measures["fitted"])
        return ((resize, Pad(measures["resized"], (0, 0), _BLACK), cut),)

    def largest_size(self) -> tuple[int, int]:
        """Return a picture whose padding is the most: one that is a little higher than whole merge groups once it is
        shrunk, and was nearly one patch higher than its whole patches, for the limit counts these alone."""
        sizes = [(1, (_MAX_SIDE - 1) * self._patch)]  # it has no whole patch, so that nothing limits it
        for rows in range(0, min(_MAX_SIDE, self._limit), _MERGE):
            least = rows * self._patch + 1
            for whole in range(max(rows, 1), rows + 3):
                height = (whole + 1) * self._patch - 1
                scale = least / max(height, least)
                columns = min(int(self._limit / (whole * scale**2)), int((_MAX_SIDE - 1) / scale))
                sizes += [(height, (columns + more) * self._patch - 1) for more in (0, 1, 2) if columns + more > 0]
        return max(sizes, key=self._count_patches)

    def _count_patches(self, size: tuple[int, int]) -> int:
        try:
            return self.num_units(
                self.measure(Modality.IMAGE, MediaSize(num_frames=1, height=size[0], width=size[1]), {})
            )
        except RequestError:
            return 0

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.packed_vit import PackedEncoder

        normalizer = PixelNormalizer(**self._pixels.statistics)
        return PackedEncoder.load(
            _make_tower_config(self.checkpoint.model_config, self._patch),
            normalizer,
            self.checkpoint,
            self.weights.tower_name,
            device=device,
            dtype=dtype,
        )


def _make_tower_config(config: ModelConfig, patch: int) -> PackedVisionConfig:
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

    vision = config.vision_config
    return PackedVisionConfig(
        depth=vision.num_hidden_layers,
        hidden_size=vision.hidden_size,
        num_heads=vision.num_attention_heads,
        intermediate_size=vision.intermediate_size,
        out_hidden_size=config.text_config.hidden_size,
        patch_dim=3 * patch**2,
        merge_size=_MERGE,
        activation=vision.hidden_act,
        uses_rms_norm=False,
        norm_eps=vision.layer_norm_eps,
        patch_bias=True,
        position_side=vision.image_size // vision.patch_size,
        position_blending="bicubic",
        position_axes="grid",
        rotates_neighbours=True,
        norms_twice=True,
    )
