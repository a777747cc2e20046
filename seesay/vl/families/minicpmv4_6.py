"""MiniCPM-V 4.6: a picture as a whole and in slices, whose patches become a sixteenth as many rows inside of the tower
and behind it; the decoder is a Qwen3.5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, Modality
from seesay.vl.bases.pixels import PixelSettings, read_count, read_processor
from seesay.vl.bases.sliced import SlicedFamily
from seesay.vl.bases.tower_names import CLIP_TOWER
from seesay.vl.family import MAX_TILES, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, QWEN_MOE_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_TOKENS = {
    "image_start": "<image>",
    "image_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "image_id_start": "<image_id>",
    "image_id_end": "</image_id>",
}
_MODES = {"16x": True, "4x": False}
"""Whether the tower merges inside."""


class MiniCPMV46(SlicedFamily):
    """Pictures as in `SlicedFamily`; the frames of a video are pictures."""

    architectures: ClassVar[tuple[str, ...]] = ("MiniCPMV4_6ForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (Published(decoder="qwen3_5_text", names=("openbmb/MiniCPM-V-4.6",)),)
    modalities = (Modality.IMAGE,)
    weights = WeightMap(
        decoder=NESTED_DECODER,
        decoder_patterns=QWEN_MOE_DECODER,
        tower={
            f"{outer}{name}": new
            for outer in ("", "model.")
            for name, new in (("vision_tower.", "tower."), ("merger.mlp.0.", "merger."))
        },
        tower_patterns=(
            (r"^tower\.vit_merger\.((?:pre_norm|linear_\d)\.)", r"tower.vit_merger.mlp.\1"),
            *CLIP_TOWER,
            (r"^tower\.", ""),
        ),
        ignored=("mtp.",),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self.pixels = PixelSettings.read(settings, where, processor="MiniCPMV4_6ImageProcessor")
        self.side = read_count(settings, "scale_resolution", 448, most=1 << 14, where=where)
        self.max_slices = read_count(settings, "max_slice_nums", 9, most=MAX_TILES, where=where)
        self.patch = config.vision_config.patch_size
        self.uses_id = bool(settings.get("use_image_id", True))
        if not settings.get("slice_mode", True):
            self.max_slices = 1
        mode = config.downsample_mode
        for name, value, default in (("patch_size", self.patch, 14), ("downsample_mode", mode, "16x")):
            if (found := settings.get(name, default)) != value:
                raise CheckpointError(f"{where}: processor setting {name} must be {value!r}, got {found!r}")
        self._merges_inside = _find_mode(checkpoint)
        self.merge = 4 if self._merges_inside else 2
        named = tokenizer.named_tokens
        spell = {name: named.get(f"{name}_token", usual) for name, usual in _TOKENS.items()}
        self.tags = spell["image_id_start"], spell["image_id_end"]
        self._ids = {name: self.token_id(text) for name, text in spell.items()}
        self._image_token: int = config.image_token_id
        self._markers = {Modality.IMAGE: self.token_text(self._image_token)}
        self._line_break = tokenizer.encode(f"{spell['slice_end']}\n{spell['slice_start']}")[1:-1]

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        rows, columns = measures["cut"]
        whole, *slices = measures["grids"]
        number = [(self.spell_number(0), False)] if measures["has_number"] else []
        pieces = [*number, *self._tag_rows("image", whole)]
        for row in range(rows):
            pieces += [(self._line_break, False)] if row else []
            for column in range(columns):
                pieces += self._tag_rows("slice", slices[row * columns + column])
        return make_expansion(*pieces)

    def _tag_rows(self, tag: str, grid: tuple[int, int]) -> list[tuple[list[int], bool]]:
        rows = [self._image_token] * (math.prod(grid) // self.merge**2)
        return [([self._ids[f"{tag}_start"]], False), (rows, True), ([self._ids[f"{tag}_end"]], False)]

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        import torch

        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.merging_vit import MergingConfig, MergingEncoder, MergingTower
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.weights import load_tower

        config = self.checkpoint.model_config
        vision = config.vision_config
        layers = (vision.num_hidden_layers,)
        sizes = MergingConfig(
            tower=VitConfig.of_clip(vision, has_class_token=False, feature_layers=layers, has_final_norm=True),
            out_hidden_size=config.text_config.hidden_size,
            merged_layer=config.insert_layer_id if self._merges_inside else None,
        )
        with torch.device("meta"):
            tower = MergingTower(sizes)
        weights = load_tower(tower, self.checkpoint, self._name_used, device=device, dtype=dtype)
        return MergingEncoder(tower, PixelNormalizer(**self.pixels.statistics), weights)

    def _name_used(self, name: str) -> str | None:
        parameter = self.weights.tower_name(name)
        is_left = not self._merges_inside and parameter is not None and parameter.startswith("vit_merger.")
        return None if is_left else parameter


def _find_mode(checkpoint: Checkpoint) -> bool:
    """Return whether the tower merges windows inside. Raises `CheckpointError` naming what the tower cannot do."""
    config, where = checkpoint.model_config, checkpoint.path
    mode, layers = config.downsample_mode, config.vision_config.num_hidden_layers
    squares = {
        "merge_kernel_size": config.merge_kernel_size,
        "window_kernel_size": config.vision_config.window_kernel_size,
    }
    for name, size in squares.items():
        if list(size) != [2, 2]:
            raise CheckpointError(f"{where}: config.json: {name} must be [2, 2], got {size!r}")
    if config.merger_times != 1:
        raise CheckpointError(f"{where}: config.json: merger_times must be 1, got {config.merger_times!r}")
    if mode not in _MODES:
        raise CheckpointError(f"{where}: config.json: downsample_mode must be one of {sorted(_MODES)}, got {mode!r}")
    if _MODES[mode] and not 0 <= config.insert_layer_id < layers:
        message = f"insert_layer_id={config.insert_layer_id} is none of the tower's {layers} layers"
        raise CheckpointError(f"{where}: config.json: {message}")
    return _MODES[mode]
