"""Visitors of a server with API keys sign in, in a real Chromium."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import OpenPage, ask, count, text_of, wait_until_kept, wait_until_still
from PIL import Image

from seesay.ui.sessions import IDLE_S, Sessions, WrongKeyError
from seesay.ui.tries import MAX_PER_NETWORK

KEY_FIELD = "#key"


def sign_in(page: Any, key: str) -> None:
    page.fill(KEY_FIELD, key)
    page.keyboard.press("Enter")


def test_the_page_asks_for_a_key(
    keyed: Any, keyed_url: str, open_page: OpenPage, run_axe: Callable[[Any], list[str]], tmp_path: Path
) -> None:
    """A wrong key is refused, a right one is used for all requests, and signing out ends it."""
    page = open_page(keyed_url, ready=KEY_FIELD)
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    assert run_axe(page) == []
    sign_in(page, "wrong")
    page.wait_for_selector("text=The server does not accept this key.")
    assert run_axe(page) == [] and page.input_value(KEY_FIELD) == ""

    sign_in(page, "sesame-one")
    page.wait_for_selector("#box textarea")
    page.wait_for_function("document.querySelector('#title').innerText.includes('scripted')")
    picture = tmp_path / "red.png"
    Image.new("RGB", (32, 24), "red").save(picture)
    ask(page, "hello", picture)
    assert keyed.used_keys == ["sesame-one"] and keyed.requests[-1]["model"] == "scripted"
    wait_until_kept(page, 1)

    page.click(".seesay-export-button")
    with page.expect_download() as download:
        page.get_by_role("button", name="Markdown").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert not any(b"sesame" in archive.read(name) for name in archive.namelist())
    page.click(".seesay-export-button")
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").click()
    assert b"sesame" not in Path(download.value.path()).read_bytes()
    assert "sesame" not in page.content()
    stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "sesame" not in stored and "seesay-session" not in stored, "scripts cannot read the cookie"
    assert addresses and not any("sesame" in address for address in addresses)
    [cookie] = page.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and "sesame" not in cookie["value"]

    page.click("#settings-button")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_selector(KEY_FIELD)
    page.context.add_cookies([cookie])
    page.goto(keyed_url)
    page.wait_for_selector(KEY_FIELD)
    sign_in(page, "sesame-two")
    page.wait_for_selector("#chat .example")
    assert page.evaluate("sessionStorage.getItem('seesay-conversation')") is None, "the next visitor begins anew"


def test_each_visitor_asks_with_his_own_key(keyed: Any, keyed_url: str, open_page: OpenPage) -> None:
    first = open_page(keyed_url, ready=KEY_FIELD)
    sign_in(first, "sesame-one")
    first.wait_for_selector("#box textarea")
    second = open_page(keyed_url, ready=KEY_FIELD)
    sign_in(second, "sesame-two")
    second.wait_for_selector("#box textarea")
    ask(first, "one")
    ask(second, "two")
    ask(first, "three", num=2)
    assert keyed.used_keys == ["sesame-one", "sesame-two", "sesame-one"]


def test_models_are_those_that_the_key_may_use(keyed: Any, open_page: OpenPage, run_ui: Any) -> None:
    keyed.models = ["first", "second"]
    try:
        with run_ui(keyed.url) as url:
            page = open_page(url, ready=KEY_FIELD)
            sign_in(page, "sesame-one")
            page.wait_for_selector("#box textarea")
            page.click("#settings-button")
            page.wait_for_selector("#model input")
            assert page.input_value("#model input") == "first"
            page.click("#model input")
            page.get_by_role("option", name="second").click()
            ask(page, "hello")
            assert keyed.requests[-1]["model"] == "second"
    finally:
        keyed.models = ["scripted"]


def test_a_key_that_is_withdrawn_is_a_sentence(keyed: Any, keyed_url: str, open_page: OpenPage) -> None:
    page = open_page(keyed_url, ready=KEY_FIELD)
    sign_in(page, "sesame-one")
    page.wait_for_selector("#box textarea")
    keyed.keys = {"sesame-two"}
    ask(page, "hello")
    assert "The server no longer accepts your API key: sign out in the settings" in text_of(page, ".seesay-error")


def test_a_session_that_has_ended_leads_to_the_login_page(keyed: Any, keyed_url: str, open_page: OpenPage) -> None:
    page = open_page(keyed_url, ready=KEY_FIELD)
    sign_in(page, "sesame-one")
    page.wait_for_selector("#box textarea")
    page.wait_for_function("document.querySelector('#title').innerText.includes('scripted')")  # its scripts are there
    page.context.clear_cookies()  # as when the WebUI was started again
    page.fill("#box textarea", "hello")
    page.keyboard.press("Enter")
    page.wait_for_selector(KEY_FIELD)
    assert keyed.requests == []


def test_without_a_key_nothing_is_served(keyed_url: str) -> None:
    with httpx.Client(base_url=keyed_url, trust_env=False) as client:
        page = client.get("/")
        assert page.status_code == 401 and "API key" in page.text and "gradio" not in page.text
        paths = ("/config", "/gradio_api/info", "/gradio_api/queue/data?session_hash=x", "/assets/x.js", "/theme.css")
        for path in (*paths, "/gradio_api/file=/etc/hostname", "/gradio_api/heartbeat/x", "/x//config", "/x/../config"):
            response = client.get(path)
            assert response.status_code == 401 and "gradio" not in response.text, path
        assert client.post("/gradio_api/upload", files={"files": b"x"}).status_code == 401
        assert client.post("/gradio_api/queue/join", json={}).status_code == 401
        assert client.get("/?key=sesame-one").status_code == 401, "a key in an address is none"
        elsewhere = client.post("/login", data={"key": "sesame-one"}, headers={"sec-fetch-site": "cross-site"})
        assert elsewhere.status_code == 403 and not elsewhere.cookies
        forged = client.get("/config", headers={"cookie": "seesay-session-1=x; a=b"})
        assert forged.status_code == 401


def test_tries_are_bounded_and_keys_are_not_logged(
    keyed: Any, run_ui: Callable[..., AbstractContextManager[str]]
) -> None:
    lines: list[str] = []
    running = run_ui(keyed.url, "--log-level", "DEBUG", lines=lines)
    with running as url, httpx.Client(base_url=url, trust_env=False) as client:
        for _ in range(2 * MAX_PER_NETWORK):  # right keys are not counted
            assert client.post("/login", data={"key": "sesame-one"}).status_code == 303
        for number in range(MAX_PER_NETWORK):
            assert client.post("/login", data={"key": f"secret{number}"}).status_code == 401
        refused = client.post("/login", data={"key": "sesame-one"})
        assert refused.status_code == 429 and 0 < int(refused.headers["retry-after"]) <= 60
        assert "Too many tries: try again in" in refused.text and "set-cookie" not in refused.headers
    assert any("a wrong key from 127.0.0.1" in line for line in lines)
    assert not any("secret" in line or "sesame" in line for line in lines), lines


@pytest.mark.parametrize("key", ["", "\r\nx: y", "ä", "a b", "x" * 1025, "x" * 100_000])
def test_what_is_no_key_is_refused(keyed: Any, key: str) -> None:
    with Sessions(keyed.url) as sessions, pytest.raises(WrongKeyError):
        sessions.sign_in(key)


def test_sessions_end(keyed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("seesay.ui.sessions.time.monotonic", lambda: now_s)
    with Sessions(keyed.url) as sessions:
        tokens = [sessions.sign_in("sesame-one") for _ in range(3)]
        assert len(set(tokens)) == 3 and all(len(token) >= 40 for token in tokens)
        assert sessions.find(tokens[0]) is not None and sessions.find("") is None and sessions.find("x") is None
        now_s += IDLE_S - 1
        assert sessions.find(tokens[0]) is not None
        now_s += 2
        assert sessions.find(tokens[1]) is None, "nobody used it"
        assert sessions.find(tokens[0]) is not None
        sessions.sign_out(tokens[0])
        assert sessions.find(tokens[0]) is None
        monkeypatch.setattr("seesay.ui.sessions.MAX_SESSIONS", 2)
        tokens = [sessions.sign_in("sesame-two") for _ in range(2)]
        assert sessions.find(tokens[0]) is not None
        newest = sessions.sign_in("sesame-one")
        assert sessions.find(tokens[1]) is None, "the one that was not used for longest"
        assert sessions.find(tokens[0]) is not None and sessions.find(newest) is not None
    assert sessions.find(newest) is None


def test_a_server_that_is_away_is_told(keyed: Any, keyed_url: str) -> None:
    keyed.is_away = True
    try:
        response = httpx.post(f"{keyed_url}/login", data={"key": "sesame-one"}, trust_env=False)
    finally:
        keyed.is_away = False
    assert response.status_code == 503 and "cannot be reached right now" in response.text


def test_a_models_visitors_sign_in(
    run_ui: Callable[..., AbstractContextManager[str]], open_page: OpenPage, tmp_path: Path
) -> None:
    """The server that the WebUI starts takes the same keys."""
    with run_ui("--api-keys", "sesame-one", "sesame-two") as url:
        page = open_page(url, width=390, height=844, scheme="dark", ready=KEY_FIELD)
        sign_in(page, "wrong")
        page.wait_for_selector("text=The server does not accept this key.")
        sign_in(page, "sesame-two")
        page.wait_for_selector("#chat .example")
        page.locator("#chat .example").first.click()
        page.wait_for_selector("#chat .seesay-line")
        assert "triangle" in text_of(page) and count(page, ".seesay-error") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_page_on_a_phone(keyed_url: str, open_page: OpenPage, scheme: str) -> None:
    page = open_page(keyed_url, width=320, height=600, scheme=scheme, ready=KEY_FIELD)
    wait_until_still(page)
    sizes = page.evaluate("[...document.querySelectorAll('input, button')].map(e => e.getBoundingClientRect())")
    assert all(size["width"] >= 44 and size["height"] >= 44 for size in sizes) and len(sizes) == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert page.evaluate("document.activeElement.id") == "key"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    dark = page.evaluate("Number(/\\d+/.exec(getComputedStyle(document.body).backgroundColor)[0]) < 128")
    assert dark == (scheme == "dark")
