"""InternVL, as its authors publish it and in Transformers' layout: pictures cut into tiles with a thumbnail, videos as
numbered frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.media.images import GridOrder, tile_grid
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles
from seesay.vl.bases.pixels import PixelSettings, find_library, read_processor, read_square
from seesay.vl.bases.tower_names import INTERN_TOWER
from seesay.vl.family import MAX_TILES, Family, Features, Wording, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import (
    GPT_OSS_DECODER,
    INTERNLM2_DECODER,
    NESTED_DECODER,
    NESTED_PREFIXES,
    WeightMap,
    is_layer_above,
)

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder


_QK_NORM_EPS = 1e-6
_TOKENS = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
"""Spellings of tokens to which the authors' tokenizers give no names."""


def _check_sizes(settings: Mapping[Modality, Mapping[str, Any]], tile: tuple[int, int], where: Path) -> None:
    for modality, given in settings.items():
        if "size" in given and read_square(given["size"], where, "size") != tile:
            size = given["size"]
            raise CheckpointError(f"{where}: the {modality.value} processor's size {size} is not the tower's {tile}")


def _read_tile_counts(settings: Mapping[str, Any], where: Path) -> tuple[int, int]:
    """Return the least and the most tiles of a picture."""
    counts = settings.get("min_patches", 1), settings.get("max_patches", 12)
    if not all(type(n) is int and 1 <= n <= MAX_TILES for n in counts):
        raise CheckpointError(
            f"{where}: min_patches and max_patches, or config.json's min_dynamic_patch and max_dynamic_patch, must "
            f"be integers in [1, {MAX_TILES}], got {str(counts)[:80]}"
        )
    return counts


def _name_frame(number: int) -> str:
    return f"Frame{number}: "


class InternVL(Family):
    """Features: tiles in the tower's `image_size`, or frames, and the plan's measures. The tiles of a video are its
    frames."""

    architectures = ("InternVLForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="qwen2", names=("OpenGVLab/InternVL3-1B-hf", "OpenGVLab/InternVL3-8B-hf")),
        Published(decoder="qwen3", names=("OpenGVLab/InternVL3_5-8B-HF",)),
        Published(decoder="gpt_oss", names=("OpenGVLab/InternVL3_5-GPT-OSS-20B-A4B-Preview-HF",)),
        Published(
            architecture="InternVLChatModel",
            decoder="llama",
            names=("OpenGVLab/InternVL-Chat-V1-5", "OpenGVLab/InternVL2-8B", "OpenGVLab/InternVL2_5-26B"),
        ),
        Published(architecture="InternVLChatModel", decoder="phi3", names=("OpenGVLab/InternVL2-4B",)),
        Published(
            architecture="InternVLChatModel",
            decoder="qwen2",
            names=("OpenGVLab/InternVL2_5-4B", "OpenGVLab/InternVL3-8B", "OpenGVLab/InternVL3-78B"),
        ),
        Published(architecture="InternVLChatModel", decoder="qwen3", names=("OpenGVLab/InternVL3_5-8B",)),
        Published(
            architecture="InternVLChatModel",
            decoder="gpt_oss",
            names=("OpenGVLab/InternVL3_5-GPT-OSS-20B-A4B-Preview",),
        ),
    )
    modalities: tuple[Modality, ...] = (Modality.IMAGE, Modality.VIDEO)
    options = {Modality.IMAGE: ("min_dynamic_patch", "max_dynamic_patch")}
    default_sampling = {"num_frames": 8}
    weights = WeightMap(
        decoder={**NESTED_DECODER, "language_model.output.": "lm_head."},
        decoder_patterns=(*INTERNLM2_DECODER, *GPT_OSS_DECODER),
        tower={
            **{prefix + "vision_tower.": "tower." for prefix in NESTED_PREFIXES},
            **{prefix + "multi_modal_projector.": "projector." for prefix in NESTED_PREFIXES},
            "vision_model.": "tower.",
            "mlp1.": "projector.",
        },
        tower_patterns=(
            *INTERN_TOWER,
            (r"^projector\.0\.", "projector.layer_norm."),
            (r"^projector\.1\.", "projector.linear_1."),
            (r"^projector\.3\.", "projector.linear_2."),
        ),
        ignored=tuple(prefix + "vision_tower.embeddings.mask_token" for prefix in NESTED_PREFIXES),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        vision = config.vision_config
        settings = {
            Modality.IMAGE: read_processor(checkpoint, "image_processor"),
            Modality.VIDEO: read_processor(checkpoint, "video_processor"),
        }
        self._tile: tuple[int, int] = tuple(vision.image_size)
        _check_sizes(settings, self._tile, where)
        library = find_library(checkpoint)
        processors = {Modality.IMAGE: "GotOcr2ImageProcessor", Modality.VIDEO: "InternVLVideoProcessor"}
        self._pixels = {
            modality: PixelSettings.read(given, where, processor=processors[modality], library=library)
            for modality, given in settings.items()
        }
        if self._pixels[Modality.IMAGE].statistics != self._pixels[Modality.VIDEO].statistics:
            raise CheckpointError(f"{where}: pictures and videos are normalized differently: not supported")
        self._min_tiles, self._max_tiles = _read_tile_counts(settings[Modality.IMAGE], where)
        self._adds_thumbnail: bool = settings[Modality.IMAGE].get("use_thumbnail", True)
        self._shuffle = int(1 / config.downsample_ratio)
        self._patch: tuple[int, int] = tuple(vision.patch_size)
        self._grid: tuple[int, int] = (self._tile[0] // self._patch[0], self._tile[1] // self._patch[1])
        if (
            config.vision_feature_select_strategy != "default"
            or not self._shuffle
            or any(n % self._shuffle for n in self._grid)
        ):
            raise CheckpointError(
                f"{where}: vision_feature_select_strategy={config.vision_feature_select_strategy!r} on a grid of "
                f"{self._grid} patches with downsample_ratio={config.downsample_ratio} is not supported"
            )
        self._start, self._end, context = (
            self.token_id(tokenizer.named_tokens.get(name, spelling)) for name, spelling in _TOKENS.items()
        )
        self._image_token: int = checkpoint.config.get("image_token_id", context)
        video_text = tokenizer.named_tokens.get("video_token", "<video>")
        self._markers = {Modality.IMAGE: self.token_text(self._image_token), Modality.VIDEO: video_text}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        pixels = {modality.value: settings.as_json() for modality, settings in self._pixels.items()}
        tiles = [self._min_tiles, self._max_tiles, self._adds_thumbnail]
        return {"pixels": pixels, "tile": self._tile, "tiles": tiles}

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        resize, tiles = self._pixels[modality].resize, Tiles(self._tile)
        thumbnail = (resize(self._tile), tiles)
        if modality is Modality.VIDEO or measures["resized"] == self._tile:
            return (thumbnail,)
        cut = (resize(measures["resized"]), tiles)
        return (cut, thumbnail) if self._adds_thumbnail else (cut,)

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        if modality is Modality.VIDEO:
            return options  # each frame is one tile
        if (min_tiles := options.get("min_dynamic_patch", 1)) > 1:
            message = f"min_dynamic_patch={min_tiles} is above the 1 tile that detail 'low' allows"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "min_dynamic_patch")
        return {**options, "max_dynamic_patch": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        if modality is Modality.VIDEO:
            return {"num_tiles": size.num_frames, "resized": self._tile}
        rows, columns = self._tile_grid(size, options)
        num_tiles = rows * columns + (self._adds_thumbnail and rows * columns > 1)
        return {"num_tiles": num_tiles, "resized": (rows * self._tile[0], columns * self._tile[1])}

    def _tile_grid(self, size: MediaSize, options: Mapping[str, int]) -> tuple[int, int]:
        """Return the (rows, columns) of tiles that a picture is cut into; a thumbnail follows several tiles."""
        max_tiles = options.get("max_dynamic_patch", self._max_tiles)
        min_tiles = options.get("min_dynamic_patch", min(self._min_tiles, max_tiles))
        if min_tiles > max_tiles:
            message = f"min_dynamic_patch={min_tiles} is above max_dynamic_patch={max_tiles}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "min_dynamic_patch")
        order: GridOrder = "columns" if self.checkpoint.image_processor is None else "set"
        own = (size.height, size.width)
        return tile_grid(own, self._tile, min_tiles=min_tiles, max_tiles=max_tiles, order=order)

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        num_rows = self._grid[0] * self._grid[1] // self._shuffle**2
        num_tiles = measures["num_tiles"]
        if modality is Modality.IMAGE:
            rows = [self._image_token] * (num_rows * num_tiles)
            return make_expansion(([self._start], False), (rows, True), ([self._end], False))
        pieces: list[tuple[list[int], bool]] = []
        for number in range(1, num_tiles + 1):
            label = [] if number == 1 else self.tokenizer.encode(f"\n{_name_frame(number)}")
            pieces += [
                ([*label, self._start], False),
                ([self._image_token] * num_rows, True),
                ([self._end], False),
            ]
        return make_expansion(*pieces)

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:
        """The name of a video's first frame is tokenized with the text before it."""
        if modality is Modality.IMAGE:
            return None
        return Wording(before=_name_frame(1), marker=self._markers[Modality.IMAGE], after="")

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._grid[0] * self._grid[1]

    def largest_size(self) -> tuple[int, int] | None:
        return self._tile[0], self._tile[1] * self._max_tiles

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.vit_layers import QKV, LayerConfig

        config = self.checkpoint.model_config
        vision, layer = config.vision_config, config.vision_feature_layer
        depth = vision.num_hidden_layers
        if not isinstance(layer, int) or not -depth - 1 <= layer <= depth:
            raise CheckpointError(
                f"{self.checkpoint.path}: vision_feature_layer={layer!r} is not one of {depth} layers"
            )
        is_joined = any(".attn.qkv." in name for name in self.checkpoint.tensor_names())
        layers = LayerConfig(
            hidden_size=vision.hidden_size,
            num_heads=vision.num_attention_heads,
            intermediate_size=vision.intermediate_size,
            activation=vision.hidden_act,
            norm_eps=vision.layer_norm_eps,
            qkv=("qkv",) if is_joined else QKV,
            has_qkv_bias=vision.attention_bias,
            uses_rms_norm=vision.norm_type == "rms_norm",
            qk_norm_eps=getattr(vision, "qk_norm_eps", _QK_NORM_EPS) if vision.use_qk_norm else None,
            has_scales=True,
        )
        tower = VitConfig(
            layers=layers,
            image_size=self._tile,
            patch_size=self._patch,
            feature_layers=(layer if layer >= 0 else layer + depth + 1,),
            has_class_token=True,
            has_positions=vision.use_absolute_position_embeddings,
            has_final_norm=layer == -1 and not vision.use_mean_pooling,
        )
        projector = ProjectorConfig(
            out_hidden_size=config.text_config.hidden_size,
            activation=config.projector_hidden_act,
            merge=self._shuffle,
            turns_grid=getattr(config, "ps_version", "v2") == "v1",
            norms_joined=True,
        )

        def used_name(name: str) -> str | None:
            parameter = self.weights.tower_name(name)
            if parameter is None or is_layer_above(parameter, "tower.blocks.", tower.num_layers):
                return None
            return parameter if tower.has_final_norm or not parameter.startswith("tower.norm.") else None

        normalizer = PixelNormalizer(**self._pixels[Modality.IMAGE].statistics)
        return load_encoder(self.checkpoint, used_name, tower, projector, normalizer, device=device, dtype=dtype)
