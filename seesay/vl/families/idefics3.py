"""Idefics3 and SmolVLM: pictures cut into tiles whose rows and columns are written before them, with the whole picture
behind them (arXiv 2408.12637, arXiv 2504.05299)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.media.tiles import fit_longest_edge, fit_tiles
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Resample, Resize, Tiles
from seesay.vl.bases.pixels import PixelSettings, check_num_rows, read_longest_edge, read_processor
from seesay.vl.bases.tower_names import CLIP_TOWER
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_PREFIXES, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

DEFAULT_EDGES = {"size": 4 * 364, "max_image_size": 364}
"""Longest edges of a picture and of a tile, where the processor's file leaves them out."""


@dataclass(frozen=True)
class TileWriter:
    """Writes the pieces of expansions: texts, and the tokens that take the rows of a tile.

    fake: the token around tiles. whole: the one before a whole picture or frame. rows: the tokens of a tile's rows."""

    encode: Callable[[str], Iterable[int]]
    fake: str
    whole: str
    rows: list[int]

    def write_whole(self, before: str) -> list[tuple[list[int], bool]]:
        """Return the pieces that stand for a whole picture or frame; `before` is text before it."""
        return self.write_tile(before + self.fake + self.whole)

    def write_tile(self, before: str) -> list[tuple[list[int], bool]]:
        return [(list(self.encode(before)), False), (self.rows, True)]

    def write_end(self) -> tuple[list[int], bool]:
        return list(self.encode(self.fake)), False


class Idefics3(Family):
    """Features: tiles, of which the last is the whole picture, or frames; and the plan's measures, with `cut` (rows,
    columns) of the other tiles, (0, 0) for none, and `fitted`, the (height, width) of the first resizing.

    processor: class of the image processor, for settings that its file leaves out."""

    architectures = ("Idefics3ForConditionalGeneration",)
    published = (
        Published(
            decoder="llama",
            names=(
                "HuggingFaceM4/Idefics3-8B-Llama3",
                "HuggingFaceTB/SmolVLM-Instruct",
                "HuggingFaceTB/SmolVLM-256M-Instruct",
            ),
        ),
    )
    modalities: tuple[Modality, ...] = (Modality.IMAGE,)
    switches = ("do_image_splitting",)
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {Modality.IMAGE: ("do_image_splitting", "size")}
    processor: ClassVar[str] = "Idefics3ImageProcessor"
    weights = WeightMap(
        decoder={"lm_head.": "lm_head.", **{prefix + "text_model.": "" for prefix in NESTED_PREFIXES}},
        tower={
            **{prefix + "vision_model.": "tower." for prefix in NESTED_PREFIXES},
            **{prefix + "connector.": "connector." for prefix in NESTED_PREFIXES},
        },
        tower_patterns=CLIP_TOWER,
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self.pixels = PixelSettings.read(settings, where, processor=self.processor)
        self.edge, self.side = (read_longest_edge(settings, where, name, edge) for name, edge in DEFAULT_EDGES.items())
        self.tile = (self.side, self.side)
        self._splits = bool(settings.get("do_image_splitting", True))
        self._grid_side: int = self.side // config.vision_config.patch_size
        if self._grid_side < 1 or self._grid_side % config.scale_factor:
            raise CheckpointError(
                f"{where}: scale_factor={config.scale_factor} does not divide the {self._grid_side} patches in the "
                f"side of a tile of max_image_size={self.side}"
            )
        num_rows = (self._grid_side // config.scale_factor) ** 2
        check_num_rows(checkpoint, "image_seq_len", num_rows)
        self.image_token: int = config.image_token_id
        self._markers = {Modality.IMAGE: self.token_text(self.image_token)}
        named = tokenizer.named_tokens
        fake = named.get("fake_image_token", "<fake_token_around_image>")
        self.token_id(fake)  # it separates what is written around tiles from all other text
        self.writer = TileWriter(
            encode=lru_cache(maxsize=4096)(lambda text: tuple(tokenizer.encode(text))),
            fake=fake,
            whole=named.get("global_image_token", "<global-img>"),
            rows=[self.image_token] * num_rows,
        )

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self.pixels.as_json(), "tile": self.side, "edge": self.edge, "splits": self._splits}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        if modality is Modality.VIDEO:
            return options  # each frame is one tile
        if options.get("do_image_splitting", False):
            message = "do_image_splitting=true cuts a picture into several tiles, of which detail 'low' allows one"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "do_image_splitting")
        return {**options, "do_image_splitting": False}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        fitted = fit_longest_edge((size.height, size.width), options.get("size", self.edge))
        resized = fit_tiles(fitted, self.side) if options.get("do_image_splitting", self._splits) else self.tile
        rows, columns = resized[0] // self.side, resized[1] // self.side
        is_cut = rows * columns > 1
        return {
            "num_tiles": rows * columns + is_cut,
            "cut": (rows, columns) if is_cut else (0, 0),
            "fitted": fitted,
            "resized": resized,
        }

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        writer, (rows, columns) = self.writer, measures["cut"]
        pieces = []
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                begin = "\n" if row > 1 and column == 1 else ""
                pieces += writer.write_tile(f"{begin}{writer.fake}<row_{row}_col_{column}>")
        pieces += writer.write_whole("\n\n" if rows else "")
        return make_expansion(*pieces, writer.write_end())

    def num_units(self, measures: Features) -> int:
        return int(measures["num_tiles"]) * self._grid_side**2

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        """Resizes three times, as published: to `fitted`, to `resized`, and from there to one tile."""
        resample, tiles = self.resample_of(modality), Tiles(self.tile)
        sizes = (measures["fitted"], measures["resized"])
        fitting = tuple(Resize(each, resample) for each in sizes)
        if measures["cut"] == (0, 0):
            return ((*fitting, tiles),)
        return ((*fitting, tiles, Resize(self.tile, resample), tiles),)

    def resample_of(self, modality: Modality) -> Resample:
        """Return the filter for media of this kind."""
        return self.pixels.resample

    def largest_size(self) -> tuple[int, int] | None:
        return fit_longest_edge((1, 1), self.edge)

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder
        from seesay.encoders.towers.vit import VitConfig

        config = self.checkpoint.model_config
        vision = config.vision_config
        tower = VitConfig.of_clip(
            vision,
            has_class_token=False,
            image_size=self.tile,
            feature_layers=(vision.num_hidden_layers,),
            position_side=vision.image_size // vision.patch_size,
            has_final_norm=True,
        )
        projector = ProjectorConfig(
            out_hidden_size=config.text_config.hidden_size,
            activation=None,
            has_bias=False,
            merge=config.scale_factor,
        )
        normalizer, name_of = PixelNormalizer(**self.pixels.statistics), self.weights.tower_name
        return load_encoder(self.checkpoint, name_of, tower, projector, normalizer, device=device, dtype=dtype)
