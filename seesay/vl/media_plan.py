"""The plan of a media item, made before a pixel is decoded: its tokens, the text around it, its costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seesay.errors import ErrorCode, RequestError
from seesay.values import Expansion, MediaSize
from seesay.values.frame_chain import Chain, measure_peak

Features = Mapping[str, Any]

MAX_UNITS = 1 << 22
"""Most patches of one picture or video: no prompt can hold more."""
_MAX_PEAK_PIXELS = 1 << 28
"""Most pixels that the host may hold between two steps, unless the media themselves have a fourth of that."""
NUMBER = "{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The text in which an item stands: `before` and `after` it, tokenized together with the text around the item.
    `NUMBER` in `before` stands for the item's number in the prompt, from 1 on.

    `marker` replaces the item's own marker. It is a special token, and so are the item's first and last tokens: text
    never shares a token with them.
    """

    before: str
    marker: str
    after: str

    def write_before(self, number: int) -> str:
        """Return `before` for the item `number` of a prompt."""
        return self.before.replace(NUMBER, str(number))


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlan:
    """The outcome of one media item, known from its size before a pixel is decoded.

    `measures` are the features that hold no pixels: `resized` (height, width) in pixels and `num_tiles` are among them.
    `expansion` replaces the item's marker; `num_units` are the patches that go through the tower. `peak_pixels` are
    held at once, at most, while its frames are processed. `wording` is text that belongs to the prompt, not to the
    item.
    """

    measures: Features
    expansion: Expansion
    num_units: int
    peak_pixels: int
    wording: Wording | None = None

    @property
    def num_tokens(self) -> int:
        """Places in the prompt."""
        return len(self.expansion.token_ids)


def make_expansion(*pieces: tuple[list[int], bool]) -> Expansion:
    """Join pieces of (token ids, whether they take embeddings)."""
    ids = np.concatenate([np.asarray(piece, dtype=np.int64) for piece, _ in pieces])
    takes = np.concatenate([np.full(len(piece), flag, dtype=np.bool_) for piece, flag in pieces])
    return Expansion(token_ids=ids, takes_embedding=takes)


def check_peak(size: MediaSize, chains: tuple[Chain, ...]) -> int:
    """Return the pixels that media of this size take at once while the chains run. Raises `RequestError` for too many,
    as thin pictures have them that become wide."""
    peak = size.num_frames * measure_peak(chains, (size.height, size.width))
    if peak > max(_MAX_PEAK_PIXELS, 4 * size.num_pixels):
        message = (
            f"media of {size.width}x{size.height} pixels and {size.num_frames} frames would take {peak} pixels while "
            f"they are resized, more than {_MAX_PEAK_PIXELS}: crop or pad them, or ask for fewer frames"
        )
        raise RequestError(ErrorCode.MEDIA_TOO_LARGE, message, "messages")
    return peak
