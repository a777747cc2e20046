"""The documentation at `/`: it works in a browser that reaches nothing but the server."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from live_server import make_settings, serve

from seesay.engine.front.engine import AsyncEngine

FOLDER = Path(__file__).parents[2] / "seesay" / "serving" / "swagger"
CHROMIUM = os.environ.get("SEESAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
HAS_BROWSER = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None


def test_the_files_are_those_that_the_note_names() -> None:
    sums = [line.split() for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("    ")]
    assert len(sums) == 2
    for digest, name in sums:
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest
    for name in ("LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"):
        assert (FOLDER / name).is_file()


@pytest.mark.skipif(not HAS_BROWSER, reason="playwright or chromium is not here")
def test_it_needs_no_network(engine: AsyncEngine) -> None:
    """With keys, too: the page and its files are open. Every route is listed, and one can be tried."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    problems: list[str] = []
    with serve(engine, make_settings(api_keys=("key",))) as server, sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.url)
        page.wait_for_selector(".opblock-summary-path", timeout=20_000)
        assert "seesay" in page.inner_text(".info .title")
        paths = {text.replace("\u200b", "") for text in page.locator(".opblock-summary-path").all_inner_texts()}
        assert {"/v1/chat/completions", "/v1/messages", "/generate", "/health"} <= paths
        page.click("#operations-operations-version .opblock-summary-control")
        page.click("#operations-operations-version .try-out__btn")
        page.click("#operations-operations-version .execute")
        page.wait_for_selector("#operations-operations-version .live-responses-table .response", timeout=20_000)
        assert "200" in page.inner_text("#operations-operations-version .live-responses-table")
        browser.close()
        assert all(url.startswith((server.url, "data:")) for url in asked), asked
    assert not problems
