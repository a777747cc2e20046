"""Draws boxes, points and polygons on a picture."""

from __future__ import annotations

from PIL import Image, ImageDraw, ImageFont

from seesay.values.shapes import Box, Point, Polygon, Shapes

_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#f032e6")


def draw_shapes(picture: Image.Image, shapes: Shapes, index: int = 0) -> Image.Image:
    """Return a copy of the picture with this index, with its shapes and their labels. Equal labels have one color."""
    drawn = picture.convert("RGB").copy()
    pen = ImageDraw.Draw(drawn)
    width = max(2, min(drawn.size) // 200)
    size = max(10, min(drawn.size) // 30)
    font = ImageFont.load_default(size)
    colors: dict[str, str] = {}
    drawn_shapes: list[Box | Polygon | Point] = [*shapes.boxes, *shapes.polygons, *shapes.points]
    for shape in drawn_shapes:
        if shape.picture != index:
            continue
        color = colors.setdefault(shape.label, _COLORS[len(colors) % len(_COLORS)])
        x, y = _draw(pen, shape, color, width)
        if shape.label:
            place = (x, max(0.0, y - size - 2 * width))
            pen.rectangle(pen.textbbox(place, shape.label[:60], font=font), fill=color)
            pen.text(place, shape.label[:60], fill="white", font=font)
    return drawn


def _draw(pen: ImageDraw.ImageDraw, shape: Box | Polygon | Point, color: str, width: int) -> tuple[float, float]:
    """Draw a shape, and return the place of its label."""
    match shape:
        case Box():
            pen.rectangle((shape.left, shape.top, shape.right, shape.bottom), outline=color, width=width)
            return shape.left, shape.top
        case Polygon():
            pen.line((*shape.corners, shape.corners[0]), fill=color, width=width)
            return min(shape.corners, key=lambda corner: corner[1])
        case Point():
            radius = 3 * width
            pen.circle((shape.x, shape.y), radius, outline=color, width=width)
            return shape.x + radius, shape.y - radius
