"""One encoded picture to upright RGB pixels. Reads headers first and refuses what is too large before decoding it."""

from __future__ import annotations

import io
import threading
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError

_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)
_LOCKS = tuple(threading.Lock() for _ in range(64))
_WITH_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA")


def decode_picture(data: bytes, limits: MediaLimits, name: str) -> Image.Image:
    """The (first) picture in `data`, RGB and upright. `name` is what messages call it. Raises `RequestError`."""
    return to_rgb(_open(data, name), limits, name)


def read_size(data: bytes | Image.Image, limits: MediaLimits, name: str) -> tuple[int, int]:
    """(height, width) of the upright picture, from its header: no pixel is decoded. Raises `RequestError`."""
    image = data if isinstance(data, Image.Image) else _open(data, name)
    check_size(image.size, limits, name)
    width, height = image.size
    with _lock_of(image):
        # A TIFF's size is upright already, and a PNG whose header does not tell would be decoded to find out.
        is_told = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
        is_turned = is_told and _orientation(image) in _SIDEWAYS
    return (width, height) if is_turned else (height, width)


def _open(data: bytes, name: str) -> Image.Image:
    """The picture with its header read."""
    try:
        return Image.open(io.BytesIO(data), formats=_known_formats())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # a warning where these are errors
        raise _too_many_pixels(name, "more than Pillow's own limit (PIL.Image.MAX_IMAGE_PIXELS)") from None
    except UnidentifiedImageError:
        known = ", ".join(_known_formats())
        what = "is empty" if not data else f"is not a picture of a known kind ({known})"
        raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} {what}") from None
    except Exception as error:  # a plugin's parser met something it was not made for
        raise _broken(name, error) from None


def check_size(size: tuple[int, int], limits: MediaLimits, name: str) -> None:
    """Raises `RequestError` unless a picture may be of this size (width, height)."""
    width, height = size
    if width * height > limits.max_pixels:
        raise _too_many_pixels(name, f"{width}x{height} pixels, more than {limits.max_pixels}")
    if not width or not height:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} is {width}x{height} pixels: there is nothing to see")


def to_rgb(image: Image.Image, limits: MediaLimits, name: str) -> Image.Image:
    """`image` as RGB, upright, transparent parts white; itself where that is what it is. Raises `RequestError`."""
    check_size(image.size, limits, name)
    try:
        with _lock_of(image):
            image.load()
            transposition = _UPRIGHT.get(_orientation(image))
        image = _convert(image)
        return image if transposition is None else image.transpose(transposition)
    except MemoryError:
        raise RequestError(ErrorCode.OUT_OF_MEMORY, f"not enough memory to decode {name}") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, … on damaged files
        raise _broken(name, error) from None


def _lock_of(image: Image.Image) -> threading.Lock:
    """For what changes an image from inside: one that was opened and not read yet may be in several requests."""
    return _LOCKS[id(image) // 64 % len(_LOCKS)]


@cache
def _known_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _orientation(image: Image.Image) -> int:
    # Read after loading: some decoders turn the picture themselves and then drop the tag.
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF data does not make a picture unreadable
        return 1
    return value if isinstance(value, int) else 1


def _convert(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        return _on_white(image.convert("RGBA"))
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bits(np.asarray(image), image.mode)).convert("RGB")
    return image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    background = Image.new("RGB", image.size, (255, 255, 255))
    background.paste(image, mask=image.getchannel("A"))
    return background


def _to_8_bits(grey: npt.NDArray[np.generic], mode: str) -> npt.NDArray[np.uint8]:
    """Grey values of more than 8 bits, scaled to 0 … 255 and rounded.

    White is 65535; for floats it is 1 or 255 where none is larger; for values beyond all that it is the largest.
    """
    values = np.nan_to_num(grey.astype(np.float64))
    largest = float(values.max())
    steps = (1.0, 255.0, 65535.0) if mode == "F" else (65535.0,)
    white = next((step for step in steps if largest <= step), largest)
    scaled: npt.NDArray[np.uint8] = np.rint(values.clip(0, None) * (255.0 / white)).astype(np.uint8)
    return scaled


def _too_many_pixels(name: str, amount: str) -> RequestError:
    return RequestError(
        ErrorCode.MEDIA_TOO_LARGE, f"{name} has {amount}: send a smaller picture or raise MediaLimits.max_pixels"
    )


def _broken(name: str, error: Exception) -> RequestError:
    reason = str(error)[:120] or type(error).__name__
    return RequestError(ErrorCode.INVALID_MEDIA, f"{name} cannot be decoded, it is damaged or cut off: {reason}")
