"""Registers a server with a distributor (`--proxy-url`), and takes it out when the server ends."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Sequence
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from seesay.errors import ConfigError
from seesay.serving.errors import ApiError
from seesay.serving.http.listener import port_of, read_url, shown_host
from seesay.serving.settings import ServerSettings

logger = logging.getLogger("seesay")

_REPEAT_S = 15.0
"""A distributor that was started again learns within this time of the servers that run."""
_FIRST_DELAY_S = 0.5
_TIMEOUT_S = 5.0


class Registration:
    """A server's place among the nodes of a distributor, from `start` to the end of the block."""

    def __init__(self, settings: ServerSettings, sockets: Sequence[socket.socket]) -> None:
        """Raises `ConfigError` for a URL that is none of a distributor."""
        try:
            self._proxy = read_url(settings.proxy_url)
        except ApiError as error:
            raise ConfigError(f"proxy_url={settings.proxy_url!r}: {error.message}") from None
        scheme = "https" if settings.ssl_certfile else "http"
        self._scheme, self._host, self._port = scheme, settings.host, port_of(sockets)
        self._headers = {"authorization": f"Bearer {settings.proxy_key}"} if settings.proxy_key else {}
        self._ending = threading.Event()
        self._said, self._is_registered = "", False
        self._thread = threading.Thread(target=self._keep, name="seesay-registration", daemon=True)

    def start(self) -> None:
        """Register, now that the server answers, and again from time to time."""
        self._thread.start()

    def __enter__(self) -> Registration:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _TIMEOUT_S)

    def _keep(self) -> None:
        delay_s = _FIRST_DELAY_S
        with httpx.Client(headers=self._headers, timeout=_TIMEOUT_S) as client:
            while not self._ending.is_set():
                self._say(self._add(client))
                delay_s = min(_REPEAT_S, 2 * delay_s) if self._said else _REPEAT_S
                self._ending.wait(delay_s)
            with contextlib.suppress(httpx.HTTPError, OSError):
                client.post(f"{self._proxy}/nodes/remove", params={"node_url": self._url()})

    def _add(self, client: httpx.Client) -> str:
        """Register. Returns why it did not succeed."""
        body = {"url": self._url(), "is_repeated": self._is_registered}
        try:
            answer = client.post(f"{self._proxy}/nodes/add", json=body)
        except (httpx.HTTPError, OSError) as error:
            return f"{error}"
        if answer.status_code == 200:
            self._is_registered = True
            return ""
        advice = "; --proxy-key or SEESAY_PROXY_KEY must be an admin key of it" if answer.status_code == 401 else ""
        return f"status {answer.status_code}: {answer.text[:400]}{advice}"

    def _say(self, failure: str) -> None:
        if failure and failure != self._said:
            logger.error("cannot register at %s, and tries again: %s", self._proxy, failure)
        elif self._said and not failure:
            logger.warning("registered at %s", self._proxy)
        self._said = failure

    def _url(self) -> str:
        """Return the address of this server for the distributor: of all addresses, that which reaches it."""
        host = self._host
        if host in ("", "0.0.0.0", "::"):
            parts = urlsplit(self._proxy)
            family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(address)  # sends nothing
                host = sock.getsockname()[0]
        return f"{self._scheme}://{shown_host(host)}:{self._port}"
