"""The camera of the page: Chromium's fake camera, whose frames go to the built-in model and are asked about."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

OpenPage = Callable[..., Any]


@pytest.fixture
def page(open_page: OpenPage, demo_url: str) -> Any:
    page = open_page(demo_url)
    page.context.grant_permissions(["camera"], origin=Origin(demo_url))
    page.click("#live-button")
    page.wait_for_selector(".seesay-live")
    return page


def start(page: Any) -> None:
    page.click("text=Start camera")
    page.wait_for_function("/[1-9] in view/.test(document.querySelector('.seesay-live-badge').textContent)")


def test_answers_about_the_camera_are_streamed_with_their_times(page: Any, tmp_path: Path) -> None:
    assert page.is_disabled(".seesay-live-form input") and page.is_visible("text=The camera is off.")
    start(page)
    assert not page.is_visible("text=The camera is off.")
    for number, question in enumerate(["describe this image", "how many shapes are there?"], 1):
        page.fill(".seesay-live-form input", question)
        page.keyboard.press("Enter")
        page.wait_for_function(f"document.querySelectorAll('.seesay-live-answers .seesay-line').length === {number}")
        item = page.locator(".seesay-live-answers li").last
        assert item.locator(".seesay-live-question").inner_text() == question
        assert len(item.locator(".seesay-live-answer").inner_text()) > 5
        line = item.locator(".seesay-line").inner_text()
        assert line.startswith("Saw ") and "frame" in line and "first token" in line and "0:0" in line, line
    page.screenshot(path=str(tmp_path / "live.png"))
    page.click("text=Stop camera")
    page.wait_for_selector("text=The camera is off.")
    assert page.evaluate("document.querySelector('.seesay-live video').srcObject") is None
    assert page.locator(".seesay-live-answers li").count() == 2, "the answers stay"


def test_a_panel_that_is_closed_stops_the_camera(page: Any) -> None:
    page.evaluate(
        """() => {
            const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
            navigator.mediaDevices.getUserMedia = async (what) => (window.stream = await ask(what));
        }"""
    )
    start(page)
    page.click("#live-button")
    page.wait_for_function("window.stream.getTracks().every((track) => track.readyState === 'ended')")
    page.click("#live-button")
    page.wait_for_selector("text=Start camera")


def test_a_camera_that_is_refused_is_told(page: Any) -> None:
    page.evaluate(
        """() => {
            navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('x', 'NotAllowedError'); };
        }"""
    )
    page.click("text=Start camera")
    page.wait_for_selector("text=The browser does not allow the camera.")


def test_the_panel_is_accessible_and_fits(page: Any, run_axe: Callable[[Any], list[str]]) -> None:
    start(page)
    for width, scheme in ((1280, "light"), (360, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        assert run_axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box = page.locator("#box textarea").bounding_box()
        assert box["y"] + box["height"] <= 800, "the box below stays in view"


def test_pages_of_other_origins_cannot_use_the_camera_s_socket(demo_url: str) -> None:
    address = demo_url.replace("http", "ws", 1) + "/seesay-live"
    for origin in (Origin("https://evil.example"), None):
        with pytest.raises(InvalidStatus) as caught, connect(address, origin=origin):
            pass
        assert caught.value.response.status_code == 403
    with connect(address, origin=Origin(demo_url)) as socket:
        assert json.loads(socket.recv(timeout=60))["type"] == "ready"


def test_visitors_who_are_not_signed_in_cannot_use_it(
    run_ui: Callable[..., contextlib.AbstractContextManager[str]],
) -> None:
    with run_ui("--api-keys", "secret") as url:
        address = url.replace("http", "ws", 1) + "/seesay-live"
        with pytest.raises(InvalidStatus) as caught, connect(address, origin=Origin(url)):
            pass
        assert caught.value.response.status_code == 403
