"""Opened media as files, for those who keep them."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from seesay.processors.media.audio import Audio
from seesay.processors.media.document import OpenedPage
from seesay.processors.media.open import OpenedMedia
from seesay.processors.media.picture import Picture
from seesay.processors.media.video.video_file import VideoFile
from seesay.values import AudioSamples


def as_file(media: OpenedMedia) -> bytes | Path | None:
    """Return the file that was read or fetched, or its path. Pixels, and pages of documents, become a PNG; there is
    None for the frames of a video, given or taken one by one, and for samples of audio. Raises `RequestError` for what
    cannot be decoded."""
    if isinstance(media, VideoFile):
        return media.content
    if isinstance(media, Picture):
        return media.file or _as_png(media.to_image())
    if isinstance(media, OpenedPage):
        return _as_png(Image.fromarray(media.decode().frames[0]))
    if isinstance(media, Audio) and not isinstance(media.content, AudioSamples):
        return media.content
    return None


def _as_png(image: Image.Image) -> bytes:
    target = io.BytesIO()
    image.save(target, "PNG", compress_level=1)
    return target.getvalue()
