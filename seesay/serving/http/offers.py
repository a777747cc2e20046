"""Requests that offer another protocol, as Java's client does in its first: `Upgrade: h2c`."""

from __future__ import annotations

import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from seesay.serving.http.socket_protocol import LIVE_PATH


class OfferlessProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which answers a request that offers another one as if it offered none, but for the WebSocket
    of `LIVE_PATH`. The parser behind it would leave out its body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_offer = False
        self._received, self._left = b"", b""

    def data_received(self, data: bytes) -> None:
        self._left = data
        while self._left and not self.transport.is_closing():
            self._received, self._left = self._left, b""
            super().data_received(self._received)

    def on_headers_complete(self) -> None:
        is_offer = self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)
        self._is_offer = is_offer and not self._should_upgrade()
        if not self._is_offer:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_offer:
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        is_live = self.url.partition(b"?")[0] == LIVE_PATH.encode() and self.parser.get_method() == b"GET"
        return is_live and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """The parser stopped behind the head of an offer: have it read again without that, and what follows."""
        fault = sys.exc_info()[1]
        if not self._is_offer or not isinstance(fault, httptools.HttpParserUpgrade):
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self._left = b"\r\n".join([*lines, b"", self._received[fault.args[0] :]])
        self.parser = httptools.HttpRequestParser(self)
