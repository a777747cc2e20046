"""MiniCPM-Llama3-V 2.5. With Transformers 4.40 and huggingface_hub 0.24.

Its image processor fails on the empty list that the chat gives it without pictures: it is not asked then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from golden.drivers import minicpm
from golden.drivers.minicpm import Asked
from golden.drivers.minicpm import run as run

MODEL = "openbmb/MiniCPM-Llama3-V-2_5"
TRANSFORMERS = "4.40.0"
FILES = minicpm.FILES
CASES = minicpm.CASES


def load(code: Path, folder: Path) -> tuple[Asked, dict[str, tuple[int, ...]]]:
    """Return the published model, asked through its chat, and the shapes of its tensors."""
    asked, tensors = minicpm.load(code, folder)
    preprocess = asked.processor.image_processor.preprocess

    def preprocess_some(images: list[Any], **kwargs: Any) -> Any:
        return preprocess(images, **kwargs) if images else {"pixel_values": [[]], "image_sizes": [[]], "tgt_sizes": []}

    asked.processor.image_processor.preprocess = preprocess_some
    return asked, tensors
