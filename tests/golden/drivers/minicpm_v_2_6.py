"""MiniCPM-V 2.6. With Transformers 4.40 and huggingface_hub 0.24."""

from __future__ import annotations

from typing import Any

from golden.cases import VIDEO, VIDEO_OF_LARGE_FRAMES, Case
from golden.drivers import minicpm
from golden.drivers.minicpm import Asked
from golden.drivers.minicpm import load as load
from golden.record import Record

MODEL = "openbmb/MiniCPM-V-2_6"
TRANSFORMERS = "4.40.0"
FILES = (*minicpm.FILES, "modeling_navit_siglip.py")
CASES = (*minicpm.CASES, VIDEO, VIDEO_OF_LARGE_FRAMES)
_OF_VIDEO: dict[str, Any] = {"max_slice_nums": 2, "use_image_id": False}
"""What the model card gives the chat with the frames of a video."""


def run(asked: Asked, case: Case) -> Record:
    """Return what the published chat made of a conversation."""
    return minicpm.run(asked, case, **(_OF_VIDEO if case.turns[0].is_video else {}))
