"""Pictures as text for messages. The module has LMDeploy's name, so that imports of it keep working."""

from __future__ import annotations

import base64
from typing import Any

from seesay.config import MediaLimits
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.load import load_image, load_video
from seesay.processors.media.pillow import to_png
from seesay.processors.media.sources import read_bytes

__all__ = ["encode_image_base64", "load_image", "load_video"]


def encode_image_base64(image: Any) -> str:
    """Return the base64 text of a picture, for `data:image/png;base64,…` URLs.

    A PIL image is stored upright as PNG; the content of a path, URL or bytes is not changed. Raises `RequestError`.
    """
    from PIL import Image

    is_opened = isinstance(image, Image.Image)
    content = to_png(image) if is_opened else read_bytes(image, Allowance(MediaLimits()))
    return base64.b64encode(content).decode("ascii")
