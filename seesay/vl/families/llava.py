"""LLaVA-1.5 and LLaVA-Interleave: a CLIP or SigLIP tower on a square picture, two linear layers, a text decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.media.images import shortest_edge_size
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Tiles, crop_center, pad_to
from seesay.vl.bases.pixels import read_padding_color, read_square
from seesay.vl.bases.projected_tower import ProjectedTowerFamily, make_weights
from seesay.vl.family import Features, make_expansion
from seesay.vl.published import Published


class Llava(ProjectedTowerFamily):
    """Features: one tile of S² pixels, S being the tower's `image_size`, or frames; and the plan's measures."""

    architectures: ClassVar[tuple[str, ...]] = ("LlavaForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="llama", names=("llava-hf/llava-1.5-7b-hf", "llava-hf/llava-1.5-13b-hf")),
        Published(decoder="qwen2", names=("llava-hf/llava-interleave-qwen-7b-hf",)),
    )
    modalities = (Modality.IMAGE,)
    processor = "LlavaImageProcessor"
    weights = make_weights()

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        self._num_rows = self.grid_side**2 + (self.has_class_token and config.vision_feature_select_strategy == "full")
        self._color = read_padding_color(self.settings, where, processor=self.processor) if self._pads else None
        final = self.settings["crop_size"] if self._crops else self._size
        if read_square(final, where, "crop_size" if self._crops else "size") != (self.image_size, self.image_size):
            raise CheckpointError(
                f"{where}: the processor makes pictures of {final}, the tower takes {self.image_size}"
            )

    @property
    def _crops(self) -> bool:
        return bool(self.settings.get("do_center_crop", True)) and "crop_size" in self.settings

    @property
    def _pads(self) -> bool:
        return bool(self.settings.get("do_pad", False))

    @property
    def _size(self) -> Any:
        return self.settings.get("size", {"shortest_edge": self.image_size})

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        crop = self.settings["crop_size"] if self._crops else None
        return {"pixels": self.pixels.as_json(), "size": self._size, "crop": crop, "padding": self._color}

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        tile, found = (self.image_size, self.image_size), (size.height, size.width)
        padding: Chain = ()
        if self._color is not None:
            side = max(found)
            padding, found = pad_to(found, (side, side), self._color), (side, side)
        edge = self._size if isinstance(self._size, int) else self._size.get("shortest_edge")
        if edge is not None:
            target = shortest_edge_size(*found, edge)
        else:
            target = read_square(self._size, self.checkpoint.path, "size")
        cropping = crop_center(target, tile) if self._crops else ()
        return ((*padding, self.pixels.resize(target), *cropping, Tiles(tile)),)

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        return {"num_tiles": 1, "resized": (self.image_size, self.image_size)}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self.image_token] * self._num_rows, True))

    def num_units(self, measures: Features) -> int:
        return self.grid_side**2

    def largest_size(self) -> tuple[int, int] | None:
        return self.image_size, self.image_size
