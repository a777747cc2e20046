"""The interface of a model family, and the parts that are the same for all families.

A family knows its markers, preprocessing, placeholder tokens, positions, weights and tower. It computes nothing on
a device: torch is imported inside `build_encoder` only.
"""

from __future__ import annotations

import json
import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint, ConvertedConfig, read_as_known
from seesay.checkpoint.embedders import find_embedder
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.llm.models.configs.expert_kinds import find_stacked_experts
from seesay.processors.media.host_chain import run_chains
from seesay.processors.media.open import DECODE_OPTIONS
from seesay.values import DecodedMedia, Expansion, MediaItem, MediaSize, Modality, Pooling, RenderedPrompt
from seesay.values.frame_chain import Chain, measure_peak, pack
from seesay.values.media import Coordinates
from seesay.vl.backbone import Backbone
from seesay.vl.constants import DETAILS
from seesay.vl.media_plan import MAX_UNITS, NUMBER, Features, MediaPlan, Wording, check_peak, make_expansion
from seesay.vl.published import Published
from seesay.vl.weight_map import WeightMap

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.processors.text.tokenizer import Tokenizer

__all__ = [
    "MAX_PIXELS", "MAX_RATIO", "MAX_TILES", "MAX_UNITS", "NUMBER", "Backbone", "Family", "Features", "MediaPlan",
    "Wording", "make_expansion",
]  # fmt: skip

logger = logging.getLogger("seesay")

MAX_PIXELS, MAX_TILES, MAX_RATIO = 1 << 31, 1024, 1000
"""Largest values of options that give a number of pixels, of tiles, and a ratio."""
MAX_DEVICE_PIXELS, MAX_DEVICE_SIDE = 1 << 24, 1 << 16
"""Larger pictures are resized on the host, and so are those with more than twice as many pixels between two steps: they
take no more device memory than was planned for."""
_SMALL_SIZES = ((30, 30), (60, 90), (117, 131))
"""(height, width): windows of a tower have a few of its patches, a part of them, or all."""

_MAX_SHOWN = 8


class Family(ABC):
    """One kind of model. An instance belongs to one loaded checkpoint; its methods are thread-safe.

    A media item takes this way: `resolve_options` checks its options, `plan_media` makes a `MediaPlan` of its size, and
    `preprocess` makes the tower's input of its pixels and the plan's measures.

    modalities: kinds of media; an instance may have more than its class, where some checkpoints have.
    options: names of the per-item options by modality; their values are positive integers, true or false for those in
    `switches`, and numbers for those with `_ratio_` in their name. `size` is pixels, or {"longest_edge": pixels}.
    frame_options: options of pictures that are frames of a video, where the request does not have them.
    tokenizes_apart: the text before, between and behind media is tokenized in pieces, each like a text of its own.
    begins_empty: with `tokenizes_apart`, a piece without characters has the tokenizer's prefix, too.
    num_position_axes: rotary positions of a token: 1, or several, as 3 for time, height and width (M-RoPE); an instance
        may have others than its class.
    is_prefix_lm: each token of a prompt sees the whole prompt: see `DecoderConfig`.
    default_sampling: options by which the frames of a video are chosen where a request does not say how; without any,
        the default frame rate.
    published: examples on the hub, for docs/models.md; they do not pass to families that are made of this one.
    coordinates: what boxes and points in the JSON of answers count (`grounding.find_shapes`).
    writes_text: whether the model answers; others make embeddings alone. pooling: what an embedding is, where a request
    does not say.
    media_adapters: names of the adapters that requests with media of a modality take, where they name none and it is
        loaded: those of models that were trained with one for it.
    takes_timm_models: checkpoints name a model of timm as their tower (`TimmTower`).
    audio_rate_hz: samples per second of the audio that the model takes. max_audio_samples: most of them in one audio,
        where that is limited; 0: all. transcription_prompt: by what the model was trained to be asked for a transcript.
        max_transcribed_samples: most samples that it writes down at once, where that is less; 0: as many as it takes.
    resizes_on_device: whether the tower is on a GPU, which then resizes decoded frames itself where the family asks for
    that; set before the first `preprocess`.
    """

    architectures: ClassVar[tuple[str, ...]]
    modalities: tuple[Modality, ...] = ()
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {}
    switches: ClassVar[tuple[str, ...]] = ()
    frame_options: ClassVar[Mapping[str, int]] = {}
    tokenizes_apart: bool = False
    begins_empty: bool = True
    num_position_axes: int = 1
    is_prefix_lm: ClassVar[bool] = False
    default_sampling: Mapping[str, Any] = MappingProxyType({})
    published: ClassVar[tuple[Published, ...]] = ()
    writes_text: ClassVar[bool] = True
    pooling: ClassVar[Pooling] = "mean"
    media_adapters: ClassVar[Mapping[Modality, str]] = {}
    takes_timm_models: ClassVar[bool] = False
    coordinates: ClassVar[Coordinates] = "thousandth"
    weights: WeightMap
    resizes_on_device: bool = False
    audio_rate_hz: int = 0
    max_audio_samples: int = 0
    transcription_prompt: str = ""
    max_transcribed_samples: int = 0

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        """Read the processor settings. Logs one warning that names the leftover tensors (`WeightMap.is_leftover`)."""
        self.checkpoint = checkpoint
        self.tokenizer = tokenizer
        leftovers = {re.sub(r"\d+", "*", n) for n in checkpoint.tensor_names() if self.weights.is_leftover(n)}
        if leftovers:
            shown = ", ".join(sorted(leftovers)[:_MAX_SHOWN])
            more = f" and {len(leftovers) - _MAX_SHOWN} more" if len(leftovers) > _MAX_SHOWN else ""
            logger.warning("%s: tensors that this model has no use for: %s%s", checkpoint.path, shown, more)

    @classmethod
    def read_config(cls, config: Mapping[str, object]) -> ConvertedConfig:
        """Return the config.json of a family from outside of this package as one that Transformers has a class of,
        whose values `checkpoint.model_config` then has; this one reads those that seesay reads itself. What it holds
        besides stays in `checkpoint.config`. Raises `CheckpointError` naming what cannot be read."""
        return read_as_known(config)

    @property
    def name(self) -> str:
        """The family's name: that of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    @abstractmethod
    def markers(self) -> Mapping[Modality, str]:
        """The text that stands for one picture, video or audio in a rendered prompt."""

    @property
    def spellings(self) -> Mapping[Modality, str]:
        """Patterns of what stands for one picture or video in the text of a prompt that was written for the published
        code; without this, it is the marker."""
        return {modality: re.escape(marker) for modality, marker in self.markers.items()}

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """The settings that decide what `preprocess` returns, as JSON values: part of every cache key."""
        return {}

    @abstractmethod
    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> Features:
        """Return the `measures` of a `MediaPlan` for media of this size. `options` are those of `resolve_options`.
        Raises `RequestError` for options that contradict each other or the size."""

    @abstractmethod
    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """Return the tokens that replace the marker's. As many take embeddings as the tower makes rows."""

    def number(self, expansion: Expansion, number: int) -> Expansion:
        """Return the tokens of an item that has `number` others before it in its prompt; those of `expand`, unless they
        spell the number. No other part of the item may depend on it."""
        return expansion

    def share(self, measures: Sequence[Features]) -> Sequence[Features]:
        """Return for each item of a prompt the measures that it has because of the others, which replace its own. They
        are part of its hash, and change neither its pixels nor its tokens. `measures` are those of the plans."""
        return [{}] * len(measures)

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:
        """Return the text around an item with these measures, empty while they are not known; None for an item that
        stands alone."""
        return None

    def complete(self, rendered: RenderedPrompt, *, is_open: bool = False) -> RenderedPrompt:
        """Return a prompt, of a chat template or of none, with the text that the published processor writes into every
        prompt, apart from that of `word`. is_open: the prompt ends with the beginning of the answer."""
        return rendered

    @abstractmethod
    def num_units(self, measures: Features) -> int:
        """Return the number of patches that go through the tower: the cost of encoding."""

    @abstractmethod
    def chain_frames(self, modality: Modality, size: MediaSize, measures: Features) -> tuple[Chain, ...]:
        """Return the chains that make the tower's tiles or patches of frames of this size. `measures` are those of the
        plan."""

    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        """Return the tower's input for one item, `measures` included, which are those of its plan: `pixels` uint8,
        tiles [T, h, w, 3] or patches [P, size], that its chains make; or the decoded `frames` and the packed `chains`,
        where the tower's device runs them."""
        chains = self.chain_frames(media.modality, media.size, measures)
        if self.may_send_frames(media.size, chains):
            return {**measures, "frames": media.frames, "chains": pack(chains)}
        return {**measures, "pixels": run_chains(media.frames, chains)}

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        """Plan an item of this size. `options` are those of `resolve_options`. Raises `RequestError` for more patches
        than any prompt can hold, for steps that would take too much memory, and for what `measure` refuses."""
        measures = self.measure(modality, size, options)
        num_units = self.num_units(measures)
        if num_units > MAX_UNITS:
            message = (
                f"the {modality.value} would become {num_units} patches, more than the {MAX_UNITS} that one may have: "
                "ask for fewer pixels, tiles or frames"
            )
            raise RequestError(ErrorCode.MEDIA_TOO_LARGE, message, "messages")
        chains = self.chain_frames(modality, size, measures)
        return MediaPlan(
            measures=measures,
            expansion=self.expand(modality, measures),
            num_units=num_units,
            peak_pixels=check_peak(size, chains),
            wording=self.word(modality, measures),
        )

    def positions(
        self,
        token_ids: npt.NDArray[np.int64],
        items: tuple[MediaItem, ...],
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return rotary positions int64 [T] of a prompt, or [num_position_axes, T] with several axes, and the position
        of the first generated token.

        Media are found by the items' spans and slots, never by token ids.
        """
        return np.arange(len(token_ids), dtype=np.int64), len(token_ids)

    def largest_input(self) -> Features | None:
        """Return features of the costliest picture with default options, for memory planning; None without a tower."""
        size = self.largest_size()
        if size is None:
            return None
        # A GPU that resizes also holds the picture at its own size.
        times = max(1, math.isqrt(MAX_DEVICE_PIXELS // math.prod(size))) if self.resizes_on_device else 1
        return self._preprocess_blank((times * size[0], times * size[1]))

    def small_inputs(self) -> list[Features]:
        """Return features of small pictures with default options, all of which are resized: with the largest one they
        take the kernels that pictures of any size take. Empty without a tower."""
        return [] if self.largest_size() is None else [self._preprocess_blank(size) for size in _SMALL_SIZES]

    def _preprocess_blank(self, size: tuple[int, int]) -> Features:
        frames = np.zeros((1, *size, 3), dtype=np.uint8)
        media = DecodedMedia(modality=Modality.IMAGE, frames=frames, digest=bytes(32))
        return self.preprocess(media, self.measure(media.modality, media.size, {}))

    def largest_size(self) -> tuple[int, int] | None:
        """Return (height, width) in pixels of the costliest picture; None without a tower."""
        return None

    def may_send_frames(self, size: MediaSize, chains: tuple[Chain, ...]) -> bool:
        """Return whether the tower's device runs the chains on frames of this size."""
        frame = (size.height, size.width)
        return (
            self.resizes_on_device
            and math.prod(frame) <= MAX_DEVICE_PIXELS
            and max(frame) <= MAX_DEVICE_SIDE
            and measure_peak(chains, frame) <= 2 * MAX_DEVICE_PIXELS
        )

    def backbone(self) -> Backbone:
        """Return the text decoder's config and the names of its tensors."""
        config, text_config = self.checkpoint.model_config, self.checkpoint.text_config
        names = {self.weights.decoder_name(name) for name in self.checkpoint.tensor_names()}
        is_tied = any(getattr(each, "tie_word_embeddings", False) for each in (config, text_config))
        is_tied = is_tied or find_embedder(self.checkpoint) is not None  # those without an output layer need none
        return Backbone(
            text_config=text_config,
            decoder_name=self.weights.decoder_name,
            tie_word_embeddings=is_tied and "lm_head.weight" not in names,
            stacked_experts=find_stacked_experts(names),
            is_prefix_lm=self.is_prefix_lm,
        )

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:
        """Return the tower with its weights on `device`. Raises `CheckpointError` naming a tensor that does not fit."""
        raise CheckpointError(f"{self.checkpoint.architecture} has no vision tower")

    def write_transcription(self, language: str | None) -> str | None:
        """Return the whole prompt, raw and with `AUDIO_TOKEN`, by which the model was trained to write down what is
        said, in `language` (ISO 639-1) if that is known; None for a model that is asked in a conversation."""
        return None

    def media_key(self, modality: Modality, options: Mapping[str, int]) -> bytes:
        """Return what decides the features besides the decoded pixels: a part of the item's hash. `options` are those
        of `resolve_options`."""
        parts = [self.name, modality.value, dict(self.preprocessing), dict(options)]
        return json.dumps(parts, sort_keys=True).encode()

    def shared_options(self, num_pictures: int) -> Mapping[str, int]:
        """Return the options of the pictures of a prompt that has so many, where the request does not have them."""
        return {}

    def resolve_options(self, modality: Modality, options: Mapping[str, object]) -> Mapping[str, int]:
        """Check the options of one media item, and replace `detail` by what it means to this family. All other methods
        take the result. Raises `RequestError` naming the first bad option."""
        chosen = {name: _unpack(name, value) for name, value in options.items() if name != "detail"}
        self._check_options(modality, chosen, self.options.get(modality, ()))
        detail = options.get("detail", "auto")
        if detail not in DETAILS:
            message = f"{modality.value} option detail must be {', '.join(DETAILS)}, got {str(detail)[:40]!r}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "detail")
        return self.lower_detail(modality, chosen) if detail == "low" else chosen

    @property
    def splits_videos(self) -> bool:
        """Whether the frames of a video are taken as pictures."""
        return self.modalities == (Modality.IMAGE,)

    def option_names(self, modality: Modality) -> frozenset[str]:
        """Return the names of all options that media of a modality may have; none of one that the model does not take.
        Audio has none. Videos whose frames are taken as pictures have the options of pictures."""
        if modality is Modality.AUDIO or (modality not in self.modalities and not self.splits_videos):
            return frozenset()
        own = self.options.get(modality if modality in self.modalities else Modality.IMAGE, ())
        return frozenset({"detail", *own}) | DECODE_OPTIONS[modality]

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:
        """Return `options` changed so that media take fewer tokens, never more; unchanged where all media take the same
        number. Raises `RequestError` for options that contradict this."""
        return options

    def check_frame_options(self, options: Mapping[str, object]) -> None:
        """Check the options of a video whose frames are taken as pictures: each has those of a picture. The options
        that choose the frames are not among them. Raises `RequestError` naming the first bad option."""
        chosen = {name: _unpack(name, value) for name, value in options.items() if name != "detail"}
        self._check_options(Modality.VIDEO, chosen, self.options.get(Modality.IMAGE, ()))

    def _check_options(self, modality: Modality, options: Mapping[str, object], known: Sequence[str]) -> None:
        """Raise `RequestError` naming the first option that is not of `known` or has not a value that it may have."""
        for name, value in options.items():
            if name not in known:
                listed = ", ".join(("detail", *known, *sorted(DECODE_OPTIONS[modality])))
                message = f"{modality.value} option {name!r} is unknown to this model; known are: {listed}"
                raise RequestError(ErrorCode.INVALID_REQUEST, message, name)
            if (allowed := self._name_allowed(name, value)) is not None:
                message = f"{modality.value} option {name} must be {allowed}, got {str(value)[:40]!r}"
                raise RequestError(ErrorCode.INVALID_REQUEST, message, name)

    def _name_allowed(self, name: str, value: object) -> str | None:
        """Return what the option `name` may be, if `value` is something else."""
        if name in self.switches:
            return None if isinstance(value, bool) else "true or false"
        if "_ratio_" in name:
            return None if _is_between(value, MAX_RATIO) else f"a number in [1, {MAX_RATIO}]"
        most = MAX_TILES if name.endswith(("_patch", "_slice_nums", "_crops")) else MAX_PIXELS
        is_fine = isinstance(value, int) and _is_between(value, most)
        return None if is_fine else f"an integer in [1, {most}]"

    def token_id(self, text: str) -> int:
        """Return the id of the special token spelled `text`. Raises `CheckpointError` when the tokenizer has none."""
        token = self.tokenizer.token_id(text) if isinstance(text, str) else None
        if token is None:
            raise CheckpointError(f"{self.checkpoint.path}: the tokenizer has no token {text!r}")
        return token

    def token_text(self, token_id: int) -> str:
        """Return the spelling of the special token `token_id`. Raises `CheckpointError` when the tokenizer has none."""
        text = self.tokenizer.token_text(token_id)
        if text is None:
            raise CheckpointError(f"{self.checkpoint.path}: config.json names token {token_id}, the tokenizer has none")
        return text


def _unpack(name: str, value: object) -> Any:
    """Return the pixels of {"longest_edge": pixels}, the published form of option `size`."""
    return (
        value["longest_edge"]
        if name == "size" and isinstance(value, Mapping) and [*value] == ["longest_edge"]
        else value
    )


def _is_between(value: object, most: float) -> bool:
    """Return whether a value is a number, not a bool, from 1 to `most`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= most
