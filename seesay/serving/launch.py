"""`serve()` starts a server in a child process and returns a client for it. `client()` returns a client for a server
that is already running. Only the child process imports model code."""

from __future__ import annotations

import contextlib
import os
import select
import ssl as ssl_module
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from seesay.config import ChatTemplateConfig, EngineConfig, MediaLimits, TurbomindEngineConfig, VisionConfig
from seesay.config.checks import check_instance
from seesay.config.plain import as_plain
from seesay.errors import ConfigError
from seesay.serving.child_process import MAX_REPORT_BYTES, check_report, start_server
from seesay.serving.client import DEFAULT_URL, APIClient, APIError
from seesay.serving.http.listener import open_sockets, port_of, url_host

if TYPE_CHECKING:
    import socket

    from seesay.serving.settings import ServerSettings

_KILL_AFTER_S = 5.0


def client(api_server_url: str = DEFAULT_URL, api_key: str | None = None, **kwargs: Any) -> APIClient:
    """Return a client for a running server. Further arguments are those of `APIClient`.

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
    """Start a server in a child process, wait until it answers, and return a client for it.

    backend: 'pytorch' or 'turbomind', LMDeploy's names; both mean the one engine of this package.
    server_port: 0 takes a free port.
    chat_template_config: a configuration, the name of a built-in template, or a file or folder that holds a template.
    api_keys: keys that the server accepts; the client uses the first.
    ssl: serve https with the files in the environment variables SSL_CERTFILE and SSL_KEYFILE. The client accepts that
        certificate.
    media_limits: limits on the size and the sources of pictures and videos. By default local paths are refused.
    settings: further fields of `seesay.serving.ServerSettings`.

    Raises ConfigError for a wrong option and for a port in use, CheckpointError for a model that cannot be loaded, and
    APIError when the server does not start. Close it, or use it in a `with` statement; it ends with this process at
    the latest.
    """
    from seesay.serving import ServerSettings
    from seesay.templates import as_portable

    check_instance("backend_config", backend_config, EngineConfig, TurbomindEngineConfig)
    check_instance("vision_config", vision_config, VisionConfig)
    check_instance("chat_template_config", chat_template_config, ChatTemplateConfig, str, os.PathLike)
    check_instance("media_limits", media_limits, MediaLimits)
    if backend not in ("turbomind", "pytorch"):
        raise ConfigError(f"backend must be 'pytorch' or 'turbomind', got {backend!r}")
    keys = (api_keys,) if isinstance(api_keys, str) else tuple(api_keys or ())
    if ssl:
        settings |= {"ssl_certfile": _ssl_file("SSL_CERTFILE"), "ssl_keyfile": _ssl_file("SSL_KEYFILE")}
    _check_known(settings)
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
    # Bind the port here, before the child starts: another server on it cannot be mistaken for the child.
    with open_sockets(checked.host, checked.port) as sockets:
        checked = replace(checked, port=port_of(sockets))
        orders = {
            "model_path": os.fspath(model_path),
            "settings": as_plain("settings", checked),
            "backend_config": as_plain("backend_config", backend_config or EngineConfig()),
            "vision_config": as_plain("vision_config", vision_config or VisionConfig()),
            "chat_template_config": as_plain("chat_template_config", as_portable(chat_template_config)),
        }
        return ServerProcess(orders, checked, sockets, ready_timeout_s=ready_timeout_s)


def _check_known(settings: Collection[str]) -> None:
    from seesay.serving import ServerSettings

    known = {field.name for field in fields(ServerSettings)}
    if unknown := sorted(set(settings) - known):
        raise ConfigError(f"serve: unknown option {unknown[0]!r}")


class ServerProcess(APIClient):
    """A client whose server is a child process. Closing it lets running answers finish, then ends the server."""

    def __init__(
        self,
        orders: Mapping[str, object],
        settings: ServerSettings,
        sockets: Sequence[socket.socket],
        *,
        ready_timeout_s: float,
    ) -> None:
        """Start the process with the configuration `orders` and wait until it is ready, at most `ready_timeout_s`.

        The child listens on `sockets`, which the caller closes. Not for users: call `serve`.
        """
        scheme = "https" if settings.ssl_certfile else "http"
        url = f"{scheme}://{url_host(settings.host, sockets)}:{settings.port}"
        super().__init__(
            url, settings.api_keys[0] if settings.api_keys else "", verify=_trust_only(settings.ssl_certfile)
        )
        self._drain_timeout_s = settings.drain_timeout_s
        self._process, reports = start_server(orders, sockets)
        try:
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
        """Wait for the child's report that it listens. The port is not polled: another server may listen there."""
        left_s = max(0.0, deadline - time.monotonic())
        if not select.select([reports], [], [], left_s)[0]:
            raise APIError("the server was not ready within ready_timeout_s: raise it, or use a smaller model")
        check_report(os.read(reports, MAX_REPORT_BYTES), self._process, APIError, _KILL_AFTER_S)

    def close(self) -> None:
        """End the server. Running answers get up to its `drain_timeout_s` to finish."""
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


def _trust_only(certfile: str | None) -> ssl_module.SSLContext | bool:
    """Return an SSL context that accepts the server's own certificate only, for any host name."""
    if certfile is None:
        return True
    try:
        context = ssl_module.create_default_context(cafile=certfile)
    except OSError as error:
        raise ConfigError(f"ssl_certfile: cannot load {certfile!r}: {error}") from None
    context.check_hostname = False
    return context


def _ssl_file(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(f"ssl=True: the environment variable {variable} must name a PEM file")
    return value
