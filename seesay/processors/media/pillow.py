"""Conversion of one Pillow image to upright RGB. Reads headers first and refuses what is too large before decoding it.

An image that was turned upright no longer carries its orientation, so that the next reader does not turn it again.
"""

from __future__ import annotations

import io
import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from seesay.config import MediaLimits, Transparency
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.library_messages import logged_messages
from seesay.processors.media.png_chunks import PNG_SIGNATURE, check_chunks

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
# Where Pillow keeps EXIF and XMP data, either of which may hold the orientation.
_ORIENTED_BY = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
_LOCKS = tuple(threading.Lock() for _ in range(64))
_WITH_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA")
_PNG_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA")


def open_image(data: bytes, name: str) -> Image.Image:
    """Return the (first) picture in `data` with its header read. `name` is what messages call it. Raises
    `RequestError`."""
    if data.startswith(PNG_SIGNATURE):
        check_chunks(data, name)
    try:
        with logged_messages(name):
            return Image.open(io.BytesIO(data), formats=_known_formats())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # a warning where warnings are errors
        raise _too_many_pixels(name, "more than Pillow's own limit (PIL.Image.MAX_IMAGE_PIXELS)") from None
    except UnidentifiedImageError:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} {_name_problem(data)}") from None
    except Exception as error:  # any exception of a plugin's parser
        raise _broken(name, error) from None


def _name_problem(data: bytes) -> str:
    """Return what is wrong with what no format of pictures can be found in."""
    if not data:
        return "is empty"
    if data.startswith(b"%PDF-"):
        return "is a PDF, not a picture: give it as a document"
    return f"is not a picture of a known kind ({', '.join(_known_formats())})"


def upright_size(image: Image.Image, limits: MediaLimits, name: str) -> tuple[int, int]:
    """Return (height, width) of the image once it is upright, from its header: no pixel is decoded. Raises
    `RequestError`."""
    check_size(image.size, limits, name)
    width, height = image.size
    with _lock_of(image), logged_messages(name):
        # The size of a TIFF is upright already. A PNG without EXIF data in its header would be decoded to find some.
        is_told = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
        is_turned = is_told and _orientation(image) in _SIDEWAYS
    return (width, height) if is_turned else (height, width)


def image_of_array(array: npt.NDArray[Any]) -> Image.Image:
    """Return a uint8 array [H, W], [H, W, 3] or [H, W, 4] as an image. Raises `RequestError` for any other."""
    is_picture = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not is_picture or 0 in array.shape:
        raise RequestError(
            ErrorCode.INVALID_MEDIA,
            f"an array must be uint8 [H, W], [H, W, 3] or [H, W, 4] to be a picture, got {array.dtype} "
            f"{list(array.shape)}",
        )
    return Image.fromarray(array)


def check_size(size: tuple[int, int], limits: MediaLimits, name: str) -> None:
    """Raise `RequestError` unless `limits` allow a picture of this size (width, height)."""
    width, height = size
    if width * height > limits.max_pixels:
        raise _too_many_pixels(name, f"{width}x{height} pixels, more than {limits.max_pixels}")
    if not width or not height:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"{name} is {width}x{height} pixels: there is nothing to see")


def to_rgb(image: Image.Image, limits: MediaLimits, name: str, *, transparency: Transparency = "white") -> Image.Image:
    """Return `image` as RGB and upright: the same object if it is both already. Transparent parts become white; with
    "drop" they show the colour beneath. Raises `RequestError`."""
    check_size(image.size, limits, name)
    try:
        with _lock_of(image), logged_messages(name):
            image.load()
            transposition = _UPRIGHT.get(_orientation(image))
        return _turn(_convert(image, transparency), transposition)
    except MemoryError:
        raise RequestError(ErrorCode.OUT_OF_MEMORY, f"not enough memory to decode {name}") from None
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, … on damaged files
        raise _broken(name, error) from None


def to_png(image: Image.Image) -> bytes:
    """Return `image`, upright and with its transparency, as a PNG file. Raises `RequestError`."""
    try:
        with _lock_of(image):
            image.load()
            transposition = _UPRIGHT.get(_orientation(image))
        if image.mode not in _PNG_MODES:
            image = _to_rgba(image) if image.mode in _WITH_ALPHA else _convert(image, "white")
        file = io.BytesIO()
        _turn(image, transposition).save(file, format="PNG")
        return file.getvalue()
    except Exception as error:
        raise _broken("the PIL image", error) from None


def _turn(image: Image.Image, transposition: Image.Transpose | None) -> Image.Image:
    """Return `image` turned upright, without the metadata that held its orientation."""
    if transposition is None:
        return image
    turned = image.transpose(transposition)
    for key in _ORIENTED_BY:
        turned.info.pop(key, None)
    return turned


def _lock_of(image: Image.Image) -> threading.Lock:
    """Return the lock to hold while an image changes inside: several requests may hold the same image, not yet read."""
    return _LOCKS[id(image) // 64 % len(_LOCKS)]


@cache
def _known_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _orientation(image: Image.Image) -> int:
    # Some decoders turn the picture while they load it, and then drop the tag.
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged EXIF data does not make a picture unreadable
        return 1
    return value if isinstance(value, int) else 1


def _convert(image: Image.Image, transparency: Transparency) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        with_alpha = _to_rgba(image)
        return _on_white(with_alpha) if transparency == "white" else with_alpha.convert("RGB")
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bits(np.asarray(image), _whites_of(image))).convert("RGB")
    return image.convert("RGB")


def _to_rgba(image: Image.Image) -> Image.Image:
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")  # Pillow converts La to LA only


def _on_white(image: Image.Image) -> Image.Image:
    background = Image.new("RGB", image.size, (255, 255, 255))
    background.paste(image, mask=image.getchannel("A"))
    return background


def _whites_of(image: Image.Image) -> tuple[float, ...]:
    """Return the values that may mean white in a grey picture of more than 8 bits, ascending. Floats and 32-bit
    integers have no declared maximum; a PGM has one, and Pillow scales its values to 65535."""
    if image.mode == "F":
        return 1.0, 255.0, 65535.0
    return (255.0, 65535.0) if image.mode == "I" and image.format != "PPM" else (65535.0,)


def _to_8_bits(grey: npt.NDArray[np.generic], whites: tuple[float, ...]) -> npt.NDArray[np.uint8]:
    """Return grey values of more than 8 bits scaled to 0 … 255 and rounded. White is the first of `whites` that no
    value exceeds, or the largest value."""
    values = np.nan_to_num(grey.astype(np.float64))
    largest = float(values.max())
    white = next((step for step in whites if largest <= step), largest)
    scaled: npt.NDArray[np.uint8] = np.rint(values.clip(0, None) * (255.0 / white)).astype(np.uint8)
    return scaled


def _too_many_pixels(name: str, amount: str) -> RequestError:
    return RequestError(
        ErrorCode.MEDIA_TOO_LARGE, f"{name} has {amount}: send a smaller picture or raise MediaLimits.max_pixels"
    )


def _broken(name: str, error: Exception) -> RequestError:
    reason = str(error)[:120] or type(error).__name__
    return RequestError(ErrorCode.INVALID_MEDIA, f"{name} cannot be decoded, it is damaged or cut off: {reason}")
