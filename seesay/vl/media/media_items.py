"""Values of the media of a request: opened, and prepared for a tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from seesay.processors.media.allowance import Allowance
from seesay.processors.media.open import OpenedMedia
from seesay.values import MediaPart, MediaPlace, MediaSize, Modality
from seesay.vl.family import Features, MediaPlan, Wording


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMedia:
    """One picture or video, ready for a tower.

    `key` is 32 bytes over the decoded content and the preprocessing options. `features` are the family's own. `size` is
    that of the decoded frames, and `plan` what the family makes of that size. `was_recalled`: the
    media was not decoded, because its embedding is cached; `features` then lack their arrays. `load_features` decodes
    the media and returns all features, for an embedding that is needed when the arrays are gone; it is None for content
    that its owner may change. `place` is named by errors. `timestamps_s` has
    the time in the video of each frame, also of one that became a picture of its own. `page`: its number in a document.
    `opened` is what it was made of.
    """

    modality: Modality
    features: Features
    plan: MediaPlan
    key: bytes
    size: MediaSize
    place: MediaPlace | None = None
    timestamps_s: tuple[float, ...] = ()
    page: int | None = None
    was_recalled: bool = False
    load_features: Callable[[], Features] | None = None
    fetch_s: float = 0.0
    decode_s: float = 0.0
    preprocess_s: float = 0.0
    opened: OpenItem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenItem:
    """One picture or video that was read or fetched, and not decoded. `part` is what the request says of it.

    `options` are the checked preprocessing options, `preprocessing_key` is what they, the family's settings and the
    request's salt add to the item's key. `size`, `plan` and `num_tokens`, its places in the prompt, are None where only
    decoding tells the size. `wording` is the plan's, as far as it is known. `place` is named by errors.
    """

    part: MediaPart
    media: OpenedMedia
    place: MediaPlace | None
    options: Mapping[str, int]
    preprocessing_key: bytes
    size: MediaSize | None
    plan: MediaPlan | None
    num_tokens: int | None
    wording: Wording | None
    fetch_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """The opened media of one request, and what they may still cost."""

    items: Sequence[OpenItem]
    allowance: Allowance
