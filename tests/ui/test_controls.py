"""The controls of the WebUI under a finger and a keyboard, and the theme, in a real Chromium."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import OpenPage, ask, wait_until_kept, wait_until_still
from PIL import Image

TIMINGS = {"time_to_first_token_s": 0.8, "prefill_s": 0.3, "decode_s": 0.2, "total_s": 1.0}
CLIP = {
    "modality": "video", "num_frames": 2, "height": 96, "width": 128, "resized_height": 84, "resized_width": 140,
    "num_tiles": 1, "num_patches": 60, "num_tokens": 15, "is_cached": False, "timestamps_s": [0.0, 1.0],
}  # fmt: skip
ANSWER = "An answer.\n\n```python\nx = 1\n```"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    picture, clip = tmp_path / "picture.png", tmp_path / "clip.mp4"
    Image.new("RGB", (20, 12), (40, 90, 160)).save(picture)  # a small one is a small button
    clip.write_bytes(b"no clip")
    return [picture, clip]


def walk_through(page: Any, scripted: Any, files: list[Path]) -> Iterator[str]:
    """Bring up all that can be pressed, state by state. Yields the name of each."""
    scripted.script = lambda body: iter([ANSWER])
    picture = {**CLIP, "modality": "image", "num_frames": 1, "timestamps_s": []}
    scripted.details = {"timings": TIMINGS, "media": [picture, CLIP]}
    yield "start"
    page.set_input_files("#box input[type=file]", [str(file) for file in files])
    page.wait_for_function(f"document.querySelectorAll('#box .thumbnail-item').length == {len(files)}")
    yield "files"
    page.fill("#box textarea", "one\n\ntwo")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat summary.seesay-line")
    page.wait_for_selector("#box .submit-button")
    wait_until_kept(page, 1)
    yield "answer"
    page.click("summary.seesay-line")
    yield "details"
    page.locator('#chat [aria-label="Edit"]').first.click()
    page.wait_for_selector("#chat textarea")
    yield "edit"
    page.keyboard.press("Escape")
    page.click("#settings-button")
    page.wait_for_selector("#theme input")
    yield "settings"
    page.click("#settings-button")
    page.click("#camera-button")
    page.wait_for_selector("#camera >> text=Click to Access Webcam")
    yield "camera"
    page.click("#camera-button")
    page.wait_for_selector("#camera", state="hidden")
    page.click('#chat [aria-label="Clear"]')
    yield "question"
    page.keyboard.press("Escape")
    page.click(".seesay-export-button")
    yield "export"
    page.keyboard.press("Escape")
    page.locator(".seesay-shot").first.click()
    # The button in its corner moves when the picture gets its size.
    page.wait_for_function("document.querySelector('dialog.seesay-large img')?.naturalWidth")
    yield "picture"
    page.keyboard.press("Escape")
    page.click(".seesay-open")
    page.wait_for_selector(".seesay-entry")
    yield "conversations"
    page.keyboard.press("Escape")


SMALL = """least => {
    const targets = "button, summary, a[href], input:not([type=file]), select, textarea, [role=button], [role=option],"
        + " label:has(input)";
    return [...document.querySelectorAll(targets)]
        .filter(e => e.checkVisibility({visibilityProperty: true}) && !e.closest("dialog:not([open])"))
        .map(e => [e.getBoundingClientRect(), e.getAttribute("aria-label") || e.outerHTML.slice(0, 90)])
        .filter(([r]) => r.width > 0 && (Math.round(r.width) < least || Math.round(r.height) < least))
        .map(([r, name]) => `${name}: ${r.width} x ${r.height}`);
}"""


@pytest.mark.parametrize(("width", "least"), [(390, 44), (320, 44), pytest.param(1280, 24, marks=pytest.mark.slow)])
def test_whatever_can_be_pressed_is_large_enough(
    scripted: Any, scripted_url: str, open_page: OpenPage, files: list[Path], width: int, least: int
) -> None:
    """44 pixels for a finger on a phone, 24 for a mouse."""
    page = open_page(scripted_url, width=width, height=844)
    found = []
    for state in walk_through(page, scripted, files):
        wait_until_still(page)
        found += [f"{state}: {target}" for target in page.evaluate(SMALL, least)]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append(f"{state}: the page is wider than the screen")
    assert not found, "\n".join(found)


FOCUSED = """() => {
    const read = colour => {  // Chromium spells colours of all spaces; a canvas makes them bytes
        const pen = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d");
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        return [...pen.getImageData(0, 0, 1, 1).data];
    };
    const e = document.activeElement;
    if (!e || e === document.body) return null;
    const name = e.getAttribute("aria-label") || e.placeholder || e.innerText?.slice(0, 30) || e.value || e.outerHTML;
    const ring = [e, e.nextElementSibling, e.closest(".form")].filter(Boolean)
        .find(other => getComputedStyle(other).outlineStyle === "solid");
    if (e.hasAttribute("data-visited")) return {name, isKnown: true};
    e.setAttribute("data-visited", "");
    if (!ring) return {name, sides: null};
    const {left, top, right, bottom} = ring.getBoundingClientRect();
    return {name, colour: read(getComputedStyle(ring).outlineColor), sides: [left, top, right, bottom]};
}"""
"""The name of what has the focus, its ring's colour, and the sides of what the ring is around."""


def light_of(colour: Any) -> float:
    """The relative luminance of a colour, as WCAG defines it."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (part / 255 for part in colour[:3])]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def find_fault(page: Any, focused: Any) -> str | None:
    """Return what is wrong with the ring that the browser draws. None if it is seen: other rules may hide it."""
    if focused["sides"] is None:
        return "it has no ring"
    margin = 6
    left, top, right, bottom = (round(side) for side in focused["sides"])
    x, y = max(0, left - margin), max(0, top - margin)
    clip = {"x": x, "y": y, "width": right + margin - x, "height": bottom + margin - y}
    pixels = np.asarray(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")).astype(int)
    is_ring = (np.abs(pixels - np.array(focused["colour"][:3])) <= 8).all(axis=2)
    least = 1.8 * (right - left + bottom - top)  # a ring of almost one pixel; ours has two
    if is_ring.sum() < least:
        return f"{is_ring.sum()} pixels of a ring are seen, less than {least}"
    rows, columns = np.nonzero(is_ring)
    # What is just outside and just inside of the ring's upper side.
    row, column = rows.min(), columns[rows == rows.min()][len(columns[rows == rows.min()]) // 2]
    ring = light_of(pixels[row, column])
    for other in (row - 2, row + 4):
        if 0 <= other < len(pixels):
            one, two = sorted((ring, light_of(pixels[other, column])))
            if (two + 0.05) / (one + 0.05) >= 3:
                return None
    return "the ring does not stand out (WCAG 2.2: a contrast of 3)"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_what_has_the_focus_shows_a_ring(
    scripted: Any, scripted_url: str, open_page: OpenPage, files: list[Path], scheme: str
) -> None:
    page = open_page(scripted_url, scheme=scheme)
    seen, faults = set(), []
    for state in walk_through(page, scripted, files):
        wait_until_still(page)
        page.evaluate("document.querySelectorAll('[data-visited]').forEach(e => e.removeAttribute('data-visited'))")
        num_known = 0
        for _ in range(60):
            page.keyboard.press("Tab")
            wait_until_still(page)  # the ring's colour may be in transition
            focused = page.evaluate(FOCUSED)
            if focused is None:
                continue
            if focused.get("isKnown"):
                num_known += 1
                if num_known > 3:  # the first ones may be where the focus was
                    break
                continue
            if focused["name"] in seen:
                continue
            seen.add(focused["name"])
            fault = find_fault(page, focused)
            if fault is not None:
                faults.append(f"{state}: {focused['name']}: {fault}")
    assert not faults, "\n".join(faults)
    expected = "Conversations, New, Camera, Settings, Copy the answer, Edit, Clear, Submit, Close, Export, Import"
    assert set(expected.split(", ")) <= {name.strip() for name in seen}, seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_question_box_has_a_ring_while_it_is_typed_in(
    scripted_url: str, open_page: OpenPage, scheme: str, width: int
) -> None:
    page = open_page(scripted_url, scheme=scheme, width=width)
    page.click("#box textarea")
    focused = page.evaluate(FOCUSED)
    assert focused["name"] == "Ask, or drop pictures, audio or a PDF here" and find_fault(page, focused) is None
    page.evaluate("document.activeElement.blur()")
    assert find_fault(page, focused) is not None


# --- the theme ------------------------------------------------------------------------------------------------------

BRIGHTNESS = """() => {
    const colour = getComputedStyle(document.body).backgroundColor;
    return Number(/\\d+/.exec(colour)[0]) > 127 ? "light" : "dark";
}"""


def wait_for_theme(page: Any, theme: str) -> None:
    page.wait_for_function(f"document.body.classList.contains('dark') == {str(theme == 'dark').lower()}")
    assert page.evaluate(BRIGHTNESS) == theme
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == theme


@contextmanager
def open_settings(page: Any) -> Iterator[None]:
    page.click("#settings-button")
    page.wait_for_selector("#theme input", state="attached")
    yield
    page.click("#settings-button")
    page.wait_for_selector("#theme input", state="detached")


def choose_theme(page: Any, name: str) -> None:
    with open_settings(page):
        page.get_by_role("radio", name=name).check()


def test_the_theme_is_switched_and_remembered(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url, scheme="light")
    wait_for_theme(page, "light")
    with open_settings(page):
        assert page.get_by_role("radio", name="System").is_checked()
    choose_theme(page, "Dark")
    wait_for_theme(page, "dark")
    page.reload()
    page.wait_for_selector("#box textarea")
    wait_for_theme(page, "dark")
    with open_settings(page):
        assert page.get_by_role("radio", name="Dark").is_checked()
        page.get_by_role("radio", name="Light").check()
    page.emulate_media(color_scheme="dark")
    ask(page, "one")  # Gradio had time to follow the device
    wait_for_theme(page, "light")
    page.reload()
    page.wait_for_selector("#box textarea")
    wait_for_theme(page, "light")


def test_the_system_theme_follows_the_device(scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url, scheme="dark")
    wait_for_theme(page, "dark")
    choose_theme(page, "Light")
    wait_for_theme(page, "light")
    choose_theme(page, "System")
    wait_for_theme(page, "dark")
    page.emulate_media(color_scheme="light")
    wait_for_theme(page, "light")
