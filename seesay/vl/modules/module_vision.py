"""Vision-language models of Transformers that no family here describes: their own processor, tower and decoder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, Expansion, MediaItem, MediaSize, Modality
from seesay.values.frame_chain import Chain
from seesay.vl.family import Features, MediaPlan, Wording
from seesay.vl.modules.module_family import ModuleBackbone, ModuleTextFamily
from seesay.vl.modules.module_positions import RopeIndex, count_axes
from seesay.vl.modules.module_processor import FILES, ModuleProcessor, Planned
from seesay.vl.modules.trial_media import make_blank

if TYPE_CHECKING:
    import torch

    from seesay.encoders.towers.module_tower import ModuleTower
    from seesay.llm.models.modules.module_decoder import ModuleDecoder

_NO_PICTURES = "cannot take pictures here"
_NAMES = {Modality.IMAGE: "picture", Modality.VIDEO: "video", Modality.AUDIO: "audio"}
_LONG_AUDIO_S = 30
"""Duration of audio for which memory is planned: encoders divide longer audio into such pieces, or take none."""
_SIZES = ((336, 336), (512, 512), (1024, 1024), (512, 2048), (2048, 512), (2048, 2048), (4096, 4096))
"""(height, width) of pictures of which the one with most patches is the costliest."""


class _Edges(NamedTuple):
    """The texts that a processor writes before and after an item, and their numbers of tokens."""

    before: str
    after: str
    num_before: int
    num_after: int


class ModuleVisionFamily(ModuleTextFamily):
    """A vision-language model through Transformers' processor and modules. Features: the plan's measures, and the
    arrays that the processor makes of the item's marker. Without a processor's file in its folder it has no tower, and
    the vision encoder must be disabled."""

    auto_class: ClassVar[str] = "AutoModelForMultimodalLM"
    modalities: tuple[Modality, ...] = (Modality.IMAGE,)

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self._tower: ModuleTower | None = None
        self._has_processor = any(checkpoint.read_json(name) is not None for name in FILES)
        self.num_position_axes = count_axes(checkpoint)
        if self._has_processor:
            with suppress(CheckpointError):  # `processor` raises it again where it is needed
                self.modalities = tuple(self.markers)
                self.audio_rate_hz = self.processor.audio_rate_hz
                self.max_audio_samples = self.processor.max_samples
                self.transcription_prompt = self.processor.transcription_prompt

    @cached_property
    def processor(self) -> ModuleProcessor:
        """Transformers' processor. Raises `CheckpointError` where it cannot be made."""
        return ModuleProcessor(self.checkpoint)

    @property
    def markers(self) -> Mapping[Modality, str]:
        if not self._has_processor:
            return {}
        found = {
            Modality.IMAGE: self.processor.marker,
            Modality.VIDEO: self.processor.video_marker,
            Modality.AUDIO: self.processor.audio_marker,
        }
        return {modality: marker for modality, marker in found.items() if marker is not None}

    @cached_property
    def _settings(self) -> Mapping[str, object]:
        return self.processor.settings

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        return self._settings if self._has_processor else {}

    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        sides = (size.height, size.width)
        found = {"num_tiles": self.processor.plan(modality, size).num_tiles, "resized": sides, "original": sides}
        if modality is Modality.IMAGE:
            return found
        if modality is Modality.AUDIO:
            return {**found, "num_samples": size.num_samples, "rate_hz": size.rate_hz}
        times = {"times": size.timestamps_s, "interval": size.frame_interval_s}
        return {**found, "num_frames": size.num_frames, **times}

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        whole, edges = self._plan(measures).expansion, self._edges[modality]
        if edges is None:
            return whole
        inner = slice(edges.num_before, len(whole.token_ids) - edges.num_after)
        return Expansion(token_ids=whole.token_ids[inner], takes_embedding=whole.takes_embedding[inner])

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:
        if (edges := self._edges[modality]) is None:
            return None
        return Wording(before=edges.before, marker=self.markers[modality], after=edges.after)

    @cached_property
    def _edges(self) -> Mapping[Modality, _Edges | None]:
        """By modality, the blank text that the processor writes before and after an item (Gemma 3n), which is tokenized
        together with the prompt's; None where it writes none."""
        return {modality: self._find_edges(modality) for modality in self.modalities}

    def _find_edges(self, modality: Modality) -> _Edges | None:
        try:
            ids = self.processor.try_out(modality).expansion.token_ids.tolist()
        except RequestError:  # it says so for every item
            return None
        text: str = self.tokenizer.backend.decode(ids, skip_special_tokens=False)
        texts = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        before, after = map(self.tokenizer.encode, texts)
        has_edges = bool(before or after) and ids == [*before, *ids[len(before) : len(ids) - len(after)], *after]
        return _Edges(*texts, len(before), len(after)) if has_edges else None

    def _plan(self, measures: Features) -> Planned:
        """Return what the processor makes of an item with these measures."""
        if "num_samples" in measures:
            return self.processor.plan(Modality.AUDIO, MediaSize.of_audio(measures["num_samples"], measures["rate_hz"]))
        height, width = measures["original"]
        size = MediaSize(
            num_frames=measures.get("num_frames", 1),
            height=height,
            width=width,
            timestamps_s=tuple(measures.get("times", ())),
            frame_interval_s=measures.get("interval", 0.0),
        )
        return self.processor.plan(Modality.VIDEO if "num_frames" in measures else Modality.IMAGE, size)

    def num_units(self, measures: Features) -> int:
        return self._plan(measures).num_patches

    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        """No chain: the processor resizes and cuts pictures itself."""
        return ()

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        plan = super().plan_media(modality, size, options)
        return replace(plan, peak_pixels=max(plan.peak_pixels, self.processor.plan(modality, size).peak_pixels))

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        arrays = self.processor.process(media)
        planned = self._plan(measures).expansion.token_ids
        if arrays["input_ids"][0].tolist() != planned.tolist():
            raise RequestError(
                ErrorCode.INVALID_MEDIA,
                f"the model's processor makes other tokens of this {_NAMES[media.modality]} than of a blank one of its "
                f"size ({arrays['input_ids'].shape[1]}, not {len(planned)})",
                "messages",
            )
        return {**measures, **arrays}

    def largest_input(self) -> Features | None:
        if Modality.AUDIO not in self.modalities:
            return super().largest_input()
        num_samples = min(_LONG_AUDIO_S * self.audio_rate_hz, self.processor.max_samples or 1 << 62)
        audio = make_blank(Modality.AUDIO, MediaSize.of_audio(num_samples, self.audio_rate_hz))
        found = self.preprocess(audio, self.measure(audio.modality, audio.size, {}))
        picture = super().largest_input()
        return found if picture is None or self.num_units(found) > self.num_units(picture) else picture

    def largest_size(self) -> tuple[int, int] | None:
        if Modality.IMAGE not in self.modalities:
            return None

        def cost(size: tuple[int, int]) -> int:
            planned = self.processor.plan(Modality.IMAGE, MediaSize(num_frames=1, height=size[0], width=size[1]))
            return planned.num_patches

        return max(_SIZES, key=cost)

    def positions(
        self, token_ids: npt.NDArray[np.int64], items: tuple[MediaItem, ...]
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return the positions that the model's own code makes, where they have several axes."""
        if self.num_position_axes == 1 or self._rope_index is None:
            return super().positions(token_ids, items)
        if not items:
            return np.broadcast_to(np.arange(len(token_ids)), (self.num_position_axes, len(token_ids))), len(token_ids)
        return self._rope_index.number(token_ids, items, [self._plan(item.features).arrays for item in items])

    @cached_property
    def _rope_index(self) -> RopeIndex | None:
        return RopeIndex.find(self.model.skeleton)

    def backbone(self) -> ModuleBackbone:
        """In some models (Gemma 4), tokens of a picture see each other in the layers with a window."""
        text = self.checkpoint.text_config
        found = replace(
            super().backbone(), num_deep_layers=self._count_deep(), num_position_axes=self.num_position_axes
        )
        if Modality.IMAGE not in self.modalities or getattr(text, "use_bidirectional_attention", None) != "vision":
            return found
        sizes = (MediaSize(num_frames=1, height=height, width=width) for height, width in _SIZES)
        plans = (self.processor.plan(Modality.IMAGE, size) for size in sizes)
        most = max(int(plan.expansion.takes_embedding.sum()) for plan in plans)
        return replace(found, media_run=max(most, self.processor.max_rows))

    def _count_deep(self) -> int:
        """Return the number of layers behind which a part of an embedding is added (DeepStack, arXiv 2406.04334)."""
        vision = getattr(self.checkpoint.model_config, "vision_config", None)
        return len(getattr(vision, "deepstack_visual_indexes", None) or ())

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> ModuleTower:
        from seesay.encoders.towers.module_tower import ModuleTower
        from seesay.llm.models.modules.module_parts import Tower

        model = self.model  # raises for one that does not run, whatever is made of pictures
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
            row_tokens=self.processor.row_tokens,
            hidden_size=model.probed.hidden_size,
            num_deep_layers=self._count_deep(),
            device=device,
            dtype=dtype,
        )
        return self._tower

    def check(self, decoder: ModuleDecoder) -> None:
        from seesay.vl.modules.module_vision_check import check_prompts

        if self._tower is None or decoder.device.type == "meta":
            return
        try:
            with self.model.blaming("its modules fail in a trial with pictures", verdict=_NO_PICTURES):
                try:
                    check_prompts(self, self.processor, self._tower, decoder)
                except RequestError as error:
                    raise CheckpointError(str(error)) from error
        except CheckpointError as error:
            raise _or_text_alone(error) from error


def _or_text_alone(error: CheckpointError) -> CheckpointError:
    return CheckpointError(f"{error}. With disable_vision_encoder=True it runs with text alone")


def takes_media(architecture: str) -> bool:
    """Return whether Transformers has a model of texts with pictures or audio of this name. Imports Transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

    return architecture in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.values()
