"""The same work for every engine: fixed prompts, fixed pictures, fixed answer lengths.

Texts are drawn from English words, so that every tokenizer sees ordinary text; pictures are smooth and random, each
different, stored as JPEG. What a seed makes never changes, or figures could not be compared; a test holds it.
"""

from __future__ import annotations

import io
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

WORDS = (  # noqa: SIM905
    "time person year way day thing man world life hand part child eye woman place work week case point "
    "company number group problem fact light water room mother area money story month lot right study book"
).split()


class Request(NamedTuple):
    """A prompt of pictures and the text after them, and how many tokens its answer has."""

    text: str
    images: list[Image.Image]
    num_output_tokens: int


def make_text(num_words: int, rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def make_picture(width_px: int, height_px: int, seed: int) -> Image.Image:
    """One smooth RGB picture, decoded from JPEG."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(small).resize((width_px, height_px), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=88)
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")


def text_requests(num: int = 512, num_words: int = 480, num_output_tokens: int = 256, seed: int = 1) -> list[Request]:
    rng = random.Random(seed)
    return [Request(make_text(num_words, rng), [], num_output_tokens) for _ in range(num)]


def image_requests(
    num: int = 256, *, side_px: int = 1024, num_output_tokens: int = 128, num_words: int = 40, seed: int = 2
) -> list[Request]:
    """One picture each, all of them different."""
    rng = random.Random(seed)
    return [
        Request(make_text(num_words, rng), [make_picture(side_px, side_px, seed * 100003 + index)], num_output_tokens)
        for index in range(num)
    ]


def shared_image_requests(
    num_images: int = 16,
    *,
    num_turns: int = 8,
    side_px: int = 1024,
    num_output_tokens: int = 64,
    num_words: int = 40,
    seed: int = 3,
) -> list[Request]:
    """Many questions on few pictures, question by question over all pictures: what caches are for."""
    rng = random.Random(seed)
    pictures = [make_picture(side_px, side_px, seed * 100003 + index) for index in range(num_images)]
    return [
        Request(make_text(num_words, rng), [picture], num_output_tokens)
        for _ in range(num_turns)
        for picture in pictures
    ]


def median_time_s(run: Callable[[], object], num: int = 5, num_warm_up: int = 1) -> float:
    """Seconds of a call of `run`: the median of `num` calls, after `num_warm_up` that do not count."""
    for _ in range(num_warm_up):
        run()
    times_s = []
    for _ in range(num):
        started_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s)
