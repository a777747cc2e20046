"""Vision-language models of Transformers that no family here describes: their own processor, tower and decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaSize, Modality
from seesay.values.frame_chain import Chain
from seesay.vl.family import Backbone, Features, MediaPlan
from seesay.vl.modules.module_family import ModuleTextFamily
from seesay.vl.modules.module_processor import FILES, ModuleProcessor

if TYPE_CHECKING:
    import torch

    from seesay.encoders.towers.module_tower import ModuleTower
    from seesay.llm.models.module_decoder import ModuleDecoder
    from seesay.llm.models.module_model import ModuleModel

_NO_PICTURES = "cannot take pictures here"
_SIZES = ((336, 336), (512, 512), (1024, 1024), (512, 2048), (2048, 512), (2048, 2048), (4096, 4096))
"""(height, width) of pictures of which the one with most patches is the costliest."""


class ModuleVisionFamily(ModuleTextFamily):
    """A vision-language model through Transformers' processor and modules. Features: the plan's measures, and the
    arrays that the processor makes of the item's marker. Without a processor's file in its folder it has no tower, and
    the vision encoder must be disabled."""

    auto_class: ClassVar[str] = "AutoModelForImageTextToText"
    modalities: tuple[Modality, ...] = (Modality.IMAGE,)

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self._tower: ModuleTower | None = None
        self._has_processor = any(checkpoint.read_json(name) is not None for name in FILES)

    @cached_property
    def processor(self) -> ModuleProcessor:
        """Transformers' processor. Raises `CheckpointError` where it cannot be made."""
        return ModuleProcessor(self.checkpoint)

    @property
    def markers(self) -> Mapping[Modality, str]:
        return {Modality.IMAGE: self.processor.marker} if self._has_processor else {}

    @cached_property
    def _settings(self) -> Mapping[str, object]:
        return self.processor.settings

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return self._settings if self._has_processor else {}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        found = (size.height, size.width)
        return {"num_tiles": self.processor.plan(size).num_tiles, "resized": found, "original": found}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        return self.processor.plan(_size_of(measures)).expansion

    def num_units(self, measures: Features) -> int:
        return self.processor.plan(_size_of(measures)).num_patches

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        """No chain: the processor resizes and cuts pictures itself."""
        return ()

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        plan = super().plan_media(modality, size, options)
        return replace(plan, peak_pixels=max(plan.peak_pixels, self.processor.plan(size).peak_pixels))

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        arrays = self.processor.process(media.frames[0])
        planned = self.expand(media.modality, measures).token_ids
        if arrays["input_ids"][0].tolist() != planned.tolist():
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                "the model's processor makes other tokens of this picture than of a blank one of its size "
                f"({arrays['input_ids'].shape[1]}, not {len(planned)})",
                "messages",
            )
        return {**measures, **arrays}

    def largest_size(self) -> tuple[int, int] | None:
        def cost(size: tuple[int, int]) -> int:
            planned = self.processor.plan(MediaSize(num_frames=1, height=size[0], width=size[1]))
            return planned.num_patches

        return max(_SIZES, key=cost)

    def backbone(self) -> Backbone:
        """In some models (Gemma 4), tokens of a picture see each other in the layers with a window."""
        text = self.checkpoint.text_config
        if not self._has_processor or getattr(text, "use_bidirectional_attention", None) != "vision":
            return super().backbone()
        plans = (self.processor.plan(MediaSize(num_frames=1, height=h, width=w)) for h, w in _SIZES)
        most = max(int(plan.expansion.takes_embedding.sum()) for plan in plans)
        return replace(super().backbone(), media_run=max(most, self.processor.max_rows))

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> ModuleTower:
        from seesay.encoders.towers.module_tower import ModuleTower
        from seesay.llm.models.module_parts import Tower

        model = self.model  # raises for one that does not run, whatever is made of pictures
        if self._has_processor:
            check_positions(self.checkpoint, model)
        if not self._has_processor:
            raise CheckpointError(
                f"{self.checkpoint.path}: {' or '.join(FILES)} is missing, which says what is made of pictures: "
                "download it, or set disable_vision_encoder=True (--disable-vision-encoder) for text alone"
            )
        loaded = model.load(device, dtype)
        with model.blaming("its tower cannot be run alone"):
            run = Tower(loaded)
        self._tower = ModuleTower(
            run,
            image_token=self.processor.image_token,
            hidden_size=model.probed.hidden_size,
            device=device,
            dtype=dtype,
        )
        return self._tower

    def check(self, decoder: ModuleDecoder) -> None:
        from seesay.vl.modules.module_vision_check import check_pictures

        if self._tower is None or decoder.device.type == "meta":
            return
        try:
            with self.model.blaming("its modules fail in a trial with pictures", verdict=_NO_PICTURES):
                try:
                    check_pictures(self, self.processor, self._tower, decoder)
                except RequestError as error:
                    raise CheckpointError(str(error)) from error
        except CheckpointError as error:
            raise _or_text_alone(error) from error


def _or_text_alone(error: CheckpointError) -> CheckpointError:
    return CheckpointError(f"{error}. With disable_vision_encoder=True it runs with text alone")


def _size_of(measures: Features) -> MediaSize:
    height, width = measures["original"]
    return MediaSize(num_frames=1, height=height, width=width)


def check_positions(checkpoint: Checkpoint, model: ModuleModel) -> None:
    """Raise `CheckpointError` for tokens whose positions have several axes, which config.json says alone."""
    rotary = getattr(checkpoint.text_config, "rope_parameters", None) or {}
    if not (sections := rotary.get("mrope_section")):
        return
    try:
        with model.blaming(verdict=_NO_PICTURES):
            raise CheckpointError(f"its tokens have positions of {len(sections)} axes (M-RoPE)")
    except CheckpointError as error:
        raise _or_text_alone(error) from error


def takes_pictures(architecture: str) -> bool:
    """Return whether Transformers has a model of texts with pictures of this name. Imports Transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return architecture in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()
