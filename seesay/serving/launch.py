"""`serve()` starts a server in a process of its own and gives a client for it; `client()` gives one for a server that
runs already. Imports no model code: the process does."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl as ssl_module
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seesay.config import ChatTemplateConfig, EngineConfig, MediaLimits, TurbomindEngineConfig, VisionConfig
from seesay.errors import CheckpointError, ConfigError, SeesayError
from seesay.serving.client import DEFAULT_URL, APIClient, APIError

if TYPE_CHECKING:
    from seesay.serving.settings import ServerSettings

_POLL_S = 0.1
_KILL_AFTER_S = 5.0
_LISTENS_ON_ALL = ("0.0.0.0", "::", "")
_ERRORS: dict[str, type[SeesayError]] = {"ConfigError": ConfigError, "CheckpointError": CheckpointError}


def client(api_server_url: str = DEFAULT_URL, api_key: str | None = None, **kwargs: Any) -> APIClient:
    """A client for a running server. Further arguments are those of `APIClient`.

    for text, num_tokens, finish_reason in client("http://localhost:23333").chat("hi", session_id=1):
        print(text)
    """
    return APIClient(api_server_url, api_key, **kwargs)


def serve(
    model_path: str = "seesay-demo",
    model_name: str | None = None,
    backend: Literal["turbomind", "pytorch"] = "pytorch",
    backend_config: EngineConfig | TurbomindEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | None = None,
    server_name: str = "0.0.0.0",
    server_port: int = 23333,
    log_level: str = "ERROR",
    api_keys: str | Sequence[str] | None = None,
    ssl: bool = False,
    *,
    vision_config: VisionConfig | None = None,
    media_limits: MediaLimits | None = None,
    ready_timeout_s: float = 1800.0,
    **settings: Any,
) -> ServerProcess:
    """Start a server in a process of its own, wait until it answers, and return a client for it.

    backend: both of LMDeploy's names mean the one engine there is. server_port: 0 takes a free one.
    api_keys: any of them opens the server; the client uses the first. ssl: serve https with the files that the
        environment variables SSL_CERTFILE and SSL_KEYFILE name; the client accepts that certificate.
    media_limits: what pictures and clips may cost and where they may come from; without, local paths are refused.
    settings: further fields of `seesay.serving.ServerSettings`.

    Raises ConfigError for a wrong option, CheckpointError for a model that cannot be loaded, APIError when the server
    does not start. Close it, or use it in a `with` statement; it ends with this process at the latest.
    """
    from seesay.serving import ServerSettings

    if backend not in ("turbomind", "pytorch"):
        raise ConfigError(f"backend={backend!r}: must be 'pytorch' or 'turbomind'")
    keys = (api_keys,) if isinstance(api_keys, str) else tuple(api_keys or ())
    if ssl:
        settings |= {"ssl_certfile": _ssl_file("SSL_CERTFILE"), "ssl_keyfile": _ssl_file("SSL_KEYFILE")}
    known = {field.name for field in fields(ServerSettings)}
    if unknown := sorted(set(settings) - known):
        raise ConfigError(f"serve: unknown option {unknown[0]!r}")
    checked = ServerSettings(
        host=server_name,
        port=server_port or _find_port(server_name),
        model_name=model_name,
        api_keys=keys,
        log_level=log_level,
        media=media_limits or MediaLimits.for_server(),
        **settings,
    )
    if isinstance(backend_config, TurbomindEngineConfig):
        backend_config = backend_config.to_engine_config()
    orders = {
        "model_path": os.fspath(model_path),
        "settings": asdict(checked),
        "backend_config": asdict(backend_config or EngineConfig()),
        "vision_config": asdict(vision_config or VisionConfig()),
        "chat_template_config": None if chat_template_config is None else asdict(chat_template_config),
    }
    return ServerProcess(orders, checked, ready_timeout_s=ready_timeout_s)


class ServerProcess(APIClient):
    """A client whose server is a child process; closing it ends the server, running answers first."""

    def __init__(self, orders: Mapping[str, Any], settings: ServerSettings, *, ready_timeout_s: float) -> None:
        """Start the process with `orders` and wait for it, at most `ready_timeout_s`. Use `serve`."""
        scheme = "https" if settings.ssl_certfile else "http"
        host = "127.0.0.1" if settings.host in _LISTENS_ON_ALL else settings.host
        url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"
        super().__init__(
            url, settings.api_keys[0] if settings.api_keys else "", verify=_trust_only(settings.ssl_certfile)
        )
        self._drain_timeout_s = settings.drain_timeout_s
        reports, report = os.pipe()
        try:
            # Orders go through a pipe, so that keys show in no list of processes; when we end, so does the pipe, and
            # the child with it. Its own session keeps Ctrl-C from it: we end it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "seesay.serving.child", str(report)],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else None,
                pass_fds=(report,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        except BaseException:
            os.close(reports)
            raise
        finally:
            os.close(report)
        try:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(orders).encode() + b"\n")
                self._process.stdin.flush()
            self._wait_until_ready(time.monotonic() + ready_timeout_s, reports)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(reports)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def _wait_until_ready(self, deadline: float, reports: int) -> None:
        while not self.is_healthy():
            if self._process.poll() is not None:
                report = os.read(reports, 1 << 16)
                kind, message = json.loads(report) if report else ("", "")
                message = message or f"the server ended with status {self._process.returncode} before it was ready"
                raise _ERRORS.get(kind, APIError)(message)
            if time.monotonic() > deadline:
                raise APIError("the server was not ready in time: raise ready_timeout_s")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the server: what it is answering is finished first, for as long as its `drain_timeout_s`."""
        super().close()
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(self._drain_timeout_s + _KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _python_path() -> str:
    """What lets the child import the package that we are, wherever we found it."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))


def _trust_only(certfile: str | None) -> ssl_module.SSLContext | bool:
    """Trust in the server's own certificate and no other, whatever host it was made for."""
    if certfile is None:
        return True
    try:
        context = ssl_module.create_default_context(cafile=certfile)
    except OSError as error:
        raise ConfigError(f"ssl_certfile={certfile!r}: {error}") from None
    context.check_hostname = False
    return context


def _ssl_file(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(f"ssl=True: the environment variable {variable} must name a PEM file")
    return value


def _find_port(host: str) -> int:
    """A port that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ConfigError(f"server_name={host!r}: cannot listen there: {error}") from None
        return int(probe.getsockname()[1])


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
