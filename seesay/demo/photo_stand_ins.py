"""Makes pictures that no scene draws, in place of photos: textures, landscapes, portraits, collages, pages, screens.

Nothing is downloaded and nothing real is shown. The pictures imitate what photos have and drawings lack: a spectrum
that falls as 1/f, objects that hide one another (dead leaves), shading, blur, grain, and many lines of small text.
"""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageStat

from seesay.demo.drawing import Picture, Size, text_font
from seesay.demo.vocabulary import RGB, WORDS

Field = npt.NDArray[np.float32]
FIELD_PX = 512
NUM_FIELDS = 40
LEAST_DEVIATION = 6.0


@functools.lru_cache(maxsize=NUM_FIELDS)
def _base_field(index: int) -> Field:
    """Return noise whose amplitude falls as a power of its frequency: [FIELD_PX, FIELD_PX], mean 0, deviation 1."""
    rng = np.random.default_rng(index)
    exponent = (0.6, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 3.0)[index % 8]
    fy, fx = np.fft.fftfreq(FIELD_PX)[:, None], np.fft.rfftfreq(FIELD_PX)[None]
    stretch = rng.uniform(0.4, 2.5) if index % 3 == 0 else 1.0
    frequency = np.sqrt((fx * stretch) ** 2 + fy**2)
    frequency[0, 0] = 1.0
    noise = rng.normal(size=frequency.shape) + 1j * rng.normal(size=frequency.shape)
    field: Field = np.fft.irfft2(noise / frequency**exponent, s=(FIELD_PX, FIELD_PX)).astype(np.float32)
    field = (field - field.mean()) / field.std()
    return field


def _field(rng: random.Random, size: Size) -> Field:
    """Return a piece of a noise field, [height, width], turned and scaled at random."""
    width, height = size
    field = _base_field(rng.randrange(NUM_FIELDS))
    if rng.random() < 0.5:
        field = field.T
    stride = 2 if max(size) * 2 < FIELD_PX and rng.random() < 0.3 else 1
    field = np.tile(field, (2, 2)) if max(size) * stride > FIELD_PX else field
    x = rng.randrange(field.shape[1] - width * stride + 1)
    y = rng.randrange(field.shape[0] - height * stride + 1)
    piece = field[y : y + height * stride : stride, x : x + width * stride : stride]
    return piece[:: rng.choice((1, -1)), :: rng.choice((1, -1))]


def _any_rgb(rng: random.Random) -> RGB:
    """Return any colour, mostly a dull natural one."""
    if rng.random() < 0.3:
        return rng.randrange(256), rng.randrange(256), rng.randrange(256)
    level = rng.randrange(20, 240)
    red, green, blue = (min(255, max(0, level + rng.randint(-45, 45))) for _ in range(3))
    return red, green, blue


def _image(values: npt.NDArray[np.float32]) -> Image.Image:
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def _texture(rng: random.Random, size: Size) -> Image.Image:
    """Return a coloured surface: one field for its light, weaker ones for its tint."""
    light = _field(rng, size)[..., None]
    tint = np.stack([_field(rng, size) for _ in range(2)], axis=-1) @ np.array(
        [[rng.uniform(-14, 14) for _ in range(3)] for _ in range(2)], np.float32
    )
    return _image(np.array(_any_rgb(rng), np.float32) + light * rng.uniform(18, 55) + tint)


def _leaves(rng: random.Random, size: Size) -> Image.Image:
    """Return dead leaves: blobs of all sizes that hide one another."""
    image = Image.new("RGB", size, _any_rgb(rng))
    draw = ImageDraw.Draw(image)
    side = min(size)
    palette = [_any_rgb(rng) for _ in range(rng.randint(3, 20))]
    for _ in range(rng.randint(25, 160)):
        radius = side * 0.03 * min(12.0, rng.paretovariate(1.1))
        x, y = rng.uniform(0, size[0]), rng.uniform(0, size[1])
        a, b = radius * rng.uniform(0.4, 1.6), radius * rng.uniform(0.4, 1.6)
        fill = rng.choice(palette)
        if rng.random() < 0.6:
            draw.ellipse((x - a, y - b, x + a, y + b), fill=fill)
        else:
            corners = [
                (x + a * rng.uniform(-1.3, 1.3), y + b * rng.uniform(-1.3, 1.3)) for _ in range(rng.randint(3, 6))
            ]
            draw.polygon(corners, fill=fill)
    return image


def _landscape(rng: random.Random, size: Size) -> Image.Image:
    """Return layers of ground under a sky that fades."""
    width, height = size
    top, low = np.array(_any_rgb(rng), np.float32), np.array(_any_rgb(rng), np.float32)
    fade = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    sky = top * (1 - fade) + low * fade + _field(rng, size)[..., None] * rng.uniform(2, 22)
    values = np.broadcast_to(sky, (height, width, 3)).copy()
    rows = np.arange(height, dtype=np.float32)[:, None]
    for layer in range(rng.randint(1, 4)):
        ridge = height * (rng.uniform(0.3, 0.6) + 0.13 * layer) + _field(rng, (width, 4))[0] * height * 0.06
        ground = np.asarray(_texture(rng, size), np.float32)
        values = np.where((rows > ridge)[..., None], ground, values)
    return _image(values)


def _portrait(rng: random.Random, size: Size) -> Image.Image:
    """Return a few large shaded masses before a soft background."""
    image = rng.choice((_texture, _leaves, _landscape))(rng, size).filter(ImageFilter.GaussianBlur(rng.uniform(3, 9)))
    width, height = size
    for _ in range(rng.randint(1, 5)):
        mask = Image.new("L", size)
        a, b = width * rng.uniform(0.1, 0.4), height * rng.uniform(0.1, 0.45)
        x, y = width * rng.uniform(0.2, 0.8), height * rng.uniform(0.2, 0.9)
        ImageDraw.Draw(mask).ellipse((x - a, y - b, x + a, y + b), fill=255)
        skin = _shaded(rng, rng.choice((_texture, _leaves))(rng, size))
        image.paste(skin, mask=mask.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 5))))
    return image


def _shaded(rng: random.Random, image: Image.Image) -> Image.Image:
    """Return the image lit from one side."""
    width, height = image.size
    x = np.linspace(-1, 1, width, dtype=np.float32)[None] * rng.uniform(-1, 1)
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None] * rng.uniform(-1, 1)
    light = 1 + rng.uniform(0.2, 0.6) * (x + y) + 0.1 * _field(rng, image.size)
    return _image(np.asarray(image, np.float32) * light[..., None])


def _collage(rng: random.Random, size: Size) -> Image.Image:
    """Return surfaces that meet along the level lines of a field, or in rectangles."""
    image = _texture(rng, size)
    for _ in range(rng.randint(1, 4)):
        other = rng.choice((_texture, _leaves, _landscape, _blank))(rng, size)
        if rng.random() < 0.5:
            inside = np.abs(_field(rng, size) - rng.uniform(-1, 1)) < rng.uniform(0.2, 0.8)
            image.paste(other, mask=Image.fromarray(inside.astype(np.uint8) * 255))
        else:
            width, height = (max(8, int(side * rng.uniform(0.2, 0.8))) for side in size)
            x, y = rng.randint(0, max(0, size[0] - width)), rng.randint(0, max(0, size[1] - height))
            image.paste(other.crop((0, 0, width, height)), (x, y))
    return image


def _blank(rng: random.Random, size: Size) -> Image.Image:
    """Return a surface of nearly one colour, like a wall, a table or the sky."""
    light = np.array(_any_rgb(rng), np.float32) + np.zeros((size[1], size[0], 3), np.float32)
    return _shaded(rng, _image(light))


def _lines_of_text(rng: random.Random, draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], ink: RGB) -> None:
    """Fill `box` with lines of small words."""
    left, top, right, bottom = box
    size_px = rng.randint(6, 13)
    font, step = text_font(size_px), int(size_px * rng.uniform(1.15, 1.7)) + 1
    y = top
    while y + size_px < bottom:
        reach = right if rng.random() < 0.75 else left + int((right - left) * rng.uniform(0.2, 0.9))
        words = " ".join(rng.choice(WORDS) for _ in range(max(1, (reach - left) // (size_px * 3))))
        draw.text((left, y), words, font=font, fill=ink)
        y += step * (2 if rng.random() < 0.12 else 1)


def _page(rng: random.Random, size: Size) -> Image.Image:
    """Return a page of print: columns of lines, headings, perhaps a picture; perhaps badly lit."""
    width, height = size
    paper = rng.choice(((255, 255, 255), (250, 248, 240), (235, 230, 215), (245, 245, 245), (30, 30, 34)))
    ink = (225, 225, 225) if paper[0] < 100 else rng.choice(((0, 0, 0), (40, 40, 40), (70, 60, 50), (20, 30, 90)))
    image = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(image)
    margin, columns = rng.randint(4, 22), rng.choice((1, 1, 1, 2, 3))
    top = margin
    if rng.random() < 0.5:
        heading = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3))).capitalize()
        size_px = rng.randint(13, 24)
        draw.text((margin, top), heading, font=text_font(size_px), fill=ink)
        top += size_px + rng.randint(5, 14)
    column = (width - 2 * margin) // columns
    for i in range(columns):
        left = margin + i * column
        _lines_of_text(rng, draw, (left, top, left + column - 8, height - margin), ink)
    if rng.random() < 0.25:
        inset = rng.choice((_texture, _landscape, _leaves))(rng, size)
        inset = inset.resize((max(8, width // rng.randint(2, 4)), max(8, height // rng.randint(2, 4))))
        image.paste(inset, (rng.randint(0, width - inset.width), rng.randint(0, height - inset.height)))
    if rng.random() < 0.5:
        image = _shaded(rng, image)
    if rng.random() < 0.3:
        image = image.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR, fillcolor=_any_rgb(rng))
    return image


def _screen(rng: random.Random, size: Size) -> Image.Image:
    """Return windows with bars, buttons, panels and small text."""
    width, height = size
    dark = rng.random() < 0.4
    image = Image.new("RGB", size, (28, 30, 36) if dark else (240, 242, 245))
    draw = ImageDraw.Draw(image)
    for _ in range(rng.randint(3, 8)):
        w, h = rng.randint(width // 6, max(width // 6, width * 3 // 4)), rng.randint(12, max(13, height * 2 // 3))
        x, y = rng.randint(-4, max(0, width - w)), rng.randint(-4, max(0, height - h))
        level = rng.randint(30, 80) if dark else rng.randint(200, 255)
        draw.rectangle((x, y, x + w, y + h), fill=(level, level, min(255, level + 8)), outline=_any_rgb(rng))
        draw.rectangle((x, y, x + w, y + rng.randint(5, 11)), fill=_any_rgb(rng))
        _lines_of_text(rng, draw, (x + 5, y + 14, x + w - 5, y + h - 3), (210,) * 3 if dark else (40,) * 3)
    for _ in range(rng.randint(0, 8)):
        x, y = rng.randint(0, width), rng.randint(0, height)
        draw.rounded_rectangle((x, y, x + rng.randint(10, 50), y + rng.randint(8, 20)), 4, fill=_any_rgb(rng))
    return image


def _pattern(rng: random.Random, size: Size) -> Image.Image:
    """Return stripes, waves, checks or bare noise."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    kind = rng.randrange(4)
    if kind == 3:
        generator = np.random.default_rng(rng.randrange(1 << 30))
        return _image(
            generator.normal(rng.uniform(60, 200), rng.uniform(15, 90), (height, width, 3)).astype(np.float32)
        )
    fx, fy = rng.uniform(-0.5, 0.5), rng.uniform(-0.5, 0.5)
    phase = x * fx + y * fy + (_field(rng, size) * rng.uniform(0, 3) if rng.random() < 0.6 else 0)
    wave = (
        np.sin(phase) if kind == 0 else np.sign(np.sin(phase)) if kind == 1 else np.sin(phase) * np.sin(x * fy - y * fx)
    )
    one, other = np.array(_any_rgb(rng), np.float32), np.array(_any_rgb(rng), np.float32)
    return _image(one + (other - one) * (wave[..., None] + 1) / 2)


_Maker = Callable[[random.Random, Size], Image.Image]
_MAKERS: tuple[tuple[_Maker, int], ...] = (
    (_texture, 2), (_leaves, 4), (_landscape, 4), (_portrait, 6), (_collage, 4), (_page, 3), (_screen, 2),
    (_pattern, 1), (_blank, 0),
)  # fmt: skip
_ALREADY_SHARP = (_page, _screen, _pattern)


def _make_image(rng: random.Random, size: Size) -> Image.Image:
    makers, weights = zip(*_MAKERS, strict=True)
    make: _Maker = rng.choices(makers, weights)[0]
    # Half the size takes a quarter of the time; the detail that is lost is also lost in photos.
    is_soft = make not in _ALREADY_SHARP and rng.random() < 0.65
    image: Image.Image = make(rng, (size[0] // 2, size[1] // 2) if is_soft else size)
    if is_soft:
        image = image.resize(size, rng.choice((Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)))
    if make not in _ALREADY_SHARP:
        if not is_soft and rng.random() < 0.5:
            image = _shaded(rng, image)
        if rng.random() < 0.5:
            image = image.filter(ImageFilter.GaussianBlur(rng.choice((0.6, 1.0, 1.5, 3.0))))
    return _degraded(rng, image)


def _degraded(rng: random.Random, image: Image.Image) -> Image.Image:
    """Return a picture that may have lost its colours, and have grain and the blocks of a JPEG."""
    if rng.random() < 0.12:
        image = image.convert("L").convert("RGB")
    if rng.random() < 0.4:
        shape = (image.height, image.width, 1)
        grain = np.random.default_rng(rng.randrange(1 << 30)).normal(0, rng.uniform(2, 14), shape)
        image = _image(np.asarray(image, np.float32) + grain.astype(np.float32))
    if rng.random() < 0.25:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(25, 90))
        image = Image.open(buffer).convert("RGB")
    return image


def _make_busy_image(rng: random.Random, size: Size) -> Image.Image:
    """Return an image that does not look like a picture of a single colour."""
    while True:
        image = _make_image(rng, size)
        if max(ImageStat.Stat(image).stddev) > LEAST_DEVIATION:
            return image


def make_stand_in(rng: random.Random, size: Size) -> Picture:
    """Return a picture of `size` that no scene draws, with nothing in it to name."""
    return Picture(image=_make_busy_image(rng, size), marks=())


def make_clip_stand_in(rng: random.Random, size: Size) -> tuple[Picture, ...]:
    """Return the frames of a camera that moves over a still view, zooms, or shakes."""
    width, height = size
    view = _make_busy_image(rng, (round(width * 1.5), round(height * 1.5)))
    num_frames = rng.choice((4, 5, 6, 7, 8))
    x, y = rng.uniform(0, view.width - width), rng.uniform(0, view.height - height)
    step_x, step_y = ((rng.uniform(-0.5, 0.5) * side / num_frames) for side in size)
    frames = []
    for _ in range(num_frames):
        left = round(min(max(0.0, x), view.width - width))
        top = round(min(max(0.0, y), view.height - height))
        frames.append(Picture(image=view.crop((left, top, left + width, top + height)), marks=()))
        x, y = x + step_x + rng.uniform(-1, 1), y + step_y + rng.uniform(-1, 1)
    return tuple(frames)
