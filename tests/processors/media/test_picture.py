from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps, PngImagePlugin

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.load import load_image, load_video
from seesay.processors.media.picture import Picture
from seesay.vl.utils import encode_image_base64

if TYPE_CHECKING:
    from processors.conftest import Frames


def read_size(content: Any, limits: MediaLimits, name: str) -> tuple[int, int]:
    size = Picture(content, limits=limits, name=name).size()
    return size.height, size.width


def pixels(source: object, **limits: Any) -> np.ndarray:
    image = load_image(source, limits=MediaLimits(**limits))
    assert isinstance(image, Image.Image) and image.mode == "RGB"
    return np.asarray(image)


def test_rgb_formats(encode: Callable[..., bytes], picture: Frames) -> None:
    for kind in ("PNG", "BMP", "TIFF", "PPM"):
        np.testing.assert_array_equal(pixels(encode(picture, kind)), picture, err_msg=kind)
    np.testing.assert_array_equal(pixels(encode(picture, "WEBP", lossless=True)), picture)
    for kind, options in (
        ("JPEG", {"quality": 98, "subsampling": 0}),
        ("AVIF", {"quality": 98}),
        ("WEBP", {"quality": 98}),
    ):
        assert np.abs(pixels(encode(picture, kind, **options)).astype(int) - picture).mean() < 2, kind


# How a camera that was held so stores the upright picture, by the EXIF orientation that it writes.
STORED: dict[int, Callable[[Any], Any]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: np.rot90(a, -1),
}
WITH_EXIF = ["JPEG", "MPO", "PNG", "WEBP", "TIFF", "AVIF"]


def encode_turned(encode: Callable[..., bytes], picture: Any, kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    sharp: dict[str, Any] = {"quality": 98, "subsampling": 0}
    options = {"JPEG": sharp, "MPO": sharp, "WEBP": {"lossless": True}, "AVIF": {"quality": 98}}.get(kind, {})
    return encode(np.ascontiguousarray(STORED[orientation](picture)), kind, exif=exif, **options)


@pytest.mark.parametrize("kind", WITH_EXIF)
@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation(encode: Callable[..., bytes], picture: Frames, orientation: int, kind: str) -> None:
    data = encode_turned(encode, picture, kind, orientation)
    upright = pixels(data)
    assert upright.shape == picture.shape
    assert np.abs(upright.astype(int) - picture).mean() < 2
    # The same for a PIL image that the user opened.
    np.testing.assert_array_equal(pixels(Image.open(io.BytesIO(data))), upright)


@pytest.mark.parametrize("kind", WITH_EXIF)
@pytest.mark.parametrize("orientation", STORED)
def test_a_loaded_picture_is_not_turned_again(
    encode: Callable[..., bytes], picture: Frames, orientation: int, kind: str
) -> None:
    """Neither by us nor by what else reads EXIF data: the orientation has been applied, so it is no longer there."""
    loaded = load_image(encode_turned(encode, picture, kind, orientation))
    upright = np.asarray(loaded).copy()
    np.testing.assert_array_equal(pixels(loaded), upright)
    np.testing.assert_array_equal(pixels(loaded.copy()), upright)
    assert read_size(loaded, MediaLimits(), "it") == upright.shape[:2]
    np.testing.assert_array_equal(np.asarray(ImageOps.exif_transpose(loaded)), upright)
    np.testing.assert_array_equal(load_video([loaded, loaded.copy()]).frames, [upright, upright])


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG", "TIFF"])
def test_orientation_in_xmp_data(encode: Callable[..., bytes], picture: Frames, kind: str) -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    stored = np.ascontiguousarray(STORED[6](picture))
    if kind == "PNG":
        about = PngImagePlugin.PngInfo()
        about.add_itxt("XML:com.adobe.xmp", xmp.decode())
        data = encode(stored, kind, pnginfo=about)
    elif kind == "TIFF":
        data = encode(stored, kind, tiffinfo={700: xmp})
    else:
        data = encode(stored, kind, xmp=xmp, **({"quality": 98} if kind == "JPEG" else {"lossless": True}))
    loaded = load_image(data)
    assert np.abs(np.asarray(loaded).astype(int) - picture).mean() < 3
    np.testing.assert_array_equal(pixels(loaded), np.asarray(loaded))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "YCbCr", "I", "F"])
def test_base64_text_of_a_pil_image_shows_the_same(encode: Callable[..., bytes], picture: Frames, mode: str) -> None:
    """The text is a PNG without EXIF data, so the picture in it must be upright."""
    opened = Image.open(io.BytesIO(encode_turned(encode, picture, "JPEG", 6)))
    image = opened.convert(mode)
    image.info = dict(opened.info)
    np.testing.assert_array_equal(pixels(encode_image_base64(image)), pixels(image))


def test_grey_and_bilevel(encode: Callable[..., bytes], picture: Frames) -> None:
    grey = picture[..., 0]
    np.testing.assert_array_equal(pixels(encode(grey)), np.repeat(grey[..., None], 3, axis=2))
    bilevel = Image.fromarray((grey > 128).astype(np.uint8) * 255).convert("1")
    assert set(np.unique(pixels(encode(bilevel)))) == {0, 255}


def test_palette(encode: Callable[..., bytes], picture: Frames) -> None:
    indexed = Image.fromarray(picture).quantize(64)
    np.testing.assert_array_equal(pixels(encode(indexed)), np.asarray(indexed.convert("RGB")))


def test_transparency_is_white(encode: Callable[..., bytes]) -> None:
    rgba = np.zeros((2, 3, 4), dtype=np.uint8)
    rgba[..., 0] = 200
    rgba[0, :, 3] = [0, 255, 51]
    expected = [[255, 255, 255], [200, 0, 0], [244, 204, 204]]
    np.testing.assert_array_equal(pixels(encode(Image.fromarray(rgba)))[0], expected)
    grey_alpha = Image.fromarray(rgba).convert("LA")
    assert pixels(encode(grey_alpha))[1].max() == 255
    assert pixels(encode(grey_alpha))[0, 0].tolist() == [255, 255, 255]
    indexed = Image.new("P", (2, 1))
    indexed.putpalette([0, 0, 0, 9, 8, 7])
    indexed.putpixel((1, 0), 1)
    assert pixels(encode(indexed, transparency=0)).tolist() == [[[255, 255, 255], [9, 8, 7]]]
    keyed = Image.new("RGB", (2, 1), (1, 2, 3))
    keyed.putpixel((1, 0), (9, 9, 9))
    assert pixels(encode(keyed, transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [9, 9, 9]]]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA", "RGBa", "La", "RGB"])
def test_transparency_can_be_dropped(encode: Callable[..., bytes], mode: str) -> None:
    """The colour beneath is what Pillow's own conversion shows."""
    rgba = np.random.default_rng(0).integers(0, 256, (5, 7, 4), dtype=np.uint8)
    image = Image.fromarray(rgba)
    if mode in ("P", "PA"):
        image = Image.fromarray(rgba[..., :3]).quantize(8).convert(mode)
        if mode == "PA":
            image.putalpha(Image.fromarray(rgba[..., 3]))
        else:
            image.info["transparency"] = 0
    elif mode == "RGB":
        image = Image.fromarray(rgba[..., :3])
        image.info["transparency"] = tuple(rgba[0, 0, :3].tolist())
    elif mode in ("RGBa", "La"):
        image = image.convert("RGBA" if mode == "RGBa" else "LA").convert(mode)
    else:
        image = image.convert(mode)
    dropped = load_image(image, transparency="drop")
    as_pillow = image.convert({"RGBa": "RGBA", "La": "LA"}.get(mode, mode)).convert("RGB")
    np.testing.assert_array_equal(np.asarray(dropped), np.asarray(as_pillow))
    assert not np.array_equal(np.asarray(dropped), pixels(image))
    np.testing.assert_array_equal(pixels(dropped), np.asarray(dropped))  # nothing is left to put on white


def test_transparency_of_frames(encode: Callable[..., bytes]) -> None:
    rgba = np.full((4, 4, 4), 77, dtype=np.uint8)
    sources = [rgba, Image.fromarray(rgba), encode(Image.fromarray(rgba))]
    assert (load_video(sources, transparency="drop").frames == 77).all()
    assert (load_video(sources).frames > 77).all()


@pytest.mark.parametrize("load", [load_image, load_video])
def test_transparency_is_checked(load: Any, picture: Frames) -> None:
    with pytest.raises(RequestError, match="transparency must be 'white' or 'drop', got 'black'") as raised:
        load([picture] if load is load_video else picture, transparency="black")
    assert raised.value.param == "transparency"


def test_cmyk_jpeg(encode: Callable[..., bytes], picture: Frames) -> None:
    data = encode(Image.fromarray(picture).convert("CMYK"), "JPEG", quality=98)
    assert Image.open(io.BytesIO(data)).mode == "CMYK"
    assert np.abs(pixels(data).astype(int) - picture).mean() < 3


def test_16_bit_grey_is_scaled_and_rounded(encode: Callable[..., bytes]) -> None:
    values = np.array([[0, 128, 129, 256, 32768, 65407, 65535]], dtype=np.uint16)
    expected = np.rint(values / 257).astype(np.uint8)
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(pixels(encode(Image.fromarray(values), kind))[..., 0], expected)
    wide = Image.fromarray(values.astype(np.int32))
    np.testing.assert_array_equal(pixels(encode(wide, "TIFF"))[..., 0], expected)


def test_32_bit_integers_of_8_bits(encode: Callable[..., bytes], picture: Frames) -> None:
    grey = picture[..., 0]
    assert grey.max() > 200
    wide = Image.fromarray(grey.astype(np.int32))
    assert wide.mode == "I"
    for source in (wide, encode(wide, "TIFF"), Image.fromarray(grey).convert("I")):
        np.testing.assert_array_equal(pixels(source)[..., 0], grey)
    # White is what the largest value allows: 8 bits, 16 bits, or the value itself.
    for white in (255, 65535, 1_000_000):
        values = np.linspace(0, white, 6).astype(np.int32)[None]
        assert pixels(Image.fromarray(values))[0, :, 0].tolist() == [0, 51, 102, 153, 204, 255]
    assert pixels(Image.fromarray(np.array([[-5, 0, 255]], dtype=np.int32)))[0, :, 0].tolist() == [0, 0, 255]


def test_a_dark_16_bit_picture_stays_dark(encode: Callable[..., bytes]) -> None:
    """A file that says it has 16 bits is believed, however small its values are."""
    values = np.array([[0, 100, 255]], dtype=np.uint16)
    header = b"P5\n3 1\n65535\n"
    for data in (encode(Image.fromarray(values)), header + values.astype(">u2").tobytes()):
        assert pixels(data)[0, :, 0].tolist() == [0, 0, 1]


def test_floats(encode: Callable[..., bytes]) -> None:
    for white in (1.0, 255.0, 65535.0, 1e6):
        values = np.linspace(0, white, 6, dtype=np.float32)[None]
        assert pixels(encode(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == [0, 51, 102, 153, 204, 255]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_an_animation(encode: Callable[..., bytes], kind: str) -> None:
    frames = [Image.new("RGB", (8, 6), color) for color in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert pixels(data).tolist() == np.asarray(frames[0]).tolist()


def test_sources_of_one_picture(encode: Callable[..., bytes], picture: Frames, png_file: Path) -> None:
    data = png_file.read_bytes()
    text = base64.b64encode(data).decode()
    sources = [
        data, bytearray(data), memoryview(data), png_file, str(png_file), text, text.rstrip("="),
        text[:40] + "\n" + text[40:],
        f"data:image/png;base64,{text}", f"DATA:image/png;charset=x;BASE64,{text}", picture, Image.fromarray(picture),
        f"data:;base64,{base64.urlsafe_b64encode(data).decode()}",
        "data:image/png," + "".join(f"%{byte:02x}" for byte in data),
    ]  # fmt: skip
    for source in sources:
        np.testing.assert_array_equal(pixels(source), picture)


def test_a_fitting_image_is_not_copied(picture: Frames) -> None:
    image = Image.fromarray(picture)
    assert load_image(image) is image


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_an_image_that_is_not_read_yet_may_be_used_by_several_threads(encode: Callable[..., bytes], kind: str) -> None:
    source = np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    data = encode(source, kind, **({"lossless": True} if kind == "WEBP" else {}))

    def read(image: Any) -> Any:
        read_size(image, MediaLimits(), "it")
        return pixels(image)

    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            image = Image.open(io.BytesIO(data))
            for found in threads.map(read, [image] * 8):
                np.testing.assert_array_equal(found, source)


def bomb(width: int, height: int) -> bytes:
    """A PNG of one colour that claims to be large, and is."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = zlib.compressobj(9)
    body = b"".join(rows.compress(bytes((width + 7) // 8 + 1)) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def refusal(source: object, **limits: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        load_image(source, limits=MediaLimits(**limits))
    return raised.value


def test_a_pdf_that_is_given_as_a_picture_is_called_one() -> None:
    error = refusal(b"%PDF-1.7\n...")
    assert error.code is ErrorCode.INVALID_MEDIA and "is a PDF, not a picture: give it as a document" in str(error)


def test_huge_picture_is_refused_from_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bomb(10_000, 10_000)
    assert len(data) < 40_000
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("was decoded"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**9)
    error = refusal(data, max_pixels=50_000_000)
    assert error.code is ErrorCode.MEDIA_TOO_LARGE
    assert "10000x10000" in error.message and "max_pixels" in error.message


def test_pillows_own_limit_is_a_request_error() -> None:
    error = refusal(bomb(30_000, 30_000), max_pixels=10**10)
    assert error.code is ErrorCode.MEDIA_TOO_LARGE and "MAX_IMAGE_PIXELS" in error.message


def test_cut_off_pictures(encode: Callable[..., bytes], picture: Frames) -> None:
    rng = np.random.default_rng(0)
    noisy = rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"):
        data = encode(noisy, kind)
        error = refusal(data[: len(data) // 2])
        assert error.code is ErrorCode.INVALID_MEDIA and (
            "damaged" in error.message or "known kind" in error.message
        ), kind


def test_damaged_pictures_never_raise_anything_else(encode: Callable[..., bytes], picture: Frames) -> None:
    rng = np.random.default_rng(7)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"):
        data = np.frombuffer(encode(picture, kind), dtype=np.uint8)
        for _ in range(30):
            damaged = data.copy()
            damaged[rng.integers(0, len(data), 6)] = rng.integers(0, 256, 6)
            try:
                load_image(damaged.tobytes(), limits=MediaLimits(max_pixels=1_000_000))
            except RequestError as error:
                assert error.code in (ErrorCode.INVALID_MEDIA, ErrorCode.MEDIA_TOO_LARGE)


@pytest.mark.parametrize(
    "content", [b"just some text", b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0"]
)
def test_what_is_no_picture(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    for source in (path, content):
        error = refusal(source)
        assert error.code is ErrorCode.INVALID_MEDIA
        assert "empty" in error.message if not content else "PNG, JPEG" in error.message


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros(3, np.uint8)]
)
def test_arrays_that_are_no_picture(array: Any) -> None:
    assert "to be a picture" in refusal(array).message


def test_empty_image() -> None:
    assert "nothing to see" in refusal(Image.new("RGB", (0, 5))).message


# --- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF", "BMP", "GIF", "PPM"])
def test_sizes_are_read_without_decoding(
    encode: Callable[..., bytes], picture: Frames, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upright sizes, for every way a camera may have been held."""
    orientations = range(1, 9) if kind in ("PNG", "JPEG", "WEBP", "TIFF", "AVIF") else (1,)
    for orientation in orientations:
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encode(picture, kind, **({"exif": exif} if len(orientations) > 1 else {}))
        expected = np.asarray(load_image(data)).shape[:2]
        with monkeypatch.context() as patch:
            patch.setattr(ImageFile.ImageFile, "load", lambda *_: pytest.fail("a pixel was decoded"))
            assert read_size(data, MediaLimits(), "it") == expected, (kind, orientation)


def test_sizes_of_pictures_beyond_the_limit_are_not_told(encode: Callable[..., bytes], picture: Frames) -> None:
    with pytest.raises(RequestError) as raised:
        read_size(encode(picture), MediaLimits(max_pixels=60 * 40 - 1), "it")
    assert raised.value.code is ErrorCode.MEDIA_TOO_LARGE and "it has 60x40 pixels" in raised.value.message
