"""A headless Chromium, the WebUI on a free port of loopback, and two servers behind it: a real and a scripted one."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsing import wait_until_still
from ports import find_port

CHROMIUM = os.environ.get("SEESAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = [
    name
    for name, is_there in (
        ("the extra 'ui' (gradio)", importlib.util.find_spec("gradio")),
        ("playwright", importlib.util.find_spec("playwright")),
        ("chromium", CHROMIUM),
    )
    if not is_there
]
_FEATURES = (
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup", "AiModeOmniboxEntryPoint", "AimEnabled",
    "SpareRendererForSitePerProcess", "LensOverlay", "MediaRouter", "OptimizationHints", "NetworkTimeServiceQuerying",
    "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable", "ThirdPartyStoragePartitioning", "PreconnectToSearch",
    "DestroyProfileOnBrowserClose", "AvoidUnnecessaryBeforeUnloadCheckSync", "AvoidCorsURLLoaderRestartOnRedirect",
)  # fmt: skip
"""Features of the browser that are turned off: those of the address bar, which have a renderer for each window, and
those that Playwright turns off."""
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", f"--disable-features={','.join(_FEATURES)}",
)  # fmt: skip
TIMEOUT_MS = 120_000
"""A busy machine may need long for what takes a moment."""


@pytest.fixture(scope="session")
def needs_browser() -> None:
    if MISSING:
        pytest.skip(f"not installed: {', '.join(MISSING)}")


class _Browser:
    """A Chromium and a tab in it, which the tests of `BROWSER_FILES` use one after another."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._chromium: Any = None
        self._tab: Any = None

    def open(self) -> Any:
        """Return a page that has seen nothing: the tab, or one in a context of its own while the tab is in use."""
        if self._chromium is None:
            from playwright.sync_api import sync_playwright

            playwright = self._stack.enter_context(sync_playwright())
            self._chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS, timeout=TIMEOUT_MS)
            self._stack.callback(self._chromium.close)
        page, self._tab = self._tab, None
        if page is None:
            context = self._chromium.new_context()
            context.set_default_timeout(TIMEOUT_MS)
            page = context.new_page()
        return page

    def give_back(self, page: Any) -> None:
        """Make a tab of the page that has seen nothing: what it has kept is deleted. Close it where there is a tab."""
        context = page.context
        if self._tab is not None or page.is_closed():
            context.close()
            return
        origin = page.evaluate("location.origin")
        page.evaluate("sessionStorage.clear()")
        page.goto("about:blank")  # nothing is in use, so that it can be deleted
        session = context.new_cdp_session(page)
        session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        session.detach()
        context.clear_permissions()
        context.clear_cookies()
        self._tab = page

    def close(self) -> None:
        self._chromium = self._tab = None
        self._stack.close()


_browser = _Browser()
"""Runs until a test of another file comes: while Playwright runs, no other event loop can run in this thread, as tests
with asyncio need."""


@pytest.fixture
def open_page(needs_browser: None) -> Iterator[Callable[..., Any]]:
    """`open_page(url, width=…, height=…, scheme='dark')`; fails the test when the page asked anything from outside."""
    pages: list[Any] = []
    outside: list[str] = []

    def note(request: Any) -> None:
        if not _is_ours(request.url):
            outside.append(request.url)

    def open_page(
        url: str, *, width: int = 1280, height: int = 800, scheme: str = "light", ready: str = "#box textarea"
    ) -> Any:
        page = _browser.open()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.on("request", note)
        page.goto(url)
        page.wait_for_selector(ready)
        return page

    yield open_page
    for page in pages:
        page.remove_listener("request", note)
        _browser.give_back(page)
    assert not outside, outside


def _is_ours(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "http://localhost:", "ws://127.0.0.1:", "data:", "blob:"))


@pytest.fixture
def run_axe() -> Callable[[Any], list[str]]:
    """The findings of axe-core on a page, one line each."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("not installed: axe-playwright-python, which brings axe-core")
    source = Path(found.origin).with_name("axe.min.js").read_text()

    def run(page: Any) -> list[str]:
        page.wait_for_timeout(400)  # colours in transition have wrong contrasts
        wait_until_still(page)
        if not page.evaluate("'axe' in window"):
            page.evaluate(source)
        result = page.evaluate("axe.run(document, {rules: {'target-size': {enabled: true}}})")
        assert result["passes"], "axe-core looked at nothing"
        return [
            f"{found['impact']}: {found['id']}: {node['html'][:200]}"
            for found in result["violations"]
            for node in found["nodes"]
        ]

    return run


# --- the WebUI ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def run_command(*arguments: str, lines: list[str] | None = None) -> Iterator[str]:
    """The URL of `seesay serve gradio …` on a free port, in a process of its own."""
    port = find_port()
    command = ("-m", "seesay", "serve", "gradio", "--server-port", str(port), *arguments)
    with run_webui(*command, port=port, lines=lines) as url:
        yield url


@contextlib.contextmanager
def run_webui(*arguments: str, port: int, lines: list[str] | None = None, **variables: str) -> Iterator[str]:
    """The URL of a Python program that serves the WebUI at `port`. SIGTERM must end it with status 0. `lines` gets what
    it writes to stderr."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    lines = [] if lines is None else lines
    is_ready = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "the WebUI is at" in line:
                is_ready.set()
        is_ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert is_ready.wait(300) and process.poll() is None, "".join(lines)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        reader.join(60)
        process.stderr.close()
    assert status == 0, "".join(lines)


_running = contextlib.ExitStack()
_urls: dict[tuple[str, ...], str] = {}
"""The WebUIs that are running, by their arguments. They go on until a test of another folder comes: one that waits for
visitors takes two hundredths of a core."""


def run_once(*arguments: str) -> str:
    """The URL of `seesay serve gradio …`, which the first test that needs it starts for those that follow."""
    if arguments not in _urls:
        _urls[arguments] = _running.enter_context(run_command(*arguments))
    return _urls[arguments]


@pytest.hookimpl(trylast=True)  # when the pages of the last test are closed
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    is_ours = nextitem is not None and nextitem.path.parent == Path(__file__).parent
    if not (is_ours and hasattr(getattr(nextitem, "module", None), "OpenPage")):
        _browser.close()
    if not is_ours:
        _urls.clear()
        _running.close()


@pytest.fixture
def demo_url(needs_browser: None) -> str:
    """The WebUI with the built-in checkpoint, whose server it starts."""
    return run_once()


@pytest.fixture
def run_ui(needs_browser: None) -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Runs `seesay serve gradio …` for one test. Its option `lines` gets what the process writes to stderr."""
    return run_command


@pytest.fixture
def run_space() -> Callable[..., contextlib.AbstractContextManager[str]]:
    """Runs the example of a Hugging Face Space, or code beside it, in which `PORT` is the port."""
    if not importlib.util.find_spec("gradio"):
        pytest.skip("not installed: the extra 'ui' (gradio)")
    root = Path(__file__).parents[2]
    folder = root / "examples" / "huggingface_space"

    def run(code: str | None = None) -> contextlib.AbstractContextManager[str]:
        port = find_port()
        path = os.pathsep.join(filter(None, (str(folder), str(root), os.environ.get("PYTHONPATH"))))
        program = [str(folder / "app.py")] if code is None else ["-c", code.replace("PORT", str(port))]
        return run_webui(*program, port=port, PORT=str(port), PYTHONPATH=path)

    return run


# --- a server that plays by a script --------------------------------------------------------------------------------


class ScriptedServer(ThreadingHTTPServer):
    """Speaks just enough of OpenAI's API. `script(body)` yields texts, or ends with an (HTTP status, error) instead."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script: Callable[[dict[str, Any]], Iterator[str]] = lambda body: iter(["Yes."])
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self.models = ["scripted"]
        self.keys: set[str] = set()  # without keys, everybody may ask
        self.is_away = False
        self.used_keys: list[str | None] = []  # of the questions
        self.details: dict[str, Any] | None = None
        self.requests: list[dict[str, Any]] = []
        self.num_left = 0  # answers whose reader went away

    def reset(self) -> None:
        """Have a fresh script."""
        self.script = lambda body: iter(["Yes."])
        self.refusal = self.details = None
        self.requests.clear()
        self.used_keys.clear()
        self.num_left = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.is_away:
            self._send_json(503, {"error": {"message": "no"}})
        elif self._has_key():
            models = [{"id": name, "object": "model"} for name in self.server.models]
            self._send_json(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        if not self._has_key():
            return
        server.used_keys.append((self.headers["authorization"] or "").removeprefix("Bearer ") or None)
        server.requests.append(body)
        if server.refusal is not None:
            status, error = server.refusal
            self._send_json(status, {"error": error})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            num = 0
            for text in server.script(body):
                num += 1
                self._send_event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
            self._send_event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            usage = {"prompt_tokens": 1234, "completion_tokens": num}
            details = {} if server.details is None else {"seesay": server.details}
            self._send_event({"choices": [], "usage": usage, **details})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            server.num_left += 1

    def _has_key(self) -> bool:
        """Whether the request may go on. If not, it is answered."""
        known = {f"Bearer {key}" for key in self.server.keys}
        if known and self.headers["authorization"] not in known:
            self._send_json(401, {"error": {"message": "the API key is not valid", "code": "invalid_api_key"}})
            return False
        return True

    def _send_json(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_event(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()


@contextlib.contextmanager
def run_scripted() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[ScriptedServer]:
    with run_scripted() as server:
        yield server


@pytest.fixture
def scripted(scripted_server: ScriptedServer) -> ScriptedServer:
    """The scripted server, with a fresh script."""
    scripted_server.reset()
    return scripted_server


@pytest.fixture(scope="session")
def keyed_server() -> Iterator[ScriptedServer]:
    with run_scripted() as server:
        yield server


@pytest.fixture
def keyed(keyed_server: ScriptedServer) -> ScriptedServer:
    """A scripted server with two API keys."""
    keyed_server.reset()
    keyed_server.keys = {"sesame-one", "sesame-two"}
    return keyed_server


@pytest.fixture
def keyed_url(needs_browser: None, keyed: ScriptedServer) -> str:
    """The WebUI for the server with keys, of which it was given none."""
    return run_once(keyed.url)


@pytest.fixture
def scripted_url(needs_browser: None, scripted_server: ScriptedServer) -> str:
    """The WebUI for the scripted server."""
    return run_once(scripted_server.url)
