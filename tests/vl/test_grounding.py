"""Boxes, points and polygons of answers, in pixels of the picture that the user gave."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from PIL import Image

from seesay import load_image
from seesay.engine.front.response import Response
from seesay.values import MediaReport, Modality
from seesay.vl.grounding import find_shapes


def make_report(width: int = 1000, height: int = 500, **fields: Any) -> MediaReport:
    given = {
        "modality": Modality.IMAGE, "num_frames": 1, "height": height, "width": width, "resized_height": height,
        "resized_width": width, "num_tiles": 1, "num_patches": 1, "num_tokens": 1, "is_cached": False,
    }  # fmt: skip
    return MediaReport(**{**given, **fields})


# One box, (100, 50) to (300, 250) of a picture of 1000 x 500, in the formats of models.
ONE_BOX = {
    "Qwen3-VL": '```json\n[{"bbox_2d": [100, 100, 300, 500], "label": "cat"}]\n```',
    "GLM": '{"bbox_2d": [100, 100, 300, 500], "label": "cat"}',
    "cut off": '```json\n[{"bbox_2d": [100, 100, 300, 500], "label": "cat"}, {"bbox_2d": [10, 2',
    "InternVL": "<ref>cat</ref><box>[[100, 100, 300, 500]]</box>",
    "InternVL without special tokens": "cat[[100, 100, 300, 500]]",
    "GLM in tags": "cat <|begin_of_box|>[[100,100,300,500]]<|end_of_box|>",
    "Qwen-VL": "<ref>cat</ref><box>(100,100),(300,500)</box>",
    "Qwen2-VL": "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(100,100),(300,500)<|box_end|>",
    "Qwen2-VL without special tokens": "cat(100,100),(300,500)",
}
NEAR_BOX = {
    "DeepSeek-VL2": ("<|ref|>cat<|/ref|><|det|>[[100, 100, 300, 500]]<|/det|>", 1),
    "PaliGemma": ("<loc0102><loc0102><loc0512><loc0307> cat", 1),
    "PaliGemma with a mask": ("<loc0102><loc0102><loc0512><loc0307><seg001><seg002> cat", 1),
    "Florence-2": ("cat<loc_100><loc_100><loc_300><loc_500>", 1),
    "Kosmos-2": ("<phrase>cat</phrase><object><patch_index_0099><patch_index_0521></object>", 1000 / 32),
}


@pytest.mark.parametrize("text", ONE_BOX.values(), ids=ONE_BOX)
def test_formats_that_say_the_same(text: str) -> None:
    [box] = find_shapes(text, [make_report()]).boxes
    assert (box.label, box.picture) == ("cat", 0)
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx((100, 50, 300, 250))


@pytest.mark.parametrize(("text", "error"), NEAR_BOX.values(), ids=NEAR_BOX)
def test_formats_of_other_grids_are_right_within_a_cell(text: str, error: float) -> None:
    [box] = find_shapes(text, [make_report()]).boxes
    assert box.label == "cat"
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx((100, 50, 300, 250), abs=error)


def test_pixels_of_the_resized_picture_are_made_those_of_the_picture() -> None:
    """Qwen2.5-VL counts pixels of what it sees."""
    report = make_report(1000, 500, resized_width=504, resized_height=252, coordinates="pixel")
    [box] = find_shapes('[{"bbox_2d": [252, 126, 504, 252], "label": "x"}]', [report]).boxes
    assert (box.left, box.top, box.right, box.bottom) == pytest.approx((500, 250, 1000, 500))


def test_points_of_molmo_and_qwen() -> None:
    text = '<points x1="10.0" y1="20.0" x2="50.5" y2="40" alt="cats">cats</points>'
    points = find_shapes(text, [make_report()]).points
    assert [(p.x, p.y, p.label) for p in points] == [(100, 100, "cats"), (505, 200, "cats")]
    [point] = find_shapes(' <point x="10.0" y="20.0" alt="cat">cat</point>', [make_report()]).points
    assert (point.x, point.y) == (100, 100)
    [point] = find_shapes('[{"point_2d": [100, 200], "label": "cat"}]', [make_report()]).points
    assert (point.x, point.y) == (100, 100)


def test_polygons() -> None:
    [quad] = find_shapes("<quad>(0,0),(1000,0),(1000,1000),(0,1000)</quad>", [make_report()]).polygons
    assert list(map(list, quad.corners)) == [[0, 0], [1000, 0], [1000, 500], [0, 500]]
    [polygon] = find_shapes("a<loc_0><loc_0><loc_10><loc_0><loc_10><loc_10>", [make_report()]).polygons
    assert polygon.label == "a" and len(polygon.corners) == 3


def test_several_boxes_and_labels() -> None:
    text = "<ref>a</ref><box>[[0,0,10,10],[20,20,30,30]]</box> and <ref>b</ref><box>[[40,40,50,50]]</box>"
    assert [box.label for box in find_shapes(text, [make_report()]).boxes] == ["a", "a", "b"]
    text = "<loc0000><loc0000><loc0010><loc0010> a ; <loc0100><loc0100><loc0110><loc0110> b"
    assert [box.label for box in find_shapes(text, [make_report()]).boxes] == ["a", "b"]


def test_the_last_picture_is_meant_or_the_one_that_is_named() -> None:
    media = [make_report(100, 100), make_report(200, 200)]
    [box] = find_shapes('{"bbox_2d": [0, 0, 500, 500], "label": "a"}', media).boxes
    assert (box.picture, box.right) == (1, 100)
    [box] = find_shapes('{"bbox_2d": [0, 0, 500, 500], "label": "a", "picture": 0}', media).boxes
    assert (box.picture, box.right) == (0, 50)
    assert find_shapes('{"bbox_2d": [0, 0, 500, 500], "picture": 7}', media).boxes == ()
    assert find_shapes(ONE_BOX["Qwen3-VL"], []).boxes == ()


@pytest.mark.parametrize(
    "text",
    [
        "", "no box", "{", "[[1, 2, 3]]", "(1,2)", '{"bbox_2d": [1, 2, 3]}', '{"bbox_2d": [1, 2, 3, "x"]}',
        '{"bbox_2d": [1e308, 1e308, 1e308, 1e308]}', '{"bbox_2d": [true, 1, 2, 3]}', "<point x=1 y=2>", "<loc0001>",
        '{"bbox_2d": [9999, 9999, 99999, 99999]}', "[" * 5000, '{"a":' * 3000, "<ref>" * 3000, "(1,1)," * 5000,
        "<loc_1>" * 5001, "[[" + "1,2,3,4" * 3000,
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_texts_without_boxes(text: str) -> None:
    shapes = find_shapes(text, [make_report()])
    assert not shapes.boxes and not shapes.points


@pytest.mark.timeout(120)
def test_random_texts_are_read() -> None:
    pieces = ['{"bbox_2d": [', "1,", "2]", "}", "<ref>", "</ref>", "<box>", "[[", "]]", "(1,2)", "<loc0001>", "<loc_3>",
              "<point x=", '"5"', "cat", "\n", "<patch_index_0001>", "<object>", "```", "-", "1.5"]  # fmt: skip
    chance = random.Random(0)
    for _ in range(2000):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 60)))
        shapes = find_shapes(text, [make_report()])
        assert all(-50 <= box.left <= box.right <= 1050 for box in shapes.boxes)


def test_boxes_are_drawn_where_they_are() -> None:
    picture = Image.new("RGB", (1000, 500), "white")
    response = Response(text=ONE_BOX["Qwen3-VL"], media=(make_report(),))
    [box] = response.boxes
    drawn = response.draw(picture)
    assert drawn.getpixel((100, 150)) != (255, 255, 255) != drawn.getpixel((200, 50))
    assert drawn.getpixel((200, 150)) == (255, 255, 255) and picture.getpixel((100, 150)) == (255, 255, 255)
    assert response.draw(picture, 1).tobytes() == picture.tobytes() and box.right == pytest.approx(300)


def test_a_turned_picture_is_drawn_upright() -> None:
    """Coordinates are those of the upright picture, which `draw` makes of a file with an orientation."""
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (500, 1000), "white").save(file, format="JPEG", exif=exif)
    response = Response(text=ONE_BOX["Qwen3-VL"], media=(make_report(),))
    assert load_image(file.getvalue()).size == response.draw(file.getvalue()).size == (1000, 500)


@pytest.mark.parametrize("text", [*ONE_BOX.values(), *(text for text, _ in NEAR_BOX.values())])
def test_each_box_says_where_the_text_has_it(text: str) -> None:
    [box] = find_shapes(f"Look: \n{text}", [make_report()]).boxes
    written = f"Look: \n{text}"[slice(*box.span)]
    assert "cat" in written and "<ref>" not in written and any(char.isdigit() for char in written)


def test_boxes_of_one_list_have_places_of_their_own() -> None:
    text = "<ref>a</ref><box>[[0,0,10,10],[20,20,30,30]]</box>"
    one, two = find_shapes(text, [make_report()]).boxes
    assert text[slice(*one.span)] == "a</ref><box>[[0,0,10,10]" and text[slice(*two.span)] == ",[20,20,30,30]"
