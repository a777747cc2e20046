"""Nemotron 3 Nano Omni (NVIDIA 2026): pictures at about their own size and videos, of which neighbouring frames become
one, through a RADIO (arXiv 2412.07679), whose neighbouring patches are joined, and a Nemotron-H. Audio is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Patches
from seesay.vl.bases.float_pixels import FloatPixelsFamily
from seesay.vl.bases.pixels import PixelSettings, read_count, read_positive, read_processor, refuse_thin
from seesay.vl.constants import LOW_DETAIL_PIXELS
from seesay.vl.family import MAX_UNITS, Features, Wording, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NEMOTRON_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

_MERGE = 2
_PROCESSOR = "NemotronH_Omni_Reasoning_V3ImageProcessor"
_RADIO = "vision_model.radio_model."


class NemotronOmni(FloatPixelsFamily):
    """Features: patches float32 in merge-group order, [P, 3 * P * P] of a picture and [P, 3 * Tp * P * P] of a video.
    And the plan's measures, with `grid` (t, h, w) in patches; for a video, `times_ms` of its frames."""

    architectures = ("NemotronH_Omni_Reasoning_V3",)
    published = (
        Published(
            decoder="nemotron_h",
            architecture="NemotronH_Nano_Omni_Reasoning_V3",
            names=("nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning-BF16",),
        ),
    )
    modalities = (Modality.IMAGE, Modality.VIDEO)
    options = {Modality.IMAGE: ("max_pixels",), Modality.VIDEO: ("max_pixels",)}
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
            f"{_RADIO}input_conditioner.",
            f"{_RADIO}summary_idxs",
            "vision_model.input_conditioner.",
            "vision_model.summary_idxs",
        ),
        decoder_patterns=NEMOTRON_DECODER,
        tower_patterns=(
            (r"^(patch_generator\.embedder|embeddings\.patch_projection)\.", "patch_embed."),
            (r"^(patch_generator\.video_embedder|embeddings\.video_patch_projection)\.", "video_embed."),
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
        self._pixels = PixelSettings.read(settings, where, processor=_PROCESSOR)
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
        self._video = VideoSettings.read(checkpoint, self._pixels)
        self.default_sampling = self._video.sampling
        self._image_token: int = config.image_token_id
        self._before, self._after = [self.token_id("<img>")], [self.token_id("</img>")]
        video_text = tokenizer.named_tokens.get("video_token", "<video>")
        self._markers = {Modality.IMAGE: self.token_text(self._image_token), Modality.VIDEO: video_text}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        patches = [self._least, self._most, self._patch]
        video = [self._video.num_patches, self._video.keeps_ratio, self._video.step_frames]
        return {"pixels": self._pixels.as_json(), "patches": patches, "video": video}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        usual = (self._most if modality is Modality.IMAGE else self._video.num_patches) * self._patch**2
        return {**options, "max_pixels": min(LOW_DETAIL_PIXELS, options.get("max_pixels", usual))}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """With `max_pixels`, a picture, or a frame of a video, has at most as many patches as so many pixels, but for
        its rounding."""
        most = self._most if modality is Modality.IMAGE else self._video.num_patches
        if "max_pixels" in options:
            most = min(most, max(_MERGE**2, options["max_pixels"] // self._patch**2))
        own = (size.height, size.width)
        if modality is Modality.VIDEO:
            return self._video.measure(size, find_frame_grid(own, most, keeps_ratio=self._video.keeps_ratio))
        grid = find_grid(own, self._patch, least=min(self._least, most), most=most)
        if grid is None:
            refuse_thin(size, most, self._patch, unit="patch")
        return {"grid": (1, *grid), "num_tiles": 1, "resized": tuple(side * self._patch for side in grid)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """Return for a video what stands for a picture once for each step, behind the times of its frames."""
        steps, *grid = measures["grid"]
        rows = [self._image_token] * (math.prod(grid) // _MERGE**2)
        pieces = [(self._before, False), (rows, True), (self._after, False)]
        for step in range(1, steps):
            label = self.tokenizer.encode("\n" + self._video.name_step(measures["times_ms"], step))
            pieces += [([*label, *self._before], False), (rows, True), (self._after, False)]
        return make_expansion(*pieces)

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:
        """The times of a video's first frames are tokenized with the text before it."""
        if modality is Modality.IMAGE:
            return None
        before = "" if measures is None else self._video.name_step(measures["times_ms"], 0)
        return Wording(before=before, marker=self._markers[Modality.IMAGE], after="")

    def num_units(self, measures: Features) -> int:
        return math.prod(measures["grid"])

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        is_video = modality is Modality.VIDEO
        cut = Patches((self._patch, self._patch), (_MERGE, _MERGE), self._video.step_frames if is_video else 1)
        pixels = self._video.pixels if is_video else self._pixels
        return ((pixels.resize(measures["resized"]), cut),)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoSettings:
    """How a checkpoint takes videos. Each frame has about `num_patches` patches, in a square unless it `keeps_ratio`;
    `step_frames` frames become one. `refusal` is why videos are refused; empty where they are taken."""

    pixels: PixelSettings
    num_patches: int
    keeps_ratio: bool
    patch_size: int
    step_frames: int
    sampling: Mapping[str, Any]
    refusal: str

    @classmethod
    def read(cls, checkpoint: Checkpoint, pictures: PixelSettings) -> Self:
        """Read the settings of the video processor. `pictures` are those of pictures. Raises `CheckpointError` for one
        that is not supported."""
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "video_processor")
        patch, frames = config.vision_config.patch_size, config.video_temporal_patch_size
        joined = (checkpoint.read_json("processor_config.json") or {}).get("video_temporal_patch_dim", frames)
        for name, found, value in (
            ("patch_size", settings.get("patch_size", 16), patch),
            ("downsample_ratio", settings.get("downsample_ratio", 1 / _MERGE), 1 / _MERGE),
            ("video_temporal_patch_dim", joined, frames),
        ):
            if found != value:
                raise CheckpointError(f"{where}: video processor setting {name} must be {value}, got {str(found)[:40]}")
        statistics = {
            f"image_{name}": settings.get(f"norm_{name}") or getattr(pictures, name) for name in ("mean", "std")
        }
        pixels = PixelSettings.read({**statistics, "resample": 3}, where, processor=_PROCESSOR)
        if pixels.statistics != pictures.statistics:
            raise CheckpointError(f"{where}: pictures and videos are normalized differently: not supported")
        rate = config.video_pruning_rate
        return cls(
            pixels=pixels,
            num_patches=read_count(settings, "video_target_num_patches", 1024, most=MAX_UNITS, where=where),
            keeps_ratio=bool(settings.get("video_maintain_aspect_ratio", True)),
            patch_size=patch,
            step_frames=frames,
            sampling=_read_sampling(settings, where),
            refusal=f"video_pruning_rate={rate} of config.json" if rate else "",
        )

    def measure(self, size: MediaSize, grid: tuple[int, int]) -> Features:
        """Return the measures of a video whose frames have this grid of patches. Raises `RequestError` where videos are
        refused."""
        if self.refusal:
            message = f"videos are not supported with {self.refusal}: with 0 there, this model takes them whole"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "messages")
        return {
            "grid": (-(-size.num_frames // self.step_frames), *grid),
            "num_tiles": 1,
            "resized": tuple(side * self.patch_size for side in grid),
            "times_ms": find_times(size),
        }

    def name_step(self, times_ms: Sequence[int], step: int) -> str:
        """Return the text before a step of a video whose frames have these times."""
        first = step * self.step_frames
        times = enumerate(times_ms[first : first + self.step_frames], first + 1)
        named = " and ".join(f"frame {number} sampled at {ms / 1000:.2f} seconds" for number, ms in times)
        return f"{named.capitalize()}: "


def find_times(size: MediaSize) -> tuple[int, ...]:
    """Return the times of a video's frames in milliseconds, as Transformers counts them: each frame of the file lasts a
    whole number of these."""
    if not size.source_fps:
        return tuple(round(1000 * time_s) for time_s in size.timestamps_s)
    duration_ms = int(1000.0 / size.source_fps)
    return tuple(round(time_s * size.source_fps) * duration_ms for time_s in size.timestamps_s)


def _read_sampling(settings: Mapping[str, Any], where: object) -> Mapping[str, Any]:
    """Return the number or rate of frames that a video processor takes; nothing of one that leaves this open."""
    if not settings.get("do_sample_frames"):
        return {}
    if settings.get("num_frames") is not None:
        return {"num_frames": read_count(settings, "num_frames", 1, most=1 << 16, where=where)}
    return {} if settings.get("fps") is None else {"fps": read_positive(settings, "fps", 2, where)}


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
        step_frames=config.video_temporal_patch_size,
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


def find_frame_grid(size: tuple[int, int], most: int, *, keeps_ratio: bool) -> tuple[int, int]:
    """Return the (rows, columns) of patches, multiples of two, to which frames of this size are resized: about `most`
    in the frame's ratio, or in a square."""
    if not keeps_ratio:
        side = max(_MERGE, int(math.sqrt(most)) // _MERGE * _MERGE)
        return side, side
    ratio = size[1] / size[0]
    own = [max(round(math.sqrt(share)), 1) for share in (most / ratio, most * ratio)]
    rows, columns = (length + length % _MERGE for length in own)
    if rows * columns > most:
        rows, columns = (max(_MERGE, length - length % _MERGE) for length in own)
    return rows, columns


def _round(count: int, other: int, most: int) -> int:
    """Return a multiple of two beside `count`, the larger one where `most` patches allow it."""
    rest = count % _MERGE
    if not rest:
        return count
    larger = count + _MERGE - rest
    return larger if larger * other <= most else max(_MERGE, count - rest)
