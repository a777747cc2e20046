"""Start the WebUI for a running server, or for a model, for which it starts its own server."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from seesay.errors import ConfigError, MissingExtraError

try:
    from seesay.serving.client import API_KEY_VARIABLE, APIClient, APIError
    from seesay.ui.sessions import Sessions
except MissingExtraError:  # names the extra `serve`; the extra `ui` includes it
    raise MissingExtraError("the WebUI", package="gradio", extra="ui") from None

if TYPE_CHECKING:
    import gradio as gr

    from seesay.config import ChatTemplateConfig, EngineConfig, TurbomindEngineConfig, VisionConfig
    from seesay.ui.answering import Answerer

MAX_FILE_BYTES = 40 << 20
"""Largest upload. As base64 it fits into a server's default `max_body_bytes`."""

_MAX_BODY_BYTES = 256 << 20
"""Largest body of our own server, which only this process can reach: a whole conversation with its files."""

_QUEUE_POLL_S = 0.05
"""How often Gradio looks for events. Its own millisecond takes 4 % of a core while the server is idle."""
_PROGRESS_POLL_S = 3600.0
"""How often Gradio looks for progress bars to update. The page has none; its own setting is 0.01 s."""
_SPACE_PORT = 7860
_DETAILS_HEADER = {"x-seesay-timings": "1"}


def run_webui(
    model_or_url: str | os.PathLike[str] = "seesay-demo",
    *,
    server_name: str = "127.0.0.1",
    server_port: int = 6006,
    api_key: str | None = None,
    api_keys: str | Sequence[str] | None = None,
    backend_config: EngineConfig | TurbomindEngineConfig | None = None,
    vision_config: VisionConfig | None = None,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
    log_level: str = "WARNING",
    **settings: Any,
) -> None:
    """Serve the WebUI until Ctrl-C or SIGTERM.

    model_or_url: the URL (http://, https://) of a running server; or a model, for which a server is started that only
        this machine can reach. The configurations are then the engine's, and `settings` are further options of
        `seesay.serve`.
    api_key: the key of the server at a URL, with which all visitors ask. If the server has keys and none is given here,
        nor in SEESAY_API_KEY, the page asks each visitor for one.
    api_keys: keys for a model's visitors: the page asks for one of them.
    server_port: 0 takes a free one.

    Raises MissingExtraError without the extra `ui`, ConfigError if the port is in use, APIError if the server cannot be
    reached, and the errors of `seesay.serve`.
    """
    _check_gradio()
    model_or_url = os.fspath(model_or_url)
    port = _check_port(server_name, server_port)
    logging.getLogger("seesay.ui").setLevel(log_level)
    options = {
        "backend_config": backend_config,
        "vision_config": vision_config,
        "chat_template_config": chat_template_config,
        **settings,
    }
    options = {name: value for name, value in options.items() if value is not None}
    if model_or_url.startswith(("http://", "https://")):
        _refuse_options(model_or_url, options, api_keys)
        source = _running_server(model_or_url, api_key)
    else:
        if api_key is not None:
            raise ConfigError(f"api_key requires the URL of a server; {model_or_url!r} is a model")
        keys = (api_keys,) if isinstance(api_keys, str) else tuple(api_keys or ())
        source = _own_server(model_or_url, keys, log_level=log_level, **options)
    with source as server, launch(server, server_name, port) as url:
        print(f"seesay: the WebUI is at {url} (press Ctrl-C to exit)", file=sys.stderr, flush=True)
        if isinstance(server, Sessions):
            print("seesay: the server has API keys: the page asks for one", file=sys.stderr, flush=True)
        else:
            from seesay.serving.http.listener import warn_of_strangers

            warn_of_strangers(server_name, "the WebUI", "put it behind a proxy that authenticates users")
        wait_for_signal()


def _refuse_options(url: str, options: Mapping[str, object], api_keys: str | Sequence[str] | None) -> None:
    """Raise `ConfigError` for an option that only a server of our own could have."""
    for name, value in options.items():
        # The command line always passes configurations. They equal the defaults if no option was given.
        if name not in ("backend_config", "vision_config") or value != type(value)():
            raise ConfigError(f"{name} cannot be set for a running server; {url} has its own")
    if api_keys:
        raise ConfigError(f"api_keys cannot be set for a running server; {url} has its own")


def run_local(
    model_path: str | os.PathLike[str] = "seesay-demo",
    model_name: str | None = None,
    backend: Literal["turbomind", "pytorch"] = "pytorch",
    backend_config: EngineConfig | TurbomindEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
    server_name: str = "0.0.0.0",
    server_port: int = 6006,
    *,
    vision_config: VisionConfig | None = None,
) -> None:
    """Load a model and serve the WebUI for it, like LMDeploy's `run_local`. See `run_webui`.

    server_name: 'huggingface-space' listens on the address that a Hugging Face Space expects.
    """
    if server_name == "huggingface-space":
        server_name, server_port = "0.0.0.0", _SPACE_PORT
    run_webui(
        model_path,
        server_name=server_name,
        server_port=server_port,
        backend_config=backend_config,
        vision_config=vision_config,
        chat_template_config=chat_template_config,
        model_name=model_name,
        backend=backend,
    )


@contextlib.contextmanager
def launch(server: Answerer | Sessions, server_name: str, server_port: int) -> Iterator[str]:
    """Serve the page in a thread for the duration of the block. Yields its URL. For `Sessions`, the page asks visitors
    for a key first."""
    with _own_upload_folder():
        yield from _serve_page(server, server_name, server_port)


def _serve_page(server: Answerer | Sessions, server_name: str, server_port: int) -> Iterator[str]:
    # Gradio reads this when it is imported: no telemetry, no check for updates.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from starlette.middleware import Middleware

    from seesay.ui.live import LiveMiddleware
    from seesay.ui.login import Login, LoginMiddleware
    from seesay.ui.page import EXAMPLES_FOLDER, FAVICON_FILE, SCRIPT_FILES, STYLE_FILES, build_page, make_theme
    from seesay.ui.policy import PolicyMiddleware, find_hosts

    middleware = [Middleware(PolicyMiddleware, hosts=find_hosts(server_name))]
    if isinstance(server, Sessions):
        login = Login(server, server_port)
        middleware.append(Middleware(LoginMiddleware, login=login))
        middleware.append(Middleware(LiveMiddleware, find_client=login.find_client))
        page = build_page(lambda request: login.find_client(request.cookies), None)
    else:
        middleware.append(Middleware(LiveMiddleware, find_client=lambda _: server))
        page = build_page(lambda _: server, server.available_models, has_live=server.live_address() is not None)
    set_up_queue(page)
    try:
        page.launch(
            server_name=server_name,
            server_port=server_port,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            inbrowser=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=[],
            max_threads=200,
            max_file_size=MAX_FILE_BYTES,
            allowed_paths=[str(EXAMPLES_FOLDER)],
            favicon_path=str(FAVICON_FILE),
            theme=make_theme(),
            css_paths=[str(file) for file in STYLE_FILES],
            app_kwargs={"middleware": middleware},
            head="".join(f"<script>{file.read_text()}</script>" for file in SCRIPT_FILES),
        )
        host = "localhost" if server_name in ("0.0.0.0", "127.0.0.1", "::") else server_name
        yield f"http://[{host}]:{server_port}" if ":" in host else f"http://{host}:{server_port}"
    finally:
        page.close(verbose=False)


def set_up_queue(page: gr.Blocks) -> None:
    """Give `page` a queue that runs any number of events at once, and rarely wakes while there is none."""
    page.queue(default_concurrency_limit=None, api_open=False)
    page._queue.sleep_when_free = _QUEUE_POLL_S
    page._queue.progress_update_sleep_when_free = _PROGRESS_POLL_S


@contextlib.contextmanager
def _own_upload_folder() -> Iterator[None]:
    """Use a temporary folder of this process for uploads. Gradio's default is shared by all processes, and each of them
    deletes the others' uploads when it ends."""
    if "GRADIO_TEMP_DIR" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="seesay-uploads-", ignore_cleanup_errors=True) as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("GRADIO_TEMP_DIR", None)


@contextlib.contextmanager
def _running_server(url: str, api_key: str | None) -> Iterator[APIClient | Sessions]:
    """Yield a client for the server at `url`; if it has keys and none is given, the sessions of visitors with one."""
    with APIClient(url, api_key, headers=_DETAILS_HEADER) as client:
        try:
            client.available_models  # noqa: B018
        except APIError as error:
            if error.status != 401 or api_key or os.environ.get(API_KEY_VARIABLE):
                raise
        else:
            yield client
            return
    with Sessions(url) as sessions:
        yield sessions


@contextlib.contextmanager
def _own_server(model_path: str, api_keys: Sequence[str], **options: Any) -> Iterator[APIClient | Sessions]:
    """Start a server on loopback. Yield the sessions of visitors with one of `api_keys`; without these, a client with a
    random key, the only one that the server accepts."""
    from seesay.serving.launch import serve

    keys = api_keys or (secrets.token_urlsafe(24),)
    print(f"seesay: loading {model_path} ...", file=sys.stderr, flush=True)
    given = {"drain_timeout_s": 2.0, "max_body_bytes": _MAX_BODY_BYTES, **options}
    with serve(model_path, server_name="127.0.0.1", server_port=0, api_keys=keys, **given) as server:
        url = server.api_server_url
        source = Sessions(url) if api_keys else APIClient(url, keys[0], headers=_DETAILS_HEADER)
        with source as visitors:
            yield visitors


def _check_gradio() -> None:
    import importlib.util

    if importlib.util.find_spec("gradio") is None:
        raise MissingExtraError("the WebUI", package="gradio", extra="ui")


def _check_port(host: str, port: int) -> int:
    """Return `port`, or a free one for 0. Called before a model is loaded, so that a port in use is reported at
    once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another --server-port"
            ) from None
        return int(probe.getsockname()[1])


def wait_for_signal() -> None:
    """Block until SIGTERM or SIGINT. Only the main thread receives signals: in other threads, never return."""
    over = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        over.wait()
    handlers = {number: signal.signal(number, lambda *_: over.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not over.wait(1.0):
            pass
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
