"""Answers that mark places and times, in a real Chromium: marks and words light each other, times show the video."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import OpenPage, ask, count, wait_until_kept, wait_until_true
from PIL import Image, ImageDraw

BOXES = (
    "Here they are:\n```json\n"
    '[{"bbox_2d": [100, 100, 400, 500], "label": "cat <b>"},\n {"bbox_2d": [500, 500, 900, 900], "label": "dog"}]\n```'
)


def make_report(**fields: Any) -> dict[str, Any]:
    return {
        "modality": "image", "num_frames": 1, "height": 300, "width": 600, "resized_height": 300, "resized_width": 600,
        "num_tiles": 1, "num_patches": 64, "num_tokens": 16, "is_cached": False, "timestamps_s": [],
        "coordinates": "thousandth", **fields,
    }  # fmt: skip


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A JPEG that lies on its side: upright it has 600 x 300 pixels, with a red and a blue rectangle."""
    upright = Image.new("RGB", (600, 300), "#dddddd")
    pen = ImageDraw.Draw(upright)
    pen.rectangle((60, 30, 240, 150), fill="red")
    pen.rectangle((300, 150, 540, 270), fill="blue")
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.jpg"
    upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif, quality=95)
    return path


def check_lit(page: Any, *names: str) -> None:
    wait_until_true(
        page,
        """async names => [...document.querySelectorAll('.seesay-lit')]
            .map(one => one.tagName.toLowerCase() + one.dataset.marks).sort().join() === names""",
        ",".join(names),
    )


def colors_under(page: Any, box: dict[str, float]) -> Any:
    """The picture's own color in the middle of a place of the page."""
    return page.evaluate(
        """box => {
            const image = document.querySelector(".seesay-figure img");
            const {left, top, width, height} = image.getBoundingClientRect();
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
            canvas.getContext("2d").drawImage(image, 0, 0);
            const x = (box.x + box.width / 2 - left) / width * canvas.width;
            const y = (box.y + box.height / 2 - top) / height * canvas.height;
            return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
        }""",
        box,
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_marks_and_words_light_each_other(
    scripted: Any,
    scripted_url: str,
    open_page: OpenPage,
    run_axe: Callable[[Any], list[str]],
    picture: Path,
    tmp_path: Path,
    width: int,
) -> None:
    scripted.script = lambda body: iter([BOXES[:60], BOXES[60:]])
    scripted.details = {"media": [make_report()]}
    page = open_page(scripted_url, width=width)
    ask(page, "Where are the cat and the dog?", picture)
    page.wait_for_selector(".seesay-figure rect")
    wait_until_true(page, "async () => document.querySelector('.seesay-figure img').complete")
    assert page.inner_text(".seesay-source") == BOXES, "the text is shown as it was written"
    assert count(page, ".seesay-figure rect") == count(page, ".seesay-source mark") == 2
    assert page.locator(".seesay-tag").all_inner_texts() == ["cat <b>", "dog"]
    red, blue = (page.locator(".seesay-figure rect").nth(i) for i in range(2))
    for mark, name in ((red, 0), (blue, 2)):
        color = colors_under(page, mark.bounding_box())
        assert color[name] > 200 and max(color[:name] + color[name + 1 :]) < 90, "the mark lies over what it means"

    page.locator(".seesay-source").click()  # the page follows the new answer until somebody uses it
    page.locator(".seesay-source mark").nth(1).hover()
    check_lit(page, "mark1", "rect1", "span1")
    red.hover()
    check_lit(page, "mark0", "rect0", "span0")
    page.mouse.move(1, 1)
    page.locator(".seesay-source mark").nth(1).focus()
    check_lit(page, "mark1", "rect1", "span1")  # with the keyboard, too
    page.screenshot(path=tmp_path / f"marks_{width}.png")
    page.locator("#box textarea").focus()
    check_lit(page)
    findings = run_axe(page)
    assert not findings, "\n".join(findings)

    wait_until_kept(page, 1)
    page.reload()
    page.wait_for_selector(".seesay-figure rect")
    assert count(page, ".seesay-figure rect") == 2, "a conversation that is opened again has them"
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


@pytest.mark.parametrize(("width", "height"), [(400, 400), (300, 600), (900, 150)])
def test_marks_lie_over_pictures_of_any_shape(
    scripted: Any, scripted_url: str, open_page: OpenPage, tmp_path: Path, width: int, height: int
) -> None:
    image = Image.new("RGB", (width, height), "#dddddd")
    ImageDraw.Draw(image).rectangle((0.5 * width, 0.8 * height, 0.9 * width, 0.95 * height), fill="red")
    image.save(tmp_path / "shape.png")
    scripted.script = lambda body: iter(['[{"bbox_2d": [500, 800, 900, 950], "label": "red"}]'])
    scripted.details = {"media": [make_report(width=width, height=height)]}
    page = open_page(scripted_url)
    ask(page, "Where?", tmp_path / "shape.png")
    page.wait_for_selector(".seesay-figure rect")
    wait_until_true(page, "async () => document.querySelector('.seesay-figure img').complete")
    shown = page.locator(".seesay-figure img").bounding_box()
    assert shown["width"] / shown["height"] == pytest.approx(width / height, rel=0.02), "the picture keeps its shape"
    color = colors_under(page, page.locator(".seesay-figure rect").bounding_box())
    assert color[0] > 200 and max(color[1:]) < 90, "the mark lies over what it means"


def test_pixels_of_the_resized_picture_are_marked_in_the_picture(
    scripted: Any, scripted_url: str, open_page: OpenPage, picture: Path
) -> None:
    scripted.script = lambda body: iter(['{"bbox_2d": [28, 14, 112, 70], "label": "cat"}'])
    scripted.details = {"media": [make_report(resized_width=280, resized_height=140, coordinates="pixel")]}
    page = open_page(scripted_url)
    ask(page, "Where is the cat?", picture)
    wait_until_kept(page, 1)
    for _ in range(2):
        page.wait_for_selector(".seesay-figure rect")
        assert page.get_attribute(".seesay-figure rect", "x") == "60.0"
        assert page.get_attribute(".seesay-figure rect", "height") == "120.0"
        page.reload()  # the record has the unit


def test_pages_of_a_document_are_drawn_with_their_marks(
    scripted: Any, scripted_url: str, open_page: OpenPage, picture: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pypdfium2")
    pages = [Image.new("RGB", (600, 300), color) for color in ("white", "red")]
    pages[0].save(tmp_path / "two.pdf", save_all=True, append_images=pages[1:])
    scripted.script = lambda body: iter(['[{"bbox_2d": [0, 0, 500, 500], "label": "a", "picture": 1}]'])
    scripted.details = {"media": [make_report(page=1), make_report(page=2)]}
    page = open_page(scripted_url)
    ask(page, "Where?", tmp_path / "two.pdf")
    page.wait_for_selector(".seesay-figure rect")
    wait_until_true(page, "async () => document.querySelector('.seesay-figure img').naturalWidth > 0")
    assert count(page, ".seesay-figure") == 1
    red, green, _ = colors_under(page, page.locator(".seesay-figure rect").bounding_box())
    assert red > 200 and green < 60, "it is the second page"


def test_times_show_the_video_there(
    scripted: Any, scripted_url: str, open_page: OpenPage, run_axe: Callable[[Any], list[str]], tmp_path: Path
) -> None:
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "clip.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=4)
        stream.height, stream.width, stream.pix_fmt = 96, 128, "yuv420p"
        for shade in range(32):
            frame = av.VideoFrame.from_ndarray(np.full((96, 128, 3), 8 * shade, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    scripted.script = lambda body: iter(["It grows bright from 0:02.5 to 0:05, and at 7 seconds it is white."])
    times = [0.5 * i for i in range(16)]
    scripted.details = {"media": [make_report(modality="video", num_frames=16, timestamps_s=times)]}
    page = open_page(scripted_url)
    ask(page, "When?", tmp_path / "clip.mp4")
    buttons = page.locator(".seesay-time")
    assert buttons.all_inner_texts() == ["0:02.5 to 0:05", "7 seconds"]
    buttons.nth(1).click()
    wait_until_true(page, "async () => document.querySelector('.seesay-strip video').currentTime == 7")
    buttons.nth(0).click()
    wait_until_true(page, "async () => document.querySelector('.seesay-strip video').currentTime == 2.5")
    findings = run_axe(page)
    assert not findings, "\n".join(findings)


def test_an_answer_without_marks_is_markdown(
    scripted: Any, scripted_url: str, open_page: OpenPage, picture: Path
) -> None:
    scripted.script = lambda body: iter(["It is **red**."])
    scripted.details = {"media": [make_report()]}
    page = open_page(scripted_url)
    ask(page, "Which color?", picture)
    assert count(page, ".seesay-marked") == 0 and page.inner_text("#chat .bot strong") == "red"
