"""FastVLM: a convolutional tower of timm on a square picture, two linear layers, a text decoder (arXiv 2412.13303)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.errors import CheckpointError
from seesay.vl.bases.pixels import read_square
from seesay.vl.bases.timm_tower import TimmRows, TimmTower, load_encoder
from seesay.vl.families.llava import Llava
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder


class FastVlm(Llava):
    """Features: those of `Llava`. A row of the tower stands for a square of the processor's `patch_size`."""

    architectures = ("FastVlmForConditionalGeneration",)
    published = (
        Published(
            decoder="qwen2", names=("KamilaMila/FastVLM-0.5B", "KamilaMila/FastVLM-1.5B", "KamilaMila/FastVLM-7B")
        ),
    )
    takes_timm_models = True
    strategies = ("full",)
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={"model.vision_tower.timm_model.": "tower.", "model.multi_modal_projector.": "projector."},
    )

    def read_tower(self) -> tuple[bool, int, int]:
        where = self.checkpoint.path
        self._tower = TimmTower.read(self.checkpoint)
        height, width = read_square(self.settings.get("crop_size", 1024), where, "crop_size")
        side = (self.checkpoint.read_json("processor_config.json") or {}).get("patch_size", 64)
        if type(side) is not int or side < 1 or height != width or height % side:
            raise CheckpointError(
                f"{where}: patch_size={str(side)[:40]} of processor_config.json must divide pictures of "
                f"{height}x{width} pixels, which must be square"
            )
        self._tower.check_size((height, width))
        return False, height, height // side

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.projected_vit import ProjectorConfig

        config = self.checkpoint.model_config
        rows = TimmRows(
            image_size=(self.image_size, self.image_size),
            grid=(self.grid_side, self.grid_side),
            size=config.vision_config.hidden_size,
            has_class_token=False,
        )
        projector = ProjectorConfig(
            out_hidden_size=config.text_config.hidden_size,
            activation=config.projector_hidden_act,
            has_bias=config.multimodal_projector_bias,
        )
        names = self.weights.tower_name
        return load_encoder(
            self._tower, rows, projector, self.pixels, self.checkpoint, names, device=device, dtype=dtype
        )
