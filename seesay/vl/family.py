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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint, is_buffer
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.llm.models.spec import DecoderConfig
from seesay.processors.media.images import qwen_patchify, resize
from seesay.processors.media.open import DECODE_OPTIONS
from seesay.values import DecodedMedia, Expansion, MediaItem, MediaSize, Modality
from seesay.vl.constants import DETAILS
from seesay.vl.published import Published

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint.model_config import ModelConfig
    from seesay.encoders.encoder import LoadedEncoder
    from seesay.processors.media.images import Resample
    from seesay.processors.text.tokenizer import Tokenizer

logger = logging.getLogger("seesay")

Features = Mapping[str, Any]

MAX_UNITS = 1 << 22
"""Most patches of one picture or video: no prompt can hold more."""
MAX_PIXELS, MAX_TILES, MAX_RATIO = 1 << 31, 1024, 1000
"""Largest values of options that give a number of pixels, of tiles, and a ratio."""
MAX_DEVICE_PIXELS = 1 << 24
"""Larger pictures are resized on the host, so that they take no more device memory than was planned for."""
_SMALL_SIZES = ((30, 30), (60, 90), (117, 131))
"""(height, width): windows of a tower have a few of its patches, a part of them, or all."""


BARE_DECODER = {name: name for name in ("layers.", "embed_tokens.", "norm.")}
"""Tensor names of a decoder that was saved by itself, without its head: see `WeightMap.decoder`."""
NESTED_DECODER = {
    "language_model.": "",
    "language_model.model.": "",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "",
    "lm_head.": "lm_head.",
}
"""Tensor names of a decoder inside of a vision-language model, with its head inside (older) or beside it (newer)."""
INTERNLM2_DECODER = (
    (r"^tok_embeddings\.", "embed_tokens."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.attention\.wqkv\.", ".self_attn.wqkv."),
    (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
)
"""`WeightMap.decoder_patterns` of an InternLM2."""
NESTED_FRONTS = ("", "model.")
"""Beginnings of a tower's tensor names in such a checkpoint: none (older), or the base model's attribute (newer)."""

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMap:
    """Assign checkpoint tensors to the decoder and the tower, by prefix of their names; the longest matching prefix
    decides.

    `decoder` and `tower` map a prefix to what replaces it in the decoder's names (`layers.0.self_attn.q_proj.weight`,
    `embed_tokens.weight`, `norm.weight`, `lm_head.weight`) and in the tower's. Tensors whose prefix is in `ignored` are
    not used, and neither are buffers (`is_buffer`). decoder_patterns, tower_patterns: regular expressions and what
    replaces them in the decoder's and the tower's names, one after another.
    """

    decoder: Mapping[str, str]
    tower: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    decoder_patterns: tuple[tuple[str, str], ...] = ()
    tower_patterns: tuple[tuple[str, str], ...] = ()

    def decoder_name(self, name: str) -> str | None:
        """Return the decoder's name of checkpoint tensor `name`; None when it is not the decoder's."""
        return self._rename(name, self.decoder, self.decoder_patterns)

    def tower_name(self, name: str) -> str | None:
        """Return the tower's name of checkpoint tensor `name`; None when it is not the tower's."""
        return self._rename(name, self.tower, self.tower_patterns)

    def is_leftover(self, name: str) -> bool:
        """Return whether neither decoder nor tower use the tensor, and it is not expected either: another head of the
        model, or a buffer other than the rotary frequencies and position ids that many checkpoints contain."""
        if is_buffer(name):
            return not name.endswith((".inv_freq", ".position_ids"))
        return self._prefix(name) is None

    def _prefix(self, name: str) -> str | None:
        fitting = (p for p in (*self.decoder, *self.tower, *self.ignored) if name.startswith(p))
        return max(fitting, key=len, default=None)

    def _rename(self, name: str, owner: Mapping[str, str], patterns: tuple[tuple[str, str], ...]) -> str | None:
        prefix = self._prefix(name)
        if prefix is None or prefix not in owner or is_buffer(name):
            return None
        found = owner[prefix] + name[len(prefix) :]
        for pattern, replacement in patterns:
            found = re.sub(pattern, replacement, found)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """The text decoder of a checkpoint.

    `decoder_name` maps a checkpoint tensor's name to the decoder's, or to None when it is not the decoder's.
    `tie_word_embeddings`: the checkpoint has no `lm_head.weight` of its own; the embedding table is used twice.
    num_deep_layers, has_grouped_qkv, media_run: see `DecoderConfig`.
    """

    text_config: ModelConfig
    decoder_name: Callable[[str], str | None]
    tie_word_embeddings: bool
    num_deep_layers: int = 0
    has_grouped_qkv: bool = False
    media_run: int = 0

    def decoder_config(self, *, session_len: int) -> DecoderConfig:
        """Return the decoder's options, for texts of at most `session_len` tokens. Raises `CheckpointError` naming what
        is not supported."""
        return DecoderConfig.from_hf(
            self.text_config,
            tied_embeddings=self.tie_word_embeddings,
            session_len=session_len,
            num_deep_layers=self.num_deep_layers,
            has_grouped_qkv=self.has_grouped_qkv,
            media_run=self.media_run,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The text in which an item stands: `before` and `after` it, tokenized together with the text around the item.

    `marker` replaces the item's own marker. It is a special token, and so are the item's first and last tokens: text
    never shares a token with them.
    """

    before: str
    marker: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlan:
    """The outcome of one media item, known from its size before a pixel is decoded.

    `measures` are the features that hold no pixels: `resized` (height, width) in pixels and `num_tiles` are among them.
    `expansion` replaces the item's marker; `num_units` are the patches that go through the tower. `wording` is text
    that belongs to the prompt, not to the item.
    """

    measures: Features
    expansion: Expansion
    num_units: int
    wording: Wording | None = None

    @property
    def num_tokens(self) -> int:
        """Places in the prompt."""
        return len(self.expansion.token_ids)


class Family(ABC):
    """One kind of model. An instance belongs to one loaded checkpoint; its methods are thread-safe.

    A media item takes this way: `resolve_options` checks its options, `plan_media` makes a `MediaPlan` of its size, and
    `preprocess` makes the tower's input of its pixels and the plan's measures.

    options: names of the per-item options by modality; their values are positive integers, true or false for those in
    `switches`, and numbers for those with `_ratio_` in their name. `size` is pixels, or {"longest_edge": pixels}.
    frame_options: options of pictures that are frames of a video, where the request does not have them.
    tokenizes_apart: the text before, between and behind media is tokenized in pieces, each like a text of its own.
    num_position_axes: rotary positions of a token: 1, or 3 for time, height and width (M-RoPE).
    default_sampling: options by which the frames of a video are chosen where a request does not say how; without any,
        the default frame rate.
    published: examples on the hub, for docs/models.md; they do not pass to families that are made of this one.
    resizes_on_device: whether the tower is on a GPU, which then resizes decoded frames itself where the family asks for
    that; set before the first `preprocess`.
    """

    architectures: ClassVar[tuple[str, ...]]
    modalities: ClassVar[tuple[Modality, ...]] = ()
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {}
    switches: ClassVar[tuple[str, ...]] = ()
    frame_options: ClassVar[Mapping[str, int]] = {}
    tokenizes_apart: ClassVar[bool] = False
    num_position_axes: ClassVar[int] = 1
    default_sampling: Mapping[str, Any] = MappingProxyType({})
    published: ClassVar[tuple[Published, ...]] = ()
    weights: ClassVar[WeightMap]
    resizes_on_device: bool = False

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        """Read the processor settings. Logs one warning that names the leftover tensors (`WeightMap.is_leftover`)."""
        self.checkpoint = checkpoint
        self.tokenizer = tokenizer
        leftovers = {re.sub(r"\d+", "*", n) for n in checkpoint.tensor_names() if self.weights.is_leftover(n)}
        if leftovers:
            shown = ", ".join(sorted(leftovers)[:_MAX_SHOWN])
            more = f" and {len(leftovers) - _MAX_SHOWN} more" if len(leftovers) > _MAX_SHOWN else ""
            logger.warning("%s: tensors that this model has no use for: %s%s", checkpoint.path, shown, more)

    @property
    def name(self) -> str:
        """The family's name: that of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    @abstractmethod
    def markers(self) -> Mapping[Modality, str]:
        """The text that stands for one picture or video in a rendered prompt."""

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

    def number(self, expansion: Expansion, number: int) -> Expansion:  # noqa: ARG002
        """Return the tokens of an item that has `number` others before it in its prompt; those of `expand`, unless they
        spell the number. No other part of the item may depend on it."""
        return expansion

    def word(self, modality: Modality, measures: Features | None) -> Wording | None:  # noqa: ARG002
        """Return the text around an item with these measures, empty while they are not known; None for an item that
        stands alone."""
        return None

    @abstractmethod
    def num_units(self, measures: Features) -> int:
        """Return the number of patches that go through the tower: the cost of encoding."""

    @abstractmethod
    def preprocess(self, media: DecodedMedia, measures: Features) -> Features:
        """Return the tower's input for one item, `measures` included, which are those of its plan."""

    def plan_media(self, modality: Modality, size: MediaSize, options: Mapping[str, int]) -> MediaPlan:
        """Plan an item of this size. `options` are those of `resolve_options`. Raises `RequestError` for more patches
        than any prompt can hold, and for what `measure` refuses."""
        measures = self.measure(modality, size, options)
        num_units = self.num_units(measures)
        if num_units > MAX_UNITS:
            message = (
                f"the {modality.value} would become {num_units} patches, more than the {MAX_UNITS} that one may have: "
                "ask for fewer pixels, tiles or frames"
            )
            raise RequestError(ErrorCode.MEDIA_TOO_LARGE, message, "messages")
        return MediaPlan(
            measures=measures,
            expansion=self.expand(modality, measures),
            num_units=num_units,
            wording=self.word(modality, measures),
        )

    def positions(
        self,
        token_ids: npt.NDArray[np.int64],
        items: tuple[MediaItem, ...],  # noqa: ARG002
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

    def may_send_frames(self, size: MediaSize, resample: Resample) -> bool:
        """Return whether the tower's device resizes frames of this size."""
        # The lanczos filter is on the host only.
        return self.resizes_on_device and resample != "lanczos" and size.height * size.width <= MAX_DEVICE_PIXELS

    def make_patches(
        self, media: DecodedMedia, size: tuple[int, int], *, resample: Resample, patch: tuple[int, int], merge_size: int
    ) -> Features:
        """Return the features of frames that are resized to `size` (height, width) and cut into patches of `patch`
        (frames, side): `pixels` uint8 [P, 3·frames·side²] in merge-group order, or those of `send_frames`."""
        import torch

        num_frames, side = patch
        if self.may_send_frames(media.size, resample):
            return send_frames(media, (size,), resample=resample, patch=(num_frames, side, side))
        frames = resize(media.frames, size, resample=resample)
        pixels = torch.from_numpy(frames if frames.flags.writeable else frames.copy()).permute(0, 3, 1, 2)
        patches, _ = qwen_patchify(pixels, patch_size=side, temporal_patch_size=num_frames, merge_size=merge_size)
        return {"pixels": patches.numpy()}

    def backbone(self) -> Backbone:
        """Return the text decoder's config and the names of its tensors."""
        config, text_config = self.checkpoint.model_config, self.checkpoint.text_config
        names = {self.weights.decoder_name(name) for name in self.checkpoint.tensor_names()}
        is_tied = bool(config.tie_word_embeddings or getattr(text_config, "tie_word_embeddings", False))
        return Backbone(
            text_config=text_config,
            decoder_name=self.weights.decoder_name,
            tie_word_embeddings=is_tied and "lm_head.weight" not in names,
            has_grouped_qkv=getattr(text_config, "has_grouped_qkv", False),
        )

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> LoadedEncoder:  # noqa: ARG002
        """Return the tower with its weights on `device`. Raises `CheckpointError` naming a tensor that does not fit."""
        raise CheckpointError(f"{self.checkpoint.architecture} has no vision tower")

    def media_key(self, modality: Modality, options: Mapping[str, int]) -> bytes:
        """Return what decides the features besides the decoded pixels: a part of the item's hash. `options` are those
        of `resolve_options`."""
        parts = [self.name, modality.value, dict(self.preprocessing), dict(options)]
        return json.dumps(parts, sort_keys=True).encode()

    def resolve_options(self, modality: Modality, options: Mapping[str, Any]) -> Mapping[str, int]:
        """Check the options of one media item, and replace `detail` by what it means to this family. All other methods
        take the result. Raises `RequestError` naming the first bad option."""
        chosen = {name: _unpack(name, value) for name, value in options.items() if name != "detail"}
        self._check_options(modality, chosen)
        detail = options.get("detail", "auto")
        if detail not in DETAILS:
            message = f"{modality.value} option detail must be {', '.join(DETAILS)}, got {str(detail)[:40]!r}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "detail")
        return self.lower_detail(modality, chosen) if detail == "low" else chosen

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:  # noqa: ARG002
        """Return `options` changed so that media take fewer tokens, never more; unchanged where all media take the same
        number. Raises `RequestError` for options that contradict this."""
        return options

    def _check_options(self, modality: Modality, options: Mapping[str, Any]) -> None:
        """Raise `RequestError` naming the first option that is unknown or has not a value that it may have."""
        known = self.options.get(modality, ())
        for name, value in options.items():
            if name not in known:
                listed = ", ".join(("detail", *known, *sorted(DECODE_OPTIONS[modality])))
                message = f"{modality.value} option {name!r} is unknown to this model; known are: {listed}"
                raise RequestError(ErrorCode.INVALID_REQUEST, message, name)
            if (allowed := self._name_allowed(name, value)) is not None:
                message = f"{modality.value} option {name} must be {allowed}, got {str(value)[:40]!r}"
                raise RequestError(ErrorCode.INVALID_REQUEST, message, name)

    def _name_allowed(self, name: str, value: Any) -> str | None:
        """Return what the option `name` may be, if `value` is something else."""
        is_bool = isinstance(value, bool)
        if name in self.switches:
            return None if is_bool else "true or false"
        if "_ratio_" in name:
            is_fine = isinstance(value, (int, float)) and not is_bool and 1 <= value <= MAX_RATIO
            return None if is_fine else f"a number in [1, {MAX_RATIO}]"
        most = MAX_TILES if name.endswith(("_patch", "_slice_nums", "_num_crops")) else MAX_PIXELS
        is_fine = isinstance(value, int) and not is_bool and 1 <= value <= most
        return None if is_fine else f"an integer in [1, {most}]"

    def token_id(self, text: str) -> int:
        """Return the id of the special token spelled `text`. Raises `CheckpointError` when the tokenizer has none."""
        token = self.tokenizer.token_id(text)
        if token is None:
            raise CheckpointError(f"{self.checkpoint.path}: the tokenizer has no token {text!r}")
        return token

    def token_text(self, token_id: int) -> str:
        """Return the spelling of the special token `token_id`. Raises `CheckpointError` when the tokenizer has none."""
        text = self.tokenizer.token_text(token_id)
        if text is None:
            raise CheckpointError(f"{self.checkpoint.path}: config.json names token {token_id}, the tokenizer has none")
        return text


def _unpack(name: str, value: Any) -> Any:
    """Return the pixels of {"longest_edge": pixels}, the published form of option `size`."""
    return (
        value["longest_edge"]
        if name == "size" and isinstance(value, Mapping) and [*value] == ["longest_edge"]
        else value
    )


def make_expansion(*pieces: tuple[list[int], bool]) -> Expansion:
    """Join pieces of (token ids, whether they take embeddings)."""
    ids = np.concatenate([np.asarray(piece, dtype=np.int64) for piece, _ in pieces])
    takes = np.concatenate([np.full(len(piece), flag, dtype=np.bool_) for piece, flag in pieces])
    return Expansion(token_ids=ids, takes_embedding=takes)


def is_layer_above(name: str, prefix: str, count: int) -> bool:
    """Return whether parameter `name` belongs to a layer (`prefix` + its number) beyond the first `count`."""
    number = name.removeprefix(prefix).partition(".")[0]
    return name.startswith(prefix) and number.isdigit() and int(number) >= count


def send_frames(
    media: DecodedMedia, sizes: tuple[tuple[int, int], ...], *, resample: Resample, patch: tuple[int, int, int]
) -> Features:
    """Return features from which a GPU makes the tower's input: `frames` uint8 [N, H, W, 3] are resized to each of
    `sizes` (height, width) with the filter `resample`, and cut into patches of `patch` (frames, height, width)."""
    return {"frames": media.frames, "sizes": sizes, "resample": resample, "patch": patch}


def own_pixels(frames: npt.NDArray[np.uint8], media: DecodedMedia | None = None) -> npt.NDArray[np.uint8]:
    """Return `frames` contiguous, and copied if they may share memory with `media` (always, where none is given), so
    that features never do."""
    if media is not None and not np.may_share_memory(frames, media.frames):
        return np.ascontiguousarray(frames)
    return np.array(frames, order="C")
