"""Pixtral (arXiv 2410.07073) and Mistral 3 in their Transformers form: pictures at about their own size, in the prompt
line by line; Mistral 3 joins neighbouring patches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Patches
from seesay.vl.bases.pixels import PixelSettings, read_processor
from seesay.vl.constants import LOW_DETAIL_PIXELS
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, NESTED_PREFIXES, WeightMap, is_layer_above

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.packed_layout import PackedVisionConfig

_NORM_EPS = 1e-5
_LOW_DETAIL_SIDE = math.isqrt(LOW_DETAIL_PIXELS)


class Pixtral(Family):
    """Features: patches [P, 3·P·P] in merge-group order, or frames; and the plan's measures, with `grid` (1, h, w) in
    patches."""

    architectures = ("LlavaForConditionalGeneration/pixtral", "Mistral3ForConditionalGeneration")
    published = (
        Published(
            architecture="LlavaForConditionalGeneration/pixtral",
            decoder="mistral",
            names=("mistral-community/pixtral-12b",),
        ),
        Published(
            architecture="Mistral3ForConditionalGeneration",
            decoder="ministral3",
            names=("mistralai/Ministral-3-8B-Instruct-2512-BF16",),
        ),
        Published(
            architecture="Mistral3ForConditionalGeneration",
            decoder="mistral",
            names=(
                "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
                "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
            ),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: ("size",)}
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            **{prefix + "vision_tower.": "" for prefix in NESTED_PREFIXES},
            **{prefix + "vision_tower.patch_conv.": "patch_embed." for prefix in NESTED_PREFIXES},
            **{prefix + "vision_tower.ln_pre.": "patch_norm." for prefix in NESTED_PREFIXES},
            **{prefix + "vision_tower.transformer.layers.": "blocks." for prefix in NESTED_PREFIXES},
            **{prefix + "multi_modal_projector.": "merger." for prefix in NESTED_PREFIXES},
        },
        tower_patterns=(
            (r"\.attention_norm\.", ".norm1."),
            (r"\.ffn_norm\.", ".norm2."),
            (r"\.attention\.o_proj\.", ".attn.proj."),
            (r"\.attention\.", ".attn."),
            (r"\.feed_forward\.", ".mlp."),
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        vision = config.vision_config
        if vision.model_type != "pixtral" or type(vision.patch_size) is not int:
            raise CheckpointError(
                f"{where}: a {checkpoint.architecture} with a tower {vision.model_type!r} and patches of "
                f"{vision.patch_size} pixels is not supported"
            )
        self._num_layers = _count_layers(config, where)
        self._has_merger = hasattr(config, "spatial_merge_size")
        self._merge_size: int = config.spatial_merge_size if self._has_merger else 1
        self._patch_size: int = vision.patch_size
        self._settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(self._settings, where, processor="PixtralImageProcessor")
        if self._settings.get("do_center_crop"):
            raise CheckpointError(f"{where}: processor setting do_center_crop=true is not supported")
        self._limit = _read_limit(self._settings.get("size", {"longest_edge": 1024}), where)
        processor = checkpoint.read_json("processor_config.json") or {}
        self._image_token: int = config.image_token_index
        self._break = self.token_id(processor.get("image_break_token") or "[IMG_BREAK]")
        self._end = self.token_id(processor.get("image_end_token") or "[IMG_END]")
        for name, own, origin in (
            ("patch_size", self._patch_size, "config.json"),
            ("spatial_merge_size", self._merge_size, "config.json"),
            ("image_break_token_id", self._break, "the tokenizer"),
            ("image_end_token_id", self._end, "the tokenizer"),
        ):
            if (given := processor.get(name, own)) != own:
                raise CheckpointError(f"{where}: {name}={given} of processor_config.json is not {origin}'s {own}")
        self._markers = {Modality.IMAGE: self.token_text(self._image_token)}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "limit": self._limit, "patch": [self._patch_size, self._merge_size]}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "size": min(_LOW_DETAIL_SIDE, options.get("size", max(self._limit)))}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """A picture larger than its limit is shrunk to it; then both sides grow to whole merge groups."""
        limit = (options["size"], options["size"]) if "size" in options else self._limit
        ratio = max(size.height / limit[0], size.width / limit[1], 1)
        sides = [math.floor(side / ratio) if ratio > 1 else side for side in (size.height, size.width)]
        if not all(sides):
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"a picture of {size.width}x{size.height} pixels has a side of no pixel when it is shrunk to at most "
                f"{limit[1]}x{limit[0]}: crop or pad it",
            )
        unit = self._patch_size * self._merge_size
        height, width = (-(-side // unit) * unit for side in sides)
        grid = (1, height // self._patch_size, width // self._patch_size)
        return {"grid": grid, "num_tiles": 1, "resized": (height, width)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        lines, columns = (side // self._merge_size for side in measures["grid"][1:])
        line, last = ([self._image_token] * columns, True), ([self._end], False)
        return make_expansion(*[line, ([self._break], False)] * (lines - 1), line, last)

    def num_units(self, measures: Features) -> int:
        return math.prod(measures["grid"])

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        side, merge = self._patch_size, self._merge_size
        return ((self._pixels.resize(measures["resized"]), Patches((side, side), (merge, merge), 1)),)

    def largest_size(self) -> tuple[int, int] | None:
        return self._limit

    def _tower_config(self) -> PackedVisionConfig:
        from seesay.encoders.towers.packed_layout import PackedVisionConfig, ProjectorConfig

        config = self.checkpoint.model_config
        vision, text = config.vision_config, config.text_config
        rope = vision.rope_parameters
        if rope.get("rope_type", "axial") not in ("axial", "default"):
            raise CheckpointError(f"{self.checkpoint.path}: vision_config.rope_parameters {rope} are not supported")
        projector = ProjectorConfig(
            activation=config.projector_hidden_act,
            has_bias=config.multimodal_projector_bias,
            merge_norm_eps=text.rms_norm_eps if self._has_merger else None,
        )
        return PackedVisionConfig(
            depth=self._num_layers,
            hidden_size=vision.hidden_size,
            num_heads=vision.num_attention_heads,
            intermediate_size=vision.intermediate_size,
            out_hidden_size=text.hidden_size,
            patch_dim=vision.num_channels * self._patch_size**2,
            merge_size=self._merge_size,
            activation=vision.hidden_act,
            uses_rms_norm=True,
            rope_theta=rope["rope_theta"],
            norm_eps=_NORM_EPS,
            norms_patches=True,
            has_biases=False,
            splits_qkv=True,
            alternates_axes=True,
            projector=projector,
        )

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.packed_vit import PackedEncoder

        normalizer = PixelNormalizer(**self._pixels.statistics)
        return PackedEncoder.load(
            self._tower_config(), normalizer, self.checkpoint, self._used_tower_name, device=device, dtype=dtype
        )

    def _used_tower_name(self, name: str) -> str | None:
        """Return the tower's name of a tensor; None for layers above the one whose output is used."""
        parameter = self.weights.tower_name(name)
        if parameter is not None and is_layer_above(parameter, "blocks.", self._num_layers):
            return None
        return parameter


def _count_layers(config: Any, where: object) -> int:
    """Return how many layers of the tower are computed."""
    strategy = getattr(config, "vision_feature_select_strategy", "full")
    layer, depth = config.vision_feature_layer, config.vision_config.num_hidden_layers
    number = layer + depth + 1 if type(layer) is int and layer < 0 else layer
    if strategy != "full" or type(number) is not int or not 1 <= number <= depth:
        raise CheckpointError(
            f"{where}: vision_feature_select_strategy={strategy!r} of vision_feature_layer={layer!r} is not "
            f"supported: it must be 'full', of one of {depth} layers"
        )
    return number


def _read_limit(size: object, where: object) -> tuple[int, int]:
    """Return the largest (height, width) of a resized picture. Raises `CheckpointError` naming a setting without it."""
    if isinstance(size, Mapping):
        edge = size.get("longest_edge")
        height, width = (edge, edge) if edge else (size.get("height"), size.get("width"))
        if type(height) is int and type(width) is int and min(height, width) > 0:
            return height, width
    raise CheckpointError(f"{where}: processor setting size must give longest_edge, got {str(size)[:80]}")
