"""What a model family must say about itself, and the parts that are the same for all of them.

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
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint, is_buffer
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.media.open import DECODE_OPTIONS
from seesay.values import DecodedMedia, Expansion, MediaItem, MediaSize, Modality
from seesay.vl.constants import DETAILS

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from seesay.encoders.encoder import Encoder
    from seesay.processors.media.images import Resample
    from seesay.processors.text.tokenizer import Tokenizer

logger = logging.getLogger("seesay")

Features = Mapping[str, Any]

MAX_UNITS = 1 << 22
"""Most patches of one picture or clip: beyond it nothing is worth counting."""
MAX_PIXELS, MAX_TILES = 1 << 31, 1024
"""Largest values of options that ask for pixels and for tiles."""
MAX_DEVICE_PIXELS = 1 << 24
"""Larger pictures are resized on the host, so that they take no more of the device's memory than was planned for."""


BARE_DECODER = {name: name for name in ("layers.", "embed_tokens.", "norm.")}
"""How a decoder that was saved by itself, without its head, names its tensors: see `WeightMap.decoder`."""

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightMap:
    """Whose tensor is whose, by prefix of its name in the checkpoint; the longest prefix that fits decides.

    `decoder` and `tower` give what the prefix becomes in the decoder's (`layers.0.self_attn.q_proj.weight`,
    `embed_tokens.weight`, `norm.weight`, `lm_head.weight`) and the tower's names. Prefixes in `ignored` are not used
    by us, nor are buffers (`is_buffer`), whoever has them.
    """

    decoder: Mapping[str, str]
    tower: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def decoder_name(self, name: str) -> str | None:
        """The decoder's name of checkpoint tensor `name`; None when it is not the decoder's."""
        return self._rename(name, self.decoder)

    def tower_name(self, name: str) -> str | None:
        """The tower's name of checkpoint tensor `name`; None when it is not the tower's."""
        return self._rename(name, self.tower)

    def is_leftover(self, name: str) -> bool:
        """Whether the tensor belongs to nobody: another head of the model, or a buffer that is not as common as the
        rotary frequencies of old checkpoints and the position ids of towers."""
        if is_buffer(name):
            return not name.endswith((".inv_freq", ".position_ids"))
        return self._prefix(name) is None

    def _prefix(self, name: str) -> str | None:
        fitting = (p for p in (*self.decoder, *self.tower, *self.ignored) if name.startswith(p))
        return max(fitting, key=len, default=None)

    def _rename(self, name: str, owner: Mapping[str, str]) -> str | None:
        prefix = self._prefix(name)
        if prefix is None or prefix not in owner or is_buffer(name):
            return None
        return owner[prefix] + name[len(prefix) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """The text decoder of a checkpoint.

    `decoder_name` maps a checkpoint tensor's name to the decoder's, or to None when it is not the decoder's.
    `tie_word_embeddings`: the checkpoint has no `lm_head.weight` of its own; the embedding table is used twice.
    """

    text_config: PretrainedConfig
    decoder_name: Callable[[str], str | None]
    tie_word_embeddings: bool


class Family(ABC):
    """One kind of model. An instance belongs to one loaded checkpoint; its methods are thread-safe.

    options: names of the per-item options `preprocess` knows, by modality; their values are positive integers.
    decode_defaults: how a clip is sampled when the request does not say (`fps`, `num_frames`, …).
    resizes_on_device: whether the tower is on a GPU, which then resizes decoded frames itself where the family asks for
    that; set before the first `preprocess`.
    """

    architectures: ClassVar[tuple[str, ...]]
    modalities: ClassVar[tuple[Modality, ...]] = ()
    options: ClassVar[Mapping[Modality, tuple[str, ...]]] = {}
    decode_defaults: ClassVar[Mapping[Modality, Mapping[str, Any]]] = {}
    weights: ClassVar[WeightMap]
    resizes_on_device: bool = False

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        """Read the processor settings. Warns, by name, of tensors that belong to nobody."""
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
        """The text that stands for one picture or clip in a rendered prompt."""

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """The settings that decide what `preprocess` returns (JSON values): part of every cache key."""
        return {}

    @abstractmethod
    def preprocess(self, media: DecodedMedia, options: Mapping[str, Any]) -> Features:
        """The tower's input for one picture or clip. Raises `RequestError` for an option it does not know."""

    @abstractmethod
    def measure(self, modality: Modality, size: MediaSize, options: Mapping[str, Any]) -> Features:
        """What `preprocess` makes of media of this size, but for the pixels: the entries that `expand` and `num_units`
        read. `num_tiles` and `resized` (height, width) in pixels are among them. Raises `RequestError` as it does."""

    def count_tokens(self, modality: Modality, size: MediaSize, options: Mapping[str, Any]) -> int:
        """Places in the prompt that media of this size take, known before a pixel is decoded. Raises `RequestError` for
        more patches than any prompt can hold, whatever the options ask for."""
        measured = self.measure(modality, size, options)
        if (num_units := self.num_units(measured)) > MAX_UNITS:
            message = (
                f"the {modality.value} would become {num_units} patches, more than the {MAX_UNITS} that one may have: "
                "ask for fewer pixels, tiles or frames"
            )
            raise RequestError(ErrorCode.MEDIA_TOO_LARGE, message, "messages")
        return len(self.expand(modality, measured).token_ids)

    @abstractmethod
    def expand(self, modality: Modality, features: Features) -> Expansion:
        """The tokens that replace the marker's. As many take embeddings as the tower makes rows."""

    @abstractmethod
    def num_units(self, features: Features) -> int:
        """Patches that go through the tower: what encoding costs."""

    def positions(
        self,
        token_ids: npt.NDArray[np.int64],
        items: tuple[MediaItem, ...],  # noqa: ARG002
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Rotary positions int64 [T] or [3, T] of a prompt, and the position of the first generated token.

        Media are found by the items' spans and slots, never by token ids.
        """
        return np.arange(len(token_ids), dtype=np.int64), len(token_ids)

    def largest_input(self) -> Features | None:
        """Features of the costliest picture with default options, for memory planning; None without a tower."""
        size = self.largest_size()
        if size is None:
            return None
        # A GPU that resizes also holds the picture as it came.
        times = max(1, math.isqrt(MAX_DEVICE_PIXELS // math.prod(size))) if self.resizes_on_device else 1
        frames = np.zeros((1, times * size[0], times * size[1], 3), dtype=np.uint8)
        return self.preprocess(DecodedMedia(modality=Modality.IMAGE, frames=frames, digest=bytes(32)), {})

    def largest_size(self) -> tuple[int, int] | None:
        """(height, width) in pixels of the picture that costs most; None without a tower."""
        return None

    def may_send_frames(self, size: MediaSize, resample: Resample) -> bool:
        """Whether the tower's device is to resize frames of this size."""
        # lanczos is Pillow's, on the host
        return self.resizes_on_device and resample != "lanczos" and size.height * size.width <= MAX_DEVICE_PIXELS

    def backbone(self) -> Backbone:
        """The text decoder: its config and which tensors are its own."""
        config = self.checkpoint.hf_config()
        text_config = config.get_text_config(decoder=True)
        names = {self.weights.decoder_name(name) for name in self.checkpoint.tensor_names()}
        is_tied = bool(config.tie_word_embeddings or getattr(text_config, "tie_word_embeddings", False))
        return Backbone(
            text_config=text_config,
            decoder_name=self.weights.decoder_name,
            tie_word_embeddings=is_tied and "lm_head.weight" not in names,
        )

    def build_encoder(self, device: torch.device, dtype: torch.dtype) -> Encoder:  # noqa: ARG002
        """The tower with its weights on `device`. Raises `CheckpointError` naming a tensor that does not fit."""
        raise CheckpointError(f"{self.checkpoint.architecture} has no vision tower")

    def media_key(self, modality: Modality, options: Mapping[str, Any]) -> bytes:
        """What, besides the decoded pixels, decides the features: part of a media item's hash."""
        chosen = self.check_options(modality, options)
        parts = [self.name, modality.value, dict(self.preprocessing), dict(chosen)]
        return json.dumps(parts, sort_keys=True).encode()

    def resolve_options(self, modality: Modality, options: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the options of one media item with `detail` replaced by what it means to this family. The result is
        what all other methods take. Raises `RequestError` naming the first bad option."""
        own = {name: value for name, value in options.items() if name != "detail"}
        chosen, detail = self.check_options(modality, own), options.get("detail", "auto")
        if detail not in DETAILS:
            message = f"{modality.value} option detail must be {', '.join(DETAILS)}, got {str(detail)[:40]!r}"
            raise RequestError(ErrorCode.INVALID_REQUEST, message, "detail")
        return self.lower_detail(modality, chosen) if detail == "low" else chosen

    def lower_detail(self, modality: Modality, options: Mapping[str, int]) -> Mapping[str, int]:  # noqa: ARG002
        """Return `options` changed to take fewer tokens, never more. A family whose media all take the same number has
        nothing to change. Raises `RequestError` for options that ask for the opposite."""
        return options

    def check_options(self, modality: Modality, options: Mapping[str, Any]) -> Mapping[str, int]:
        """`options` when all are known integers within reason, else `RequestError` naming the first bad one."""
        known = self.options.get(modality, ())
        for name, value in options.items():
            if name not in known:
                listed = ", ".join(("detail", *known, *sorted(DECODE_OPTIONS[modality])))
                message = f"{modality.value} option {name!r} is unknown to this model; known are: {listed}"
                raise RequestError(ErrorCode.INVALID_REQUEST, message, name)
            most = MAX_TILES if name.endswith("_patch") else MAX_PIXELS
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                message = f"{modality.value} option {name} must be an integer in [1, {most}]"
                raise RequestError(ErrorCode.INVALID_REQUEST, message, name)
        return options

    def token_id(self, text: str) -> int:
        """Id of the special token spelled `text`; `CheckpointError` when the tokenizer has none."""
        token = self.tokenizer.token_id(text)
        if token is None:
            raise CheckpointError(f"{self.checkpoint.path}: the tokenizer has no token {text!r}")
        return token

    def token_text(self, token_id: int) -> str:
        """Spelling of the special token `token_id`; `CheckpointError` when the tokenizer has none."""
        text = self.tokenizer.hf.convert_ids_to_tokens(token_id)
        if not isinstance(text, str):
            raise CheckpointError(f"{self.checkpoint.path}: config.json names token {token_id}, the tokenizer has none")
        return text


def make_expansion(*pieces: tuple[list[int], bool]) -> Expansion:
    """Join pieces of (token ids, whether they take embeddings)."""
    ids = np.concatenate([np.asarray(piece, dtype=np.int64) for piece, _ in pieces])
    takes = np.concatenate([np.full(len(piece), flag, dtype=np.bool_) for piece, flag in pieces])
    return Expansion(token_ids=ids, takes_embedding=takes)


def is_layer_above(name: str, prefix: str, count: int) -> bool:
    """Whether parameter `name` is `prefix` + the number of a layer that is not among the first `count`."""
    number = name.removeprefix(prefix).partition(".")[0]
    return name.startswith(prefix) and number.isdigit() and int(number) >= count


def send_frames(
    media: DecodedMedia, sizes: tuple[tuple[int, int], ...], *, resample: Resample, patch: tuple[int, int, int]
) -> Features:
    """Features by which a GPU makes the tower's input of decoded frames: `frames` uint8 [N, H, W, 3] brought to each of
    `sizes` (height, width) by the filter `resample`, and cut into patches of `patch` (frames, height, width)."""
    return {"frames": media.frames, "sizes": sizes, "resample": resample, "patch": patch}


def own_pixels(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`frames` as a contiguous array of its own, so that features never share memory with decoded media."""
    return np.array(frames, order="C")
