"""Visitors who are signed in with a key of the server. Their keys are in the memory of this process and nowhere else;
the browser gets a random token."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from seesay.serving.client import APIClient, APIError, LiveAddress

MAX_SESSIONS = 1000
IDLE_S = 12 * 3600.0
_CHECK_TIMEOUT_S = 15.0
_KEY = re.compile(r"[!-~]{1,1024}")
_DETAILS_HEADER = {"x-seesay-timings": "1"}


class WrongKeyError(Exception):
    """The server does not accept the key."""


class SignedInClient:
    """The server as one visitor sees it, with his key. An `Answerer`."""

    def __init__(self, client: APIClient) -> None:
        self._client = client

    @property
    def available_models(self) -> list[str]:
        return self._client.available_models

    def live_address(self) -> LiveAddress:
        return self._client.live_address()

    def chat_completions_v1(self, *args: Any, **request: Any) -> Generator[dict[str, Any], None, None]:
        try:
            yield from self._client.chat_completions_v1(*args, **request)
        except APIError as error:
            if error.status != 401:
                raise
            message = "the server no longer accepts your API key: sign out in the settings, and use another one"
            raise APIError(message) from None


@dataclass(slots=True, kw_only=True)
class _Session:
    client: SignedInClient
    used_at: float


class Sessions:
    """The visitors of the server at `url`. Thread-safe. Close it, or use it in a `with` statement."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._clients: dict[str, APIClient] = {}  # by key: as many as the server has keys
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()  # the one used last at the end

    def sign_in(self, key: str) -> str:
        """Return the token of a new session. Raises WrongKeyError, and APIError if the server cannot be asked."""
        if not _KEY.fullmatch(key):
            raise WrongKeyError
        with APIClient(self._url, key, timeout_s=_CHECK_TIMEOUT_S) as probe:
            try:
                probe.available_models  # noqa: B018
            except APIError as error:
                if error.status in (401, 403):
                    raise WrongKeyError from None
                raise
        token = secrets.token_urlsafe(32)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = APIClient(self._url, key, headers=_DETAILS_HEADER)
            self._sessions[_digest(token)] = _Session(
                client=SignedInClient(self._clients[key]), used_at=time.monotonic()
            )
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return token

    def find(self, token: str) -> SignedInClient | None:
        """Return the client of a session. None if it has ended, or was idle for `IDLE_S` seconds."""
        with self._lock:
            session = self._sessions.pop(_digest(token), None)
            if session is None or time.monotonic() - session.used_at > IDLE_S:
                return None
            session.used_at = time.monotonic()
            self._sessions[_digest(token)] = session
            return session.client

    def sign_out(self, token: str) -> None:
        with self._lock:
            self._sessions.pop(_digest(token), None)

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            self._sessions.clear()
            for client in self._clients.values():
                with suppress(APIError):
                    client.close()
            self._clients.clear()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
