"""PerceptionLM: the whole picture, then tiles of it, each seen by a Perception Encoder; videos frame by frame (arXiv
2504.13180, section 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.tiles import fit_canvas
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles
from seesay.vl.bases.pixels import PixelSettings, read_count, read_processor, read_square
from seesay.vl.bases.timm_tower import TimmRows, TimmTower, load_encoder
from seesay.vl.family import MAX_TILES, Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_MAX_SIDE = 1 << 13


class PerceptionLM(Family):
    """Features: tiles [T, S, S, 3], or frames; and the plan's measures, with `cut`, the (rows, columns) of the tiles
    behind the whole picture, (0, 0) without any. The tiles of a video are its frames."""

    architectures = ("PerceptionLMForConditionalGeneration",)
    published = (
        Published(
            decoder="llama",
            names=("facebook/Perception-LM-1B", "facebook/Perception-LM-3B", "facebook/Perception-LM-8B"),
        ),
    )
    takes_timm_models = True
    modalities = (Modality.IMAGE, Modality.VIDEO)
    options = {Modality.IMAGE: ("max_dynamic_patch",)}
    default_sampling = {"num_frames": 32}
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={"model.vision_tower.timm_model.": "tower.", "model.multi_modal_projector.": "projector."},
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="PerceptionLMImageProcessor")
        self._side = read_count(settings, "tile_size", 448, most=_MAX_SIDE, where=where)
        self._max_tiles = read_count(settings, "max_num_tiles", 36, most=MAX_TILES, where=where)
        kind = settings.get("vision_input_type", "thumb+tile")
        if kind not in ("thumb+tile", "vanilla"):
            raise CheckpointError(
                f"{where}: vision_input_type must be 'thumb+tile' or 'vanilla', got {str(kind)[:40]!r}"
            )
        self._cuts = kind == "thumb+tile"
        self._tile = (self._side, self._side)
        video = read_processor(checkpoint, "video_processor")
        self._video_pixels = PixelSettings.read(video, where, processor="PerceptionLMVideoProcessor")
        if self._video_pixels.statistics != self._pixels.statistics:
            raise CheckpointError(f"{where}: pictures and videos are normalized differently: not supported")
        if read_square(video.get("size", self._side), where, "size") != self._tile:
            raise CheckpointError(f"{where}: the video processor's size {video['size']} is not the tile's {self._tile}")
        processor = checkpoint.read_json("processor_config.json") or {}
        self._pool = read_count(processor, "pooling_ratio", config.projector_pooling_ratio, most=64, where=where)
        patch = read_count(processor, "patch_size", 14, most=_MAX_SIDE, where=where)
        if self._pool != config.projector_pooling_ratio:
            raise CheckpointError(
                f"{where}: pooling_ratio={self._pool} of processor_config.json is not config.json's "
                f"projector_pooling_ratio={config.projector_pooling_ratio}"
            )
        self._grid_side = self._side // patch
        self._num_rows = (self._grid_side // self._pool) ** 2
        if self._side % patch or not self._num_rows:
            raise CheckpointError(
                f"{where}: tiles of {self._side} pixels are not made of squares of {self._pool} patches of {patch}"
            )
        self._tower = TimmTower.read(checkpoint)
        self._tower.check_size(self._tile)
        if "embed_dim" not in self._tower.args:
            raise CheckpointError(f"{where}: vision_config.model_args has no embed_dim, the size of the tower's rows")
        self._tokens = {Modality.IMAGE: config.image_token_id, Modality.VIDEO: config.video_token_id}
        self._markers = {modality: self.token_text(token) for modality, token in self._tokens.items()}

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {
            "pixels": self._pixels.as_json(),
            "video": self._video_pixels.as_json(),
            "tiles": [self._side, self._max_tiles, self._cuts],
        }

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return options if modality is Modality.VIDEO else {**options, "max_dynamic_patch": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """With `max_dynamic_patch` a picture is cut into at most so many tiles; 1 leaves the whole picture alone."""
        if modality is Modality.VIDEO:
            return {"num_tiles": size.num_frames, "resized": self._tile, "cut": (0, 0)}
        if not self._cuts or options.get("max_dynamic_patch") == 1:
            return {"num_tiles": 1, "resized": self._tile, "cut": (0, 0)}
        max_tiles = options.get("max_dynamic_patch", self._max_tiles)
        rows, columns = fit_canvas((size.height, size.width), self._side, max_tiles)
        resized = (rows * self._side, columns * self._side)
        return {"num_tiles": 1 + rows * columns, "resized": resized, "cut": (rows, columns)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self._tokens[modality]] * (self._num_rows * measures["num_tiles"]), True))

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._grid_side**2

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        resize = (self._video_pixels if modality is Modality.VIDEO else self._pixels).resize
        whole = (resize(self._tile), Tiles(self._tile))
        if measures["cut"] == (0, 0):
            return (whole,)
        return whole, (resize(measures["resized"]), Tiles(self._tile))

    def largest_size(self) -> tuple[int, int] | None:
        return (self._side, self._side * self._max_tiles) if self._cuts else self._tile

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.projected_vit import ProjectorConfig

        config = self.checkpoint.model_config
        rows = TimmRows(
            image_size=self._tile,
            grid=(self._grid_side, self._grid_side),
            size=self._tower.args["embed_dim"],
            has_class_token=config.vision_use_cls_token,
        )
        projector = ProjectorConfig(out_hidden_size=config.text_config.hidden_size, pool=self._pool)
        names = self.weights.tower_name
        return load_encoder(
            self._tower, rows, projector, self._pixels, self.checkpoint, names, device=device, dtype=dtype
        )
