"""PaliGemma (arXiv 2407.07726) and PaliGemma 2 (arXiv 2412.03555): pictures of one size, then a text; all tokens of a
prompt see each other, and the answer is causal (prefix-LM attention)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, MediaSize, Modality, RenderedPrompt
from seesay.values.frame_chain import Chain, Tiles
from seesay.vl.bases.pixels import PixelSettings, count_patches, read_processor, read_tile
from seesay.vl.bases.tower_names import CLIP_TOWER
from seesay.vl.family import Family, Features, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import NESTED_DECODER, NESTED_PREFIXES, WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder

_TOWERS = ("vision_tower.", "vision_tower.vision_model.")


class PaliGemma(Family):
    """Features: one tile, or frames; and the plan's measures.

    Positions are counted from 0, those of the published code from 1: rotary embeddings turn by differences alone.
    """

    architectures = ("PaliGemmaForConditionalGeneration",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(decoder="gemma", names=("google/paligemma-3b-mix-224", "google/paligemma-3b-mix-448")),
        Published(
            decoder="gemma2",
            names=("google/paligemma2-3b-mix-448", "google/paligemma2-10b-mix-448", "google/paligemma2-28b-pt-896"),
        ),
    )
    modalities: tuple[Modality, ...] = (Modality.IMAGE,)
    is_prefix_lm = True
    weights = WeightMap(
        decoder=NESTED_DECODER,
        tower={
            **{head + tower: "tower." for head in NESTED_PREFIXES for tower in _TOWERS},
            **{
                head + "multi_modal_projector.linear.": "connector.modality_projection.proj."
                for head in NESTED_PREFIXES
            },
        },
        tower_patterns=CLIP_TOWER,
        ignored=tuple(
            head + tower + name
            for head in NESTED_PREFIXES
            for tower in _TOWERS
            for name in ("embeddings.position_ids", "head.")
        ),
    )

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        config, where = checkpoint.model_config, checkpoint.path
        vision = config.vision_config
        if vision.model_type != "siglip_vision_model":
            raise CheckpointError(
                f"{where}: vision tower {vision.model_type!r} is not supported (siglip_vision_model is)"
            )
        if config.projection_dim != config.text_config.hidden_size:
            raise CheckpointError(
                f"{where}: projection_dim={config.projection_dim} must be the decoder's hidden_size, "
                f"{config.text_config.hidden_size}"
            )
        self._num_rows = count_patches(vision, where) ** 2
        settings = read_processor(checkpoint, "image_processor")
        self._pixels = PixelSettings.read(settings, where, processor="SiglipImageProcessor")
        self._tile = read_tile(settings, vision.image_size, where, default=vision.image_size)
        if (num_tokens := settings.get("image_seq_length", self._num_rows)) != self._num_rows:
            raise CheckpointError(
                f"{where}: image_seq_length={num_tokens} of the processor must be the tower's {self._num_rows} patches"
            )
        self._image_token: int = config.image_token_index
        if not 0 <= self._image_token < config.text_config.vocab_size:
            raise CheckpointError(
                f"{where}: image_token_index={self._image_token} is outside of the vocabulary "
                f"(0 to {config.text_config.vocab_size - 1})"
            )
        if tokenizer.bos_token_id is None:
            raise CheckpointError(
                f"{where}: the tokenizer has no BOS token, which stands behind the pictures of a prompt"
            )
        self._markers = {Modality.IMAGE: self.token_text(self._image_token)}
        self._bos = self.token_text(tokenizer.bos_token_id)

    @property
    def markers(self) -> Mapping[Modality, str]:
        return self._markers

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return {"pixels": self._pixels.as_json(), "tile": self._tile}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        return {"num_tiles": 1, "resized": self._tile}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return make_expansion(([self._image_token] * self._num_rows, True))

    def complete(self, rendered: RenderedPrompt, *, is_open: bool = False) -> RenderedPrompt:
        """BOS stands behind the last picture, or first in a text alone, and a line break ends the prompt."""
        at = max((stop for _, stop in rendered.markers), default=0)
        shift = len(self._bos)
        literals = [
            (start + shift, stop + shift) if start >= at else (start, stop) for start, stop in rendered.literals
        ]
        return replace(
            rendered,
            text=f"{rendered.text[:at]}{self._bos}{rendered.text[at:]}" + ("" if is_open else "\n"),
            literals=tuple(literals),
            takes_prefix=False,
        )

    def num_units(self, measures: Features) -> int:
        return self._num_rows

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        return ((self._pixels.resize(self._tile), Tiles(self._tile)),)

    def largest_size(self) -> tuple[int, int] | None:
        return self._tile

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        from seesay.encoders.towers.layers import PixelNormalizer
        from seesay.encoders.towers.projected_vit import ProjectorConfig, load_encoder
        from seesay.encoders.towers.vit import VitConfig

        vision = self.checkpoint.model_config.vision_config
        tower = VitConfig.of_clip(
            vision, has_class_token=False, feature_layers=(vision.num_hidden_layers,), has_final_norm=True
        )
        projector = ProjectorConfig(
            out_hidden_size=self.checkpoint.model_config.text_config.hidden_size, activation=None
        )
        normalizer = PixelNormalizer(**self._pixels.statistics)
        name_of = self.weights.tower_name
        return load_encoder(self.checkpoint, name_of, tower, projector, normalizer, device=device, dtype=dtype)
