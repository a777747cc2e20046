"""Pictures that requests of one call share, and how much of them is held."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
from PIL import Image

from seesay.config import MediaLimits
from seesay.processors.media.picture import Picture
from seesay.values import MediaPart, MediaSize, Modality
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_items import OpenItem, PreparedMedia
from seesay.vl.media_plan import MediaPlan, make_expansion


def make_item(image: Image.Image) -> OpenItem:
    return OpenItem(
        part=MediaPart(modality=Modality.IMAGE, source=None),
        media=Picture(image, limits=MediaLimits(), name="picture"),
        place=None,
        options={},
        preprocessing_key=b"",
        size=None,
        plan=None,
        num_tokens=None,
        wording=None,
        fetch_s=0.0,
    )


def test_pictures_are_shared_until_others_fill_the_limit() -> None:
    """Each has 400 bytes, and two fit."""
    batch = MediaBatch(max_bytes=1000)
    items = [make_item(Image.new("RGB", (4, 4))) for _ in range(3)]
    begun: list[OpenItem] = []

    def begin(item: OpenItem) -> Future[PreparedMedia]:
        begun.append(item)
        future: Future[PreparedMedia] = Future()
        prepared = PreparedMedia(
            modality=Modality.IMAGE,
            features={"pixels": np.zeros(100, np.float32)},
            plan=MediaPlan(expansion=make_expansion(([1], True)), num_units=1, measures={}, peak_pixels=1),
            key=b"",
            size=MediaSize(num_frames=1, height=4, width=4),
        )
        future.set_result(prepared)
        return future

    first = batch.share(items[0], begin)
    batch.share(items[1], begin)
    assert batch.share(items[0], begin) is first and len(begun) == 2
    batch.share(items[2], begin)  # the one used longest ago leaves
    assert batch.share(items[0], begin) is first and len(begun) == 3
    batch.share(items[1], begin)
    assert begun == [*items, items[1]]
    assert batch._num_bytes == 800 == sum(batch._sizes.values()) and len(batch._begun) == 2


def test_a_failed_preparation_counts_nothing() -> None:
    batch = MediaBatch(max_bytes=1000)
    future: Future[PreparedMedia] = Future()
    future.set_exception(ValueError())
    batch.share(make_item(Image.new("RGB", (4, 4))), lambda _: future)
    assert batch._num_bytes == 0
