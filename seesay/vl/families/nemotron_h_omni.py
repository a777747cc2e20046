"""Nemotron 3 Nano Omni (NVIDIA 2026): pictures at about their own size through a RADIO (arXiv 2412.07679), whose
neighbouring patches are joined, and a Nemotron-H. Audio and videos, whose pairs of frames have patches of their own,
are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.images import cut_patches, resize_as_float
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Patches
from seesay.vl.bases.pixels import PixelSettings, read_count, read_processor, refuse_thin
from seesay.vl.constants import LOW_DETAIL_PIXELS
from seesay.vl.family import MAX_UNITS, Family, Features, make_expansion
from seesay.vl.media_plan import MediaPlan
from seesay.vl.published import Published
from seesay.vl.weight_map import NEMOTRON_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

_MERGE = 2
_FLOAT_BYTES = 4
_RADIO = "vision_model.radio_model."


class NemotronOmni(Family):
    """Features: patches float32 [P, 3 * P * P] in merge-group order: pixels are not rounded when they are resized. And
    the plan's measures, with `grid` (1, h, w) in patches."""

    architectures = ("NemotronH_Omni_Reasoning_V3",)
    published = (
        Published(
            decoder="nemotron_h",
            architecture="NemotronH_Nano_Omni_Reasoning_V3",
            names=("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: ("max_pixels",)}
    takes_frames = False
    weights = WeightMap(
        decoder={
            "language_model.backbone.": "",
            "language_model.model.": "",
            "language_model.lm_head.": "lm_head.",
        },
        tower={
            f"{_RADIO}model.": "",
            "vision_model.": "",
            "vision_model.encoder.layer.": "blocks.",
            "mlp1.0.": "merger.layer_norm.",
            "mlp1.1.": "merger.linear_1.",
            "mlp1.3.": "merger.linear_2.",
            "multi_modal_projector.": "merger.",
            "vision_projector.vision_final_layernorm.": "merger.norm.",
            "vision_final_layernorm.": "merger.norm.",
        },
        ignored=(
            "language_model.mtp.",
            "sound_encoder.",
            "sound_projection.",
            "audio_tower.",
            "embed_audio.",
            f"{_RADIO}model.patch_generator.video_embedder.",
            f"{_RADIO}input_conditioner.",
            f"{_RADIO}summary_idxs",
            "vision_model.embeddings.video_patch_projection.",
            "vision_model.input_conditioner.",
            "vision_model.summary_idxs",
        ),
        decoder_patterns=NEMOTRON_DECODER,
        tower_patterns=(
            (r"^(patch_generator\.embedder|embeddings\.patch_projection)\.", "patch_embed."),
            (r"^(patch_generator\.pos_embed|embeddings\.position_embedding)$", "pos_embed.weight"),
            (r"^(patch_generator\.cls_token\.token|embeddings\.cls_register_token)$", "prefix.weight"),
            (r"\.attention\.o_proj\.", ".attn.proj."),
            (r"\.attention\.", ".attn."),
            (r"\.layer_scale([12])\.lambda1$", r".gamma_\1"),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="NemotronH_Omni_Reasoning_V3ImageProcessor")
        if self._pixels.resample == "lanczos":
            raise CheckpointError(f"{where}: processor setting resample must be 2 (bilinear) or 3 (bicubic), got 1")
        self._patch: int = config.vision_config.patch_size
        for name, found, value in (
            ("downsample_ratio", config.downsample_ratio, 1 / _MERGE),
            ("processor setting downsample_ratio", settings.get("downsample_ratio", 0.5), 1 / _MERGE),
            ("processor setting patch_size", settings.get("patch_size", 16), self._patch),
        ):
            if found != value:
                raise CheckpointError(f"{where}: {name} must be {value}, got {str(found)[:40]}")
        self._least = read_count(settings, "min_num_patches", 1024, most=MAX_UNITS, where=where)
        most = MAX_UNITS
        if settings.get("max_num_patches") != 0:
            most = read_count(settings, "max_num_patches", 13312, most=MAX_UNITS, where=where)
        length = read_count(settings, "max_model_len", 16384, most=1 << 32, where=where)
        self._most = max(min(max((length - 4) * _MERGE**2, self._least), most), self._least)
        self._cut = Patches((self._patch, self._patch), (_MERGE, _MERGE), 1)
        self._image_token: int = config.image_token_id
        self._before, self._after = [self.token_id("<img>")], [self.token_id("</img>")]

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: self.token_text(self._image_token)}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "patches": [self._least, self._most, self._patch]}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        usual = self._most * self._patch**2
        return {**options, "max_pixels": min(LOW_DETAIL_PIXELS, options.get("max_pixels", usual))}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """With `max_pixels`, a picture has at most as many patches as so many pixels, but for its rounding."""
        most = self._most
        if "max_pixels" in options:
            most = min(most, max(_MERGE**2, options["max_pixels"] // self._patch**2))
        grid = find_grid((size.height, size.width), self._patch, least=min(self._least, most), most=most)
        if grid is None:
            refuse_thin(size, most, self._patch, unit="patch")
        return {"grid": (1, *grid), "num_tiles": 1, "resized": tuple(side * self._patch for side in grid)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        rows = [self._image_token] * (math.prod(measures["grid"]) // _MERGE**2)
        return make_expansion((self._before, False), (rows, True), (self._after, False))

    def num_units(self, measures: Features) -> int:
        return math.prod(measures["grid"])

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return ((self._pixels.resize(measures["resized"]), self._cut),)

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        planned = super().plan_media(modality, size, options)
        return replace(planned, peak_pixels=_FLOAT_BYTES * planned.peak_pixels)

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        """Resize in float32, with what bicubic interpolation overshoots: the steps of `chain_frames`, unrounded."""
        pixels = resize_as_float(media.frames, measures["resized"], resample=self._pixels.resample, clamps=False)
        return {**measures, "pixels": cut_patches(pixels, self._cut)}

    def largest_size(self) -> tuple[int, int]:
        """Return a picture one patch wide, whose columns are doubled, and as long as it may be."""
        most = min(self._most, MAX_UNITS // _MERGE)
        longest = most - most % _MERGE
        return (longest - 1) * self._patch + 1, 1

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.packed_vit import PackedEncoder

        tower, normalizer = make_tower_config(self.checkpoint), PixelNormalizer(**self._pixels.statistics)
        return PackedEncoder.load(
            tower, normalizer, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype
        )


def make_tower_config(checkpoint: Checkpoint) -> PackedVisionConfig:
    """Return the tower of a checkpoint. Raises `CheckpointError` for one that is not supported."""
    from seesay.encoders.towers.packed_layout import JoinedConfig, PackedVisionConfig

    config, text = checkpoint.model_config, checkpoint.text_config
    vision, names = config.vision_config, checkpoint.tensor_names()
    if vision.use_swiglu_ffn:
        raise CheckpointError("vision_config.use_swiglu_ffn=True is not supported")
    return PackedVisionConfig(
        depth=vision.num_hidden_layers,
        hidden_size=vision.hidden_size,
        num_heads=vision.num_attention_heads,
        intermediate_size=int(vision.hidden_size * vision.mlp_ratio),
        out_hidden_size=text.hidden_size,
        patch_dim=3 * vision.patch_size**2,
        merge_size=_MERGE,
        activation=vision.hidden_act,
        uses_rms_norm=False,
        norm_eps=vision.layer_norm_eps,
        has_qkv_bias=vision.qkv_bias,
        splits_qkv=any(name.endswith(".attention.q_proj.weight") for name in names),
        has_rotary=False,
        has_scales=any(name.endswith(".layer_scale1.lambda1") for name in names),
        num_prefix=vision.num_cls_tokens + vision.num_registers,
        position_side=vision.max_img_size // vision.patch_size,
        position_blending="cropped",
        position_axes="batch",
        projector=JoinedConfig(
            inner_size=config.projector_hidden_size,
            activation="relu2",
            has_bias=False,
            norm="rms",
            norms_patches=(text.num_nextn_predict_layers or 0) > 0,
        ),
    )


def find_grid(size: tuple[int, int], patch: int, *, least: int, most: int) -> tuple[int, int] | None:
    """Return the (rows, columns) of patches, multiples of two, to which a picture is resized: near its own, of `least`
    to `most` patches but for rounding; None where a side would have none."""
    rows, columns = (round(length / patch + 0.5) for length in size)
    factor = min(math.sqrt(most / (rows * columns)), 1.0)
    rows, columns = math.floor(factor * rows), math.floor(factor * columns)
    if not rows or not columns:
        return None
    if most > least and rows * columns < least:
        factor = math.sqrt(least / (rows * columns))
        rows, columns = math.ceil(factor * rows), math.ceil(factor * columns)
    rows = _round(rows, columns, most)
    return rows, _round(columns, rows, most)


def _round(count: int, other: int, most: int) -> int:
    """Return a multiple of two beside `count`, the larger one where `most` patches allow it."""
    rest = count % _MERGE
    if not rest:
        return count
    larger = count + _MERGE - rest
    return larger if larger * other <= most else max(_MERGE, count - rest)
