"""The family: what config.json means, what pictures become, and where the weights go.

seesay finds this module by the entry point in pyproject.toml, at each start: it imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint, ConvertedConfig
from seesay.errors import CheckpointError
from seesay.llm.models.decoder_kind import DecoderKind
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain, Resize, Tiles
from seesay.vl.bases.pixels import PixelSettings, read_processor
from seesay.vl.family import Backbone, Family, Features, make_expansion
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

IMAGE_TOKEN = "<image>"
MOST = 4096


class MyModel(Family):
    """A picture becomes 1 to `max_tiles` squares beside each other, as many as it is wide for its height."""

    architectures = ("MyModelForConditionalGeneration",)
    modalities = (Modality.IMAGE,)
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {Modality.IMAGE: ("max_dynamic_patch",)}
    weights = WeightMap(decoder={"model.": "", "lm_head.": "lm_head."}, tower={"vision.": ""})

    @classmethod
    def read_config(cls, config: Mapping[str, Any]) -> ConvertedConfig:
        """Transformers has no class of this configuration: the decoder's part is read as a Llama's."""
        text = config.get("text_config")
        if not isinstance(text, Mapping):
            raise CheckpointError(f"text_config must be an object, got {str(text)[:40]!r}")
        return ConvertedConfig(config={**text, "model_type": "llama"})

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self.image_token = self.token_id(IMAGE_TOKEN)
        self.image_size, self.patch_size = self._read("image_size"), self._read("patch_size")
        if self.image_size % self.patch_size:
            raise CheckpointError(
                f"{checkpoint.path}: image_size={self.image_size} is not a multiple of patch_size={self.patch_size}"
            )
        self.max_tiles = self._read("max_tiles")
        self._tower = (self.image_size, self.patch_size, self._read("hidden_size"), self._read("num_layers"))
        self._num_rows = (self.image_size // self.patch_size) ** 2
        settings = read_processor(checkpoint, "image_processor")
        self.pixels = PixelSettings.read(settings, checkpoint.path, processor="SiglipImageProcessor")

    def _read(self, name: str) -> int:
        """Return a number of vision_config, which nobody else has checked."""
        vision = self.checkpoint.config.get("vision_config")
        value = vision.get(name) if isinstance(vision, Mapping) else None
        if type(value) is not int or not 1 <= value <= MOST:
            raise CheckpointError(
                f"{self.checkpoint.path}: vision_config.{name} must be an integer from 1 to {MOST}, got "
                f"{str(value)[:40]!r}"
            )
        return value

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: IMAGE_TOKEN}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        sizes = (self.image_size, self.patch_size, self.max_tiles)
        return {"pixels": self.pixels.as_json(), "sizes": sizes}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:  # noqa: ARG002
        most = min(self.max_tiles, options.get("max_dynamic_patch", self.max_tiles))
        num_tiles = max(1, min(most, round(size.width / size.height)))
        return {"num_tiles": num_tiles, "resized": (self.image_size, num_tiles * self.image_size)}

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:  # noqa: ARG002
        return {**options, "max_dynamic_patch": 1}

    def expand(self, modality: Modality, measures: Features) -> Expansion:  # noqa: ARG002
        return make_expansion(([self.image_token] * (measures["num_tiles"] * self._num_rows), True))

    def num_units(self, measures: Features) -> int:
        num_tiles: int = measures["num_tiles"]
        return num_tiles * self._num_rows

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:  # noqa: ARG002
        return ((Resize(measures["resized"], self.pixels.resample), Tiles((self.image_size, self.image_size))),)

    def largest_size(self) -> tuple[int, int]:
        return self.image_size, self.max_tiles * self.image_size

    def backbone(self) -> Backbone:
        """A Llama whose norms come behind attention and feed-forward, and whose queries and keys are normed."""
        return replace(super().backbone(), kind=DecoderKind(norms="behind", qk_norm="whole"))

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from my_family.tower import load_encoder

        return load_encoder(
            self.checkpoint,
            self.weights.tower_name,
            sizes=self._tower,
            out_size=self.checkpoint.text_config.hidden_size,
            statistics=self.pixels.statistics,
            device=device,
            dtype=dtype,
        )
