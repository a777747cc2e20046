"""Mini-Gemini (arXiv 2403.18814): a CLIP whose rows look for details in what a ConvNeXt makes of a larger picture."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, Modality
from seesay.vl.bases.tower_names import CLIP_TOWER, TWO_LAYERS
from seesay.vl.families.llava import Llava
from seesay.vl.family import Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import BARE_DECODER, MIXTRAL_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.convnext import ConvNeXtConfig

_TOWER = "model.vision_tower.vision_tower.vision_model."
_DETAILS = "model.vision_tower_aux.vision_"
_GAMMA = re.compile(rf"{re.escape(_DETAILS)}stages\.(\d+)\.blocks\.\d+\.gamma")
_STEM_SIDE = 4
_MAX_GRID = 4


class MiniGemini(Llava):
    """Pictures are made in the size of the second tower; the first one sees them scaled down, as one tile or, in HD, as
    several and as a whole before these. Features: as LLaVA's."""

    architectures: ClassVar[tuple[str, ...]] = ("MGMLlamaForCausalLM", "MGMGemmaForCausalLM", "MGMMixtralForCausalLM")
    published = (
        Published(
            decoder="llama",
            names=("YanweiLi/MGM-7B", "YanweiLi/MGM-13B", "YanweiLi/MGM-7B-HD", "YanweiLi/MGM-13B-HD"),
            architecture="MGMLlamaForCausalLM",
        ),
        Published(decoder="gemma", names=("YanweiLi/MGM-2B",), architecture="MGMGemmaForCausalLM"),
        Published(
            decoder="mixtral",
            names=("YanweiLi/MGM-8x7B", "YanweiLi/MGM-8x7B-HD"),
            architecture="MGMMixtralForCausalLM",
        ),
    )
    strategies = ("default",)
    weights = WeightMap(
        decoder={**{f"model.{name}": name for name in BARE_DECODER}, "lm_head.": "lm_head."},
        tower={
            _TOWER: "tower.",
            f"{_DETAILS}stem.": "details.stem.",
            f"{_DETAILS}stages.": "details.stages.",
            "model.vlm_uni_query_projector.": "mining.query.",
            "model.vlm_uni_aux_projector.": "mining.key.",
            "model.vlm_uni_val_projector.": "mining.value.",
            "model.mm_projector.": "projector.",
        },
        decoder_patterns=MIXTRAL_DECODER,
        tower_patterns=(*CLIP_TOWER, *TWO_LAYERS),
        ignored=tuple(_TOWER + name for name in ("post_layernorm.", "embeddings.position_ids")),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self._num_views = self._tiles**2 + self._has_whole

    def read_tower(self) -> tuple[bool, int, int]:
        """The side of pictures is that of the second tower's."""
        has_class_token, _, grid_side = super().read_tower()
        config, where = self.checkpoint.model_config, self.checkpoint.path
        tiles, self._has_whole = config.image_grid, bool(config.image_global)
        if type(tiles) is not int or not self._has_whole < tiles <= _MAX_GRID:
            raise CheckpointError(
                f"{where}: image_grid must be an integer in [1, {_MAX_GRID}], above 1 with image_global, got "
                f"{str(tiles)[:40]!r}"
            )
        self._tiles: int = tiles
        side, unit = config.image_size_aux, _STEM_SIDE * grid_side * self._tiles
        if type(side) is not int or side < unit or side % unit:
            raise CheckpointError(f"{where}: image_size_aux must be a multiple of {unit}, got {str(side)[:40]!r}")
        return has_class_token, side, grid_side

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {**super().preprocessing, "views": [self._tiles, self._has_whole]}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self.image_token] * (self._num_views * self.grid_side**2), True))

    def num_units(self, measures: Features) -> int:
        return self._num_views * self.grid_side**2 + (self.image_size // _STEM_SIDE) ** 2

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        import torch as torch_module

        from seesay.encoders.towers.detailed_vit import DetailConfig, DetailedVit
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.tiles import TileEncoder
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.weights import load_tower

        config = self.checkpoint.model_config
        vision, hidden_size = config.vision_config, config.text_config.hidden_size
        tower = VitConfig.of_clip(vision, has_class_token=True, feature_layers=self._feature_layers)
        detail = DetailConfig(
            tower=tower,
            details=self._read_details(),
            side=self.image_size,
            tiles=self._tiles,
            has_whole=self._has_whole,
            out_hidden_size=hidden_size,
            row_scale=hidden_size**0.5 if config.scales_rows else 1.0,
        )
        with torch_module.device("meta"):
            model = DetailedVit(detail)
        weights = load_tower(model, self.checkpoint, self._used_tower_name, device=device, dtype=dtype)
        return TileEncoder(
            model,
            PixelNormalizer(**self.pixels.statistics),
            tile_size=(self.image_size, self.image_size),
            patch_size=(_STEM_SIDE, _STEM_SIDE),
            hidden_size=hidden_size,
            weights=weights,
        )

    def _read_details(self) -> ConvNeXtConfig:
        """Return the sizes of the second tower, which are those of its tensors."""
        from seesay.encoders.towers.convnext import ConvNeXtConfig

        found = [(int(match[1]), name) for name in self.checkpoint.tensor_names() if (match := _GAMMA.fullmatch(name))]
        depths = Counter(stage for stage, _ in found)
        tower = self.checkpoint.model_config.mm_vision_tower_aux
        if not found or sorted(depths) != list(range(len(depths))):
            raise CheckpointError(
                f"{self.checkpoint.path}: the folder has no weights of its second tower, which is "
                f"mm_vision_tower_aux={tower[:80]!r}"
            )
        sizes = {stage: math.prod(self.checkpoint.stored[name].shape) for stage, name in found}
        return ConvNeXtConfig(
            depths=tuple(depths[stage] for stage in sorted(depths)),
            sizes=tuple(sizes[stage] for stage in sorted(sizes)),
            norm_eps=1e-5 if "xxlarge" in tower else 1e-6,
        )
