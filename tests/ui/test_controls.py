"""The controls of the WebUI under a finger and a keyboard, and the theme, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    const light = ([red, green, blue]) => [red, green, blue]
        .map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = element => {
        for (let e = element; e; e = e.parentElement) {
            const colour = read(getComputedStyle(e).backgroundColor);
            if (colour[3] > 250) return colour;
        }
        return [255, 255, 255, 255];
    };
    const e = document.activeElement;
    if (!e || e === document.body) return null;
    const name = e.getAttribute("aria-label") || e.innerText?.slice(0, 30) || e.value || e.outerHTML.slice(0, 60);
    const shown = [e, e.nextElementSibling, e.closest("#box")].filter(Boolean).map(ring => {
        const {outlineStyle, outlineWidth, outlineColor, outlineOffset} = getComputedStyle(ring);
        if (outlineStyle !== "solid" || parseFloat(outlineWidth) < 2) return 0;
        const around = parseFloat(outlineOffset) < 0 ? ring : ring.parentElement;
        const [one, other] = [light(read(outlineColor)), light(behind(around))].sort((a, b) => b - a);
        return (one + 0.05) / (other + 0.05);
    });
    e.setAttribute("data-visited", "");
    return [name, Math.max(...shown)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_has_the_focus_shows_a_ring(
    scripted: Any, scripted_url: str, open_page: OpenPage, files: list[Path], scheme: str
) -> None:
    """Two pixels that stand out from what is behind them (WCAG 2.2: a contrast of 3)."""
    page = open_page(scripted_url, scheme=scheme)
    seen, faint = set(), []
    for state in walk_through(page, scripted, files):
        wait_until_still(page)
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement?.hasAttribute('data-visited')"):
                break
            wait_until_still(page)
            focused = page.evaluate(FOCUSED)
            if focused is None:
                continue
            seen.add(focused[0])
            if focused[1] < 3:
                faint.append(f"{state}: {focused[0]}: contrast {focused[1]:.2f}")
        page.evaluate("document.querySelectorAll('[data-visited]').forEach(e => e.removeAttribute('data-visited'))")
    assert not faint, "\n".join(faint)
    expected = {
        "Conversations",
        "New",
        "Camera",
        "Settings",
        "Copy the answer",
        "Edit",
        "Clear",
        "Submit",
        "Close",
        "Export",
    }
    assert expected <= {name.strip() for name in seen}, seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_question_box_has_a_ring_while_it_is_typed_in(scripted_url: str, open_page: OpenPage, scheme: str) -> None:
    page = open_page(scripted_url, scheme=scheme)
    page.click("#box textarea")
    assert page.evaluate("getComputedStyle(document.querySelector('#box')).outlineStyle") == "solid"
    name, contrast = page.evaluate(FOCUSED)
    assert contrast >= 3, name
    page.evaluate("document.activeElement.blur()")
    assert page.evaluate("getComputedStyle(document.querySelector('#box')).outlineStyle") == "none"


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
