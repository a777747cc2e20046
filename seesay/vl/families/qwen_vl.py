"""Qwen-VL: a picture of any shape is scaled to a square and becomes 256 rows; pictures are numbered in the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles
from seesay.vl.bases.pixels import PixelSettings, read_processor
from seesay.vl.bases.tower_names import OPEN_CLIP_TOWER
from seesay.vl.family import NUMBER, Family, Features, Wording, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import QWEN_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_POSITION_SIDE = 16
"""Side of the square of positions that the published tower has for pictures of any size."""
_START, _END, _PLACE = "<img>", "</img>", "<imgpad>"


class QwenVL(Family):
    """Configuration, tokenizer, processor and model are code beside the weights; none of it is run. In its prompts, the
    path of a picture stands where the rows come.

    Features: a tile [1, S, S, 3] of the scaled picture, S being the tower's `image_size`, or frames; the plan's
    measures.
    """

    architectures = ("QWenLMHeadModel/clip_vision_model",)
    published = (Published(decoder="qwen2", names=("Qwen/Qwen-VL-Chat", "Qwen/Qwen-VL-Chat-Int4", "Qwen/Qwen-VL")),)
    modalities = (Modality.IMAGE,)
    weights = WeightMap(
        decoder={"transformer.": "", "lm_head.": "lm_head."},
        decoder_patterns=QWEN_DECODER,
        tower={
            "transformer.visual.": "tower.",
            "transformer.visual.attn_pool.": "resampler.",
            "transformer.visual.attn_pool.pos_embed": "pos_embed",
            **{f"transformer.visual.{name}": f"resampler.{name}" for name in ("ln_post.", "proj")},
        },
        tower_patterns=OPEN_CLIP_TOWER,
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        where, settings = checkpoint.path, read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="QwenVLImageProcessor", library="pillow")
        config = checkpoint.model_config
        self._side: int = config.vision_config.image_size
        self._grid_side: int = self._side // config.vision_config.patch_size
        self._num_queries: int = config.num_queries
        self._ids = tuple(map(self.token_id, (_START, _END, _PLACE)))
        first = checkpoint.config["visual"].get("image_start_id")
        if self._ids != (first, self._ids[0] + 1, self._ids[0] + 2):
            raise CheckpointError(
                f"{where}: visual.image_start_id={str(first)[:40]}: the tokenizer has {_START}, {_END} and {_PLACE} at "
                f"{self._ids}, not there and behind it"
            )

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: _START + _END}

    @property
    def spellings(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: rf"(?:Picture \d{{1,4}}: ?)?{_START}{_END}\n?"}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "side": self._side}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        return {"num_tiles": 1, "resized": (self._side, self._side)}

    def word(self, modality: Modality, measures: Features | None) -> Wording:
        return Wording(before=f"Picture {NUMBER}: ", marker=_START + _END, after="\n")

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        start, end, place = self._ids
        return make_expansion(([start], False), ([place] * self._num_queries, True), ([end], False))

    def num_units(self, measures: Features) -> int:
        return self._grid_side**2

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return ((self._pixels.resize((self._side, self._side)), Tiles((self._side, self._side))),)

    def largest_size(self) -> tuple[int, int]:
        return self._side, self._side

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        import torch

        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.resampled_vit import ResampledVit, make_encoder
        from seesay.encoders.towers.resampler import ResamplerConfig
        from seesay.encoders.towers.vit import VitConfig
        from seesay.encoders.towers.vit_layers import LayerConfig
        from seesay.encoders.towers.weights import load_tower

        config = self.checkpoint.model_config
        vision = config.vision_config
        layers = LayerConfig(
            hidden_size=vision.hidden_size,
            num_heads=vision.num_attention_heads,
            intermediate_size=vision.intermediate_size,
            activation=vision.hidden_act,
            norm_eps=vision.layer_norm_eps,
            qkv=("in_proj",),
            groups_heads=True,
        )
        tower = VitConfig.of_clip(
            vision,
            has_class_token=False,
            layers=layers,
            has_patch_bias=False,
            has_input_norm=True,
            feature_layers=(vision.num_hidden_layers,),
            position_side=_POSITION_SIDE,
            stretches_positions=True,
        )
        sizes = ResamplerConfig(
            tower=tower,
            num_queries=self._num_queries,
            num_heads=config.num_query_heads,
            out_hidden_size=config.text_config.hidden_size,
        )
        with torch.device("meta"):
            model = ResampledVit(sizes)
        weights = load_tower(model, self.checkpoint, self.weights.tower_name, device=device, dtype=dtype)
        return make_encoder(model, PixelNormalizer(**self._pixels.statistics), weights)
