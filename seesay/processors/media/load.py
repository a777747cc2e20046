"""`load_image`, `load_video`, `load_document`, `load_audio`: any source that a user has, decoded within limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from seesay.config import MediaLimits, Transparency
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.audio import check_rate, open_audio
from seesay.processors.media.document import open_document
from seesay.processors.media.open import check_transparency, open_picture, open_video
from seesay.processors.media.pillow import image_of_array
from seesay.processors.media.video.frame_sampling import FrameSampling
from seesay.values import AudioSamples, DocumentOptions, TextLayer, VideoFrames

if TYPE_CHECKING:
    from PIL import Image

_DEFAULT_LIMITS = MediaLimits()


def load_image(
    source: object, *, transparency: Transparency = "white", limits: MediaLimits = _DEFAULT_LIMITS
) -> Image.Image:
    """Return a picture as an RGB `PIL.Image`, upright as its EXIF data says and without that orientation.

    `source` is a path, http(s) URL, data URL, bytes, base64 text, file opened in binary mode, PIL image, or uint8 array
    or tensor [H, W], [H, W, 3] or [H, W, 4]. Of an animation the first frame is taken. Transparent parts are put on
    white; with `transparency="drop"` the alpha channel is ignored, as Pillow does. 16-bit grey is scaled to
    8 bits. Limits are checked before pixels are decoded. Raises `RequestError` that says what is wrong and what to do.
    """
    transparency = check_transparency(transparency)
    return open_picture(source, Allowance(limits), transparency=transparency).to_image()


def load_video(
    source: object,
    *,
    fps: float | None = None,
    num_frames: int | None = None,
    min_frames: int | None = None,
    max_frames: int | None = None,
    sample_fps: float | None = None,
    video_start: float | None = None,
    video_end: float | None = None,
    transparency: Transparency = "white",
    limits: MediaLimits = _DEFAULT_LIMITS,
) -> VideoFrames:
    """Return frames of a video, evenly sampled: `num_frames` of them, or `fps` per second (default 2).

    `source` is a path, http(s) URL, data URL, bytes, base64 text, file opened in binary mode, or the frames
    themselves: a list of what `load_image` takes, a uint8 array [N, H, W, 3], or `data:video/jpeg;base64,…` with JPEGs
    that are separated by commas. The number of frames that `fps` gives is even and kept within `min_frames` (4) and
    `max_frames` (768); `max_frames` bounds `num_frames`, too. Given frames are all taken unless `num_frames` or
    `max_frames` is smaller, and `sample_fps`, or `fps`, says how many there are per second of the video (default 2).
    The result of another call keeps its own times.
    `video_start` and `video_end` are seconds from the first frame: others are left out.
    A file that is cut off, or damaged, ends where it cannot be decoded any more.
    Frames of a file that together hold more than `limits.max_clip_pixels` are scaled down while they are decoded.
    `transparency` is that of `load_image` and applies to given frames; those of a file have none.
    Raises `RequestError`, or `MissingExtraError` without a package that reads videos.
    """
    sampling = FrameSampling.checked(
        fps=fps,
        num_frames=num_frames,
        sample_fps=sample_fps,
        min_frames=min_frames,
        max_frames=max_frames,
        video_start=video_start,
        video_end=video_end,
        limit=limits.max_frames,
    )
    transparency = check_transparency(transparency)
    return open_video(source, sampling, Allowance(limits), transparency=transparency).frames()


def load_audio(source: object, *, rate_hz: int | None = None, limits: MediaLimits = _DEFAULT_LIMITS) -> AudioSamples:
    """Return audio as mono float32 samples, at `rate_hz` or at its own rate.

    `source` is a path, http(s) URL, data URL, bytes, base64 text, file opened in binary mode, or `AudioSamples`. WAV,
    MP3, FLAC, Ogg (Vorbis, Opus), AAC, MP4/M4A and WebM are read; channels are averaged. A file that is cut off, or
    damaged, ends where it cannot be decoded any more. Raises `RequestError`, or `MissingExtraError` without PyAV.
    """
    if rate_hz is not None:
        check_rate(rate_hz, "load_audio: the result")
    return open_audio(source, Allowance(limits), rate_hz=rate_hz or 0).samples()


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPage:
    """A page of a document. number: from 1. image: RGB. text: the page's own text, if it was asked for."""

    number: int
    image: Image.Image
    text: str = ""


def load_document(
    source: object,
    *,
    pages: str | int | None = None,
    dpi: int = 144,
    text_layer: TextLayer = "none",
    transparency: Transparency = "white",
    limits: MediaLimits = _DEFAULT_LIMITS,
) -> list[DocumentPage]:
    """Return pages of a PDF or TIFF as pictures.

    `source` is what `load_image` takes, but for images and arrays. `pages` names pages and ranges of them, from 1:
    "1-3,7", "5-"; without it all are taken. PDF pages have `dpi` pixels per inch; those of a TIFF have the pixels that
    they have, and `transparency` is that of `load_image`. `text_layer="auto"` returns the text that a PDF page has
    itself, too. A document is read in another process within limits; its scripts are not run.
    Raises `RequestError`, or `MissingExtraError` without the package that draws PDFs.
    """
    options = DocumentOptions.checked({"pages": pages, "dpi": dpi, "text_layer": text_layer})
    allowance = Allowance(limits)
    document = open_document(source, options, allowance, transparency=check_transparency(transparency))
    allowance.spend_pixels(sum(page.size().num_pixels for page in document.pages))
    return [
        DocumentPage(number=page.number, image=image_of_array(page.decode().frames[0]), text=page.text)
        for page in document.pages
    ]
