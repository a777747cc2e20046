"""Takes the README's pictures of the WebUI, light and dark: the built-in model answers about two pictures.

    python docs/pictures/take_screenshots.py   # writes webui.png and webui-dark.png

Needs the extras `ui` and `serve`, playwright, and Chromium (SEESAY_CHROMIUM, or `chromium` on the path).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SIZE: Any = {"width": 1000, "height": 960}
PICTURES: dict[Any, str] = {"light": "webui.png", "dark": "webui-dark.png"}
READY = "the WebUI is at"


@contextmanager
def running_webui() -> Iterator[str]:
    """The WebUI with the built-in model, on a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "seesay", "serve", "gradio", "--server-port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        if not any(READY in line for line in process.stderr):
            raise RuntimeError("the WebUI did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stderr.close()


def ask_and_take(page: Any, path: Path) -> None:
    """Ask the example with two pictures, open what the model saw, and take the picture of it."""
    page.locator("#chat .example").nth(2).click()
    page.wait_for_selector("#chat summary.seesay-line")
    page.click("#chat summary.seesay-line")
    page.wait_for_timeout(1000)
    page.evaluate("document.querySelector('#chat .bubble-wrap').scrollTo(0, 0)")
    page.mouse.move(500, 940)
    page.wait_for_timeout(500)
    page.screenshot(path=path)


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("SEESAY_CHROMIUM") or shutil.which("chromium")
    for scheme, name in PICTURES.items():
        # A WebUI for each, so that neither finds the pictures encoded.
        with running_webui() as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
            page = browser.new_context(viewport=SIZE, color_scheme=scheme).new_page()
            page.goto(url)
            page.wait_for_selector("#chat .example")
            ask_and_take(page, FOLDER / name)
            browser.close()
        _shrink(FOLDER / name)


def _shrink(path: Path) -> None:
    """A palette of 256 colours: a third of the bytes."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
