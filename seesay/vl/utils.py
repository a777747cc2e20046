"""Pictures as text for messages. The module's name is LMDeploy's, so that imports of it can stay as they are."""

from __future__ import annotations

import base64
import io
from typing import Any

from seesay.config import MediaLimits
from seesay.processors.allowance import Allowance
from seesay.processors.media import load_image, load_video
from seesay.processors.sources import read_bytes

__all__ = ["encode_image_base64", "load_image", "load_video"]


def encode_image_base64(image: Any) -> str:
    """The base64 text of a picture, for `data:image/png;base64,…` URLs.

    A PIL image is stored as PNG; of a path, URL or bytes the content is taken as it is. Raises `RequestError`.
    """
    from PIL import Image

    if isinstance(image, Image.Image):
        file = io.BytesIO()
        image.save(file, format="PNG")
        content = file.getvalue()
    else:
        content = read_bytes(image, Allowance(MediaLimits()))
    return base64.b64encode(content).decode("ascii")
