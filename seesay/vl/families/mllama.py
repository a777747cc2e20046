"""Llama 3.2 Vision: text attends to pictures, which are cut into tiles, beside itself (Meta 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality, RenderedPrompt
from seesay.values.frame_chain import Chain, Pad, Size, Tiles
from seesay.vl.bases.pixels import PixelSettings, count_patches, read_processor, read_square
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_BLACK = (0, 0, 0)
_LAYERS = ("language_model.model.layers.", "model.language_model.layers.")
"""How the names of the decoder's layers begin."""


class Mllama(Family):
    """Features: tiles, and the plan's measures, with `cut` (rows, columns) of tiles, `fitted`, the (height, width) of
    the picture on its canvas, `ratio`, the number of that shape from 1 on, and `num_rows` that text attends to."""

    architectures = ("MllamaForConditionalGeneration",)
    published = (
        Published(
            decoder="mllama_text_model",
            names=("meta-llama/Llama-3.2-11B-Vision-Instruct", "meta-llama/Llama-3.2-90B-Vision-Instruct"),
        ),
    )
    modalities = (Modality.IMAGE,)
    options = {Modality.IMAGE: ("max_dynamic_patch",)}
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            "vision_model.": "tower.",
            "model.vision_model.": "tower.",
            "multi_modal_projector.": "projector.",
            "model.multi_modal_projector.": "projector.",
        },
        tower_patterns=((r"\.self_attn\.o_proj\.", ".self_attn.proj."),),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        self._media_layers: tuple[int, ...] = tuple(checkpoint.text_config.cross_attention_layers)
        self.weights = _take_keys_and_values(type(self).weights, self._media_layers)
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="MllamaImageProcessor")
        vision = config.vision_config
        self._tile: Size = (vision.image_size, vision.image_size)
        self._max_tiles: int = vision.max_num_tiles
        self._shapes = _list_shapes(self._max_tiles)
        _check_tiles(settings, vision, self._tile, self._shapes, where)
        self._num_patches = count_patches(vision, where) ** 2
        self._image_token: int = config.image_token_index
        self._bos = "" if tokenizer.bos_token_id is None else self.token_text(tokenizer.bos_token_id)

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: self.token_text(self._image_token)}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "tile": self._tile, "tiles": self._max_tiles}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        return {**options, "max_dynamic_patch": 1}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        own, side = (size.height, size.width), self._tile[0]
        most = min(options.get("max_dynamic_patch", self._max_tiles), self._max_tiles)
        cut = _pick_canvas(own, [shape for shape in self._shapes if math.prod(shape) <= most], side)
        canvas = (cut[0] * side, cut[1] * side)
        num_tiles = math.prod(cut)
        return {
            "num_tiles": num_tiles,
            "num_rows": num_tiles * (self._num_patches + 1),
            "cut": cut,
            "ratio": self._shapes.index(cut) + 1,
            "resized": canvas,
            "fitted": _fit(own, canvas, side),
        }

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self._image_token], True))

    def complete(self, rendered: RenderedPrompt, *, is_open: bool = False) -> RenderedPrompt:
        """A prompt without BOS gets one, behind the pictures that it begins with."""
        if not self._bos or self._bos in _without(rendered.text, rendered.literals):
            return rendered
        at = 0
        for start, stop in rendered.markers:
            at = stop if start == at else at
        shift = len(self._bos)
        markers, literals = (
            tuple((start + shift, stop + shift) if start >= at else (start, stop) for start, stop in spans)
            for spans in (rendered.markers, rendered.literals)
        )
        text = f"{rendered.text[:at]}{self._bos}{rendered.text[at:]}"
        return replace(rendered, text=text, markers=markers, literals=literals, takes_prefix=False)

    def num_units(self, measures: Features) -> int:
        return self._max_tiles * self._num_patches

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        fitted, canvas = measures["fitted"], measures["resized"]
        padding = () if fitted == canvas else (Pad(canvas, (0, 0), _BLACK),)
        return ((self._pixels.resize(fitted), *padding, Tiles(self._tile)),)

    def largest_size(self) -> tuple[int, int] | None:
        return self._tile[0], self._tile[1] * self._max_tiles

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.tiled_vit import TiledEncoder, TiledVitConfig
        from seesay.encoders.towers.vit_layers import LayerConfig

        vision, text = self.checkpoint.model_config.vision_config, self.checkpoint.text_config
        config = TiledVitConfig(
            layers=LayerConfig(
                hidden_size=vision.hidden_size,
                num_heads=vision.attention_heads,
                intermediate_size=vision.intermediate_size,
                activation=vision.hidden_act,
                norm_eps=vision.norm_eps,
                has_qkv_bias=False,
                has_biases=False,
            ),
            image_size=self._tile,
            patch_size=(vision.patch_size, vision.patch_size),
            num_layers=vision.num_hidden_layers,
            num_global_layers=vision.num_global_layers,
            kept_layers=tuple(vision.intermediate_layers_indices),
            max_tiles=self._max_tiles,
            num_ratios=len(self._shapes),
            hidden_size=text.hidden_size,
            media_layers=self._media_layers,
            kv_heads=(text.num_key_value_heads, text.hidden_size // text.num_attention_heads),
            kv_eps=text.rms_norm_eps,
        )
        normalizer = PixelNormalizer(**self._pixels.statistics)
        return TiledEncoder(self.checkpoint, self.weights.tower_name, config, normalizer, device=device, dtype=dtype)


def _take_keys_and_values(weights: WeightMap, layers: tuple[int, ...]) -> WeightMap:
    """Return `weights` in which the tower has what makes keys and values in these layers of the decoder."""
    parts = ("k_proj", "v_proj", "k_norm")
    own = {
        f"{beginning}{index}.cross_attn.{part}.": f"kv.{index}.{part}."
        for beginning in _LAYERS
        for index in layers
        for part in parts
    }
    return replace(weights, tower={**weights.tower, **own})


def _check_tiles(settings: Mapping[str, Any], vision: Any, tile: Size, shapes: list[Size], where: object) -> None:
    """Raise `CheckpointError` naming what processor and tower do not have alike."""
    if "size" in settings and read_square(settings["size"], where, "size") != tile:
        raise CheckpointError(f"{where}: the processor's size {settings['size']} is not the tower's {tile}")
    if (most := settings.get("max_image_tiles", 4)) != vision.max_num_tiles:
        raise CheckpointError(
            f"{where}: processor setting max_image_tiles={str(most)[:40]} is not the tower's "
            f"max_num_tiles={vision.max_num_tiles}"
        )
    if (found := vision.supported_aspect_ratios) != [list(shape) for shape in shapes]:
        raise CheckpointError(
            f"{where}: vision_config.supported_aspect_ratios={str(found)[:80]} is not supported: they must be all "
            f"shapes of up to {vision.max_num_tiles} tiles"
        )


def _without(text: str, spans: tuple[tuple[int, int], ...]) -> str:
    """Return a text without these spans of it."""
    borders = [0, *(border for span in spans for border in span), len(text)]
    return "\0".join(text[start:stop] for start, stop in zip(borders[::2], borders[1::2], strict=True))


def _list_shapes(max_tiles: int) -> list[Size]:
    """Return all (rows, columns) of at most so many tiles, in the order of their learned positions."""
    counts = range(1, max_tiles + 1)
    return [(rows, columns) for rows in counts for columns in counts if rows * columns <= max_tiles]


def _pick_canvas(own: Size, shapes: list[Size], side: int) -> Size:
    """Return the shape, in tiles of `side` pixels, on which a picture is scaled up least, or else down least; of those,
    the smallest, and the first one."""
    scales = [min(rows * side / own[0], columns * side / own[1]) for rows, columns in shapes]
    best = min((scale for scale in scales if scale >= 1), default=max(scales))
    return min((shape for shape, scale in zip(shapes, scales, strict=True) if scale == best), key=math.prod)


def _fit(own: Size, canvas: Size, side: int) -> Size:
    """Return the (height, width) of a picture that touches its canvas from inside, or one side of a tile if it is
    smaller."""
    height, width = (min(max(length, side), full) for length, full in zip(own, canvas, strict=True))
    if width / own[1] < height / own[0]:
        return max(1, min(math.floor(own[0] * (width / own[1])), height)), width
    return height, max(1, min(math.floor(own[1] * (height / own[0])), width))
