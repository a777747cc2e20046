"""`serve()` starts a server in a process of its own and gives a client for it; `client()` gives one for a server that
runs already. Imports no model code: the process does."""

from __future__ import annotations

import contextlib
import json
import os
import select
import ssl as ssl_module
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seesay.config import ChatTemplateConfig, EngineConfig, MediaLimits, TurbomindEngineConfig, VisionConfig
from seesay.config.checks import check_instance
from seesay.errors import CheckpointError, ConfigError, SeesayError
from seesay.serving.client import DEFAULT_URL, APIClient, APIError
from seesay.serving.listening import open_sockets, port_of, url_host

if TYPE_CHECKING:
    import socket

    from seesay.serving.settings import ServerSettings

READY = "ready"
"""What the process reports, in place of an error's name, once it listens."""

_KILL_AFTER_S = 5.0
_PLAIN: dict[Any, Callable[[Any], Any]] = {str: str, Integral: int, Real: float, os.PathLike: os.fspath}
_ERRORS: dict[str, type[SeesayError]] = {"ConfigError": ConfigError, "CheckpointError": CheckpointError}


def client(api_server_url: str = DEFAULT_URL, api_key: str | None = None, **kwargs: Any) -> APIClient:
    """A client for a running server. Further arguments are those of `APIClient`.

    for text, num_tokens, finish_reason in client("http://localhost:23333").chat("hi", session_id=1):
        print(text)
    """
    return APIClient(api_server_url, api_key, **kwargs)


def serve(
    model_path: str | os.PathLike[str] = "seesay-demo",
    model_name: str | None = None,
    backend: Literal["turbomind", "pytorch"] = "pytorch",
    backend_config: EngineConfig | TurbomindEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None,
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
    chat_template_config: also a built-in template's name, or a file or folder that holds a template.
    api_keys: any of them opens the server; the client uses the first. ssl: serve https with the files that the
        environment variables SSL_CERTFILE and SSL_KEYFILE name; the client accepts that certificate.
    media_limits: what pictures and clips may cost and where they may come from; without, local paths are refused.
    settings: further fields of `seesay.serving.ServerSettings`.

    Raises ConfigError for a wrong option and for a port that another server has, CheckpointError for a model that
    cannot be loaded, APIError when the server does not start. Close it, or use it in a `with` statement; it ends with
    this process at the latest.
    """
    from seesay.serving import ServerSettings

    check_instance("backend_config", backend_config, EngineConfig, TurbomindEngineConfig)
    check_instance("vision_config", vision_config, VisionConfig)
    check_instance("chat_template_config", chat_template_config, ChatTemplateConfig, str, os.PathLike)
    check_instance("media_limits", media_limits, MediaLimits)
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
        port=server_port,
        model_name=model_name,
        api_keys=keys,
        log_level=log_level,
        media=media_limits or MediaLimits.for_server(),
        **settings,
    )
    if isinstance(backend_config, TurbomindEngineConfig):
        backend_config = backend_config.to_engine_config()
    # Bound here, before anything is loaded: no other server can be taken for the one that is started.
    with open_sockets(checked.host, checked.port) as sockets:
        checked = replace(checked, port=port_of(sockets))
        orders = {
            "model_path": os.fspath(model_path),
            "settings": _as_json("settings", checked),
            "backend_config": _as_json("backend_config", backend_config or EngineConfig()),
            "vision_config": _as_json("vision_config", vision_config or VisionConfig()),
            "chat_template_config": _as_json("chat_template_config", chat_template_config),
        }
        return ServerProcess(orders, checked, sockets, ready_timeout_s=ready_timeout_s)


class ServerProcess(APIClient):
    """A client whose server is a child process; closing it ends the server, running answers first."""

    def __init__(
        self,
        orders: Mapping[str, Any],
        settings: ServerSettings,
        sockets: Sequence[socket.socket],
        *,
        ready_timeout_s: float,
    ) -> None:
        """Start the process with `orders` and wait for it, at most `ready_timeout_s`. Use `serve`.

        It listens on `sockets`, which stay the caller's to close.
        """
        scheme = "https" if settings.ssl_certfile else "http"
        url = f"{scheme}://{url_host(settings.host, sockets)}:{settings.port}"
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
                pass_fds=(report, *(sock.fileno() for sock in sockets)),
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
                numbered = {**orders, "sockets": [sock.fileno() for sock in sockets]}
                self._process.stdin.write(json.dumps(numbered).encode() + b"\n")
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
        """Return when the process says that it listens. It says so itself: whoever else answers is another server."""
        left_s = max(0.0, deadline - time.monotonic())
        if not select.select([reports], [], [], left_s)[0]:
            raise APIError("the server was not ready in time: raise ready_timeout_s")
        report = os.read(reports, 1 << 16)
        kind, message = json.loads(report) if report else ("", "")
        if kind != READY:
            status = self._process.wait(_KILL_AFTER_S)
            message = message or f"the server ended with status {status} before it was ready"
            raise _ERRORS.get(kind, APIError)(message)

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


def _as_json(name: str, value: Any) -> Any:
    """Return what `json` can write of the option `name`: a configuration, or any value that `check_types` accepts."""
    if value is None or isinstance(value, bool):
        return value
    for kind, convert in _PLAIN.items():
        if isinstance(value, kind):
            return convert(value)
    if is_dataclass(value):
        return {field.name: _as_json(field.name, getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_json(f"{name}.{key}", item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_as_json(f"{name}[{index}]", item) for index, item in enumerate(value)]
    raise ConfigError(f"{name}={value!r}: cannot be handed to the server's process")


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True
