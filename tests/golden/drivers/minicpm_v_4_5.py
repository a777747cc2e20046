"""MiniCPM-V 4.5. With Transformers 4.51 and huggingface_hub 0.30.

Its chat turns thoughts off, unless it is asked to think. Here it leaves that to the template, as seesay does where a
request does not say it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from golden.cases import PACKED_VIDEO, VIDEO_AT_TWO_FPS, Case
from golden.drivers import minicpm
from golden.drivers.minicpm import Asked
from golden.drivers.minicpm import load as load
from golden.record import Record

MODEL = "openbmb/MiniCPM-V-4_5"
TRANSFORMERS = "4.51.3"
FILES = (*minicpm.FILES, "modeling_navit_siglip.py")
CASES = (*minicpm.CASES, VIDEO_AT_TWO_FPS, PACKED_VIDEO)
_TIME_SCALE = 0.1


def run(asked: Asked, case: Case) -> Record:
    """Return what the published chat made of a conversation. A video is one medium."""
    if not case.turns[0].is_video:
        return minicpm.run(asked, case, enable_thinking=None)
    options: dict[str, Any] = dict(case.options)
    times = find_times(len(case.pictures), options["sample_fps"])
    size = options.get("force_packing", 1)
    packs = [times[first : first + size] for first in range(0, len(times), size)]
    given = {"max_slice_nums": 1, "use_image_id": False, "temporal_ids": packs, "enable_thinking": None}
    return minicpm.run(asked, case, **given, media_of_slices=[len(packs)])


def find_times(num_frames: int, fps: float) -> list[int]:
    """Return the steps of 0.1 s of frames, as `encode_video` of the model card does: the nearest ones before the end of
    the video."""
    scale = np.arange(0, num_frames / fps, _TIME_SCALE)
    times = [scale[np.abs(scale - index / fps).argmin()] / _TIME_SCALE for index in range(num_frames)]
    return [int(time) for time in times]
