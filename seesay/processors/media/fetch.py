"""Fetches http and https URLs, all of which are treated as hostile.

A name is resolved once, its addresses are checked, and the connection goes to a checked address, so that a second
answer of the name server changes nothing. Every redirect is checked in the same way. One deadline covers all that a
request fetches. Proxies set in the environment are not used: they would connect to unchecked addresses.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.version import __version__

_CHUNK_BYTES = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_HEADERS = {
    "User-Agent": f"seesay/{__version__}",
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Connection": "close",
}

Address = tuple[Any, ...]


def is_global(address: str) -> bool:
    """Return whether an IP address is reachable over the public internet; IPv4 addresses inside IPv6 ones are checked
    too."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if (translated := _find_translated(ip)) is not None:
            return is_global(str(translated))
        tunnelled = _find_tunnelled(ip)
        if tunnelled is not None and not is_global(str(tunnelled)):
            return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback)


def _find_translated(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for, mapped or translated (NAT64)."""
    if ip.ipv4_mapped:
        return ip.ipv4_mapped
    return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else None


def _find_tunnelled(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address of the host that packets to an IPv6 address are tunnelled to (6to4, Teredo)."""
    if ip.sixtofour is not None:
        return ip.sixtofour
    return None if ip.teredo is None else ip.teredo[1]


@dataclass(frozen=True, slots=True)
class Network:
    """Resolves a name, and chooses the address to connect to.

    look_up: takes what `socket.getaddrinfo` does. is_public: whether an address is reachable over the public internet.
    """

    look_up: Callable[..., Sequence[Address]] = socket.getaddrinfo
    is_public: Callable[[str], bool] = is_global


INTERNET = Network()


def fetch(url: str, allowance: Allowance, network: Network = INTERNET) -> bytes:
    """Return the body of the response to `url`, and count it in `allowance`.

    Raises `RequestError`: media_forbidden (scheme, host, or an address that is not globally routable),
    media_too_large, media_unreachable (name, connection, status, deadline, broken body).
    """
    limits = allowance.limits
    for _ in range(limits.max_redirects + 1):
        parts = _split(url, limits)
        try:
            body = _get(parts, allowance, network)
        except TimeoutError:
            raise _unreachable(url, f"no complete answer within {limits.timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise _unreachable(url, f"no secure connection: {error.reason or error}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: not a possible host
            raise _unreachable(url, str(error) or type(error).__name__) from None
        if isinstance(body, bytes):
            return body
        url = urljoin(url, body.location)
    raise _unreachable(url, f"more than {limits.max_redirects} redirects")


def shorten_url(url: str) -> str:
    """Return a URL for messages: short, without user name, password and query, which may be secret."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return repr(url[:40])
    path = parts.path if len(parts.path) <= 60 else parts.path[:57] + "..."
    return f"{parts.scheme}://{host}{path}{'?...' if parts.query else ''}"


class _Redirect:
    def __init__(self, location: str) -> None:
        self.location = location


def _split(url: str, limits: MediaLimits) -> SplitResult:
    """Split a URL, and check what its text alone tells about whether it may be fetched."""
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0  # `port` raises ValueError for an invalid port
    except ValueError as error:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"{url[:40]!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise RequestError(
            ErrorCode.MEDIA_FORBIDDEN,
            f"{shorten_url(url)}: only http and https URLs are fetched, not {parts.scheme or 'schemeless ones'}",
        )
    if not parts.hostname or not has_port:
        raise RequestError(ErrorCode.INVALID_MEDIA, f"{shorten_url(url)} names no host to connect to")
    if parts.username is not None or parts.password is not None:
        raise RequestError(
            ErrorCode.INVALID_MEDIA, f"{shorten_url(url)}: user names and passwords in URLs are not sent"
        )
    if limits.allowed_media_domains is not None and not is_allowed(parts.hostname, limits.allowed_media_domains):
        raise RequestError(
            ErrorCode.MEDIA_FORBIDDEN,
            f"{shorten_url(url)}: the host {parts.hostname!r} is not one that media are fetched from here: "
            "give the content in place of the URL",
        )
    return parts


def is_allowed(host: str, domains: Sequence[str]) -> bool:
    """Return whether a URL's host is among `domains`: "example.com" matches that host alone, "*.example.com" every host
    that ends so."""
    try:
        name = host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError:
        return False
    name = name.lower().rstrip(".")
    for domain in domains:
        wanted = domain.lower().rstrip(".")
        if name == wanted or (wanted.startswith("*.") and name.endswith(wanted[1:]) and name != wanted[2:]):
            return True
    return False


# --- where to connect ----------------------------------------------------------------------------------------------


def _resolve(host: str, port: int, allowance: Allowance, network: Network) -> list[Address]:
    """Return the socket addresses of a host to which connections are allowed."""
    found = _look_up(host, port, allowance, network)
    if allowance.limits.allow_private_hosts:
        return found
    allowed = [address for address in found if network.is_public(str(address[4][0]))]
    if not allowed:
        raise RequestError(
            ErrorCode.MEDIA_FORBIDDEN,
            f"the host {host!r} is at {found[0][4][0]}, an address that is not public: give the content in place of "
            "the URL, or set allow_private_hosts where every request can be trusted",
        )
    return allowed


def _look_up(host: str, port: int, allowance: Allowance, network: Network) -> list[Address]:
    # The system's resolver takes no deadline, so it runs in a thread that may outlive the request.
    answers: queue.SimpleQueue[list[Address] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(list(network.look_up(host, port, type=socket.SOCK_STREAM)))
        except Exception as error:  # the other thread waits for an answer
            answers.put(error)

    threading.Thread(target=look_up, name="seesay-resolve", daemon=True).start()
    try:
        with allowance.cancellation.calling(lambda: answers.put(TimeoutError())):
            answer = answers.get(timeout=allowance.remaining_s())
    except queue.Empty:
        raise TimeoutError from None
    allowance.remaining_s()
    if isinstance(answer, Exception):
        raise OSError(f"the host {host!r} is not known")
    return answer


def _connect(parts: SplitResult, allowance: Allowance, network: Network) -> socket.socket:
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = _resolve(host, port, allowance, network)
    problem: OSError = OSError(f"the host {host!r} has no address")
    for index, (family, kind, protocol, _, address) in enumerate(addresses):
        connection = socket.socket(family, kind, protocol)
        try:
            # An unreachable address leaves time to try the following ones.
            connection.settimeout(allowance.remaining_s() / (len(addresses) - index))
            with allowance.cancellation.calling(partial(_shut_down, connection)):
                connection.connect(address)
            if parts.scheme == "https":
                connection.settimeout(allowance.remaining_s())
                with allowance.cancellation.calling(partial(_shut_down, connection)):
                    return _tls_context().wrap_socket(connection, server_hostname=host)
            return connection
        except BaseException as error:
            connection.close()
            if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
                raise
            problem = error
    allowance.remaining_s()
    raise problem


def _shut_down(connection: socket.socket) -> None:
    """End what another thread waits for on a connection, which is closed there."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # not that of TLS, which may wait


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


# --- the exchange ----------------------------------------------------------------------------------------------------


class _TimedSocket:
    """The part of a socket that http.client uses; each read and write ends at the deadline. The caller closes
    the socket."""

    def __init__(self, connection: socket.socket, allowance: Allowance) -> None:
        self._connection = connection
        self._allowance = allowance

    def sendall(self, data: Any) -> None:
        self._connection.settimeout(self._allowance.remaining_s())
        self._connection.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", mode
        return io.BufferedReader(_TimedReader(self._connection, self._allowance), _CHUNK_BYTES)

    def close(self) -> None:
        """Do nothing: http.client closes the socket once it has the file, from which it still reads."""


class _TimedReader(io.RawIOBase):
    def __init__(self, connection: socket.socket, allowance: Allowance) -> None:
        self._connection = connection
        self._allowance = allowance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(self._allowance.remaining_s())
        return self._connection.recv_into(buffer)


def _get(parts: SplitResult, allowance: Allowance, network: Network) -> bytes | _Redirect:
    with (
        _connect(parts, allowance, network) as connection,
        allowance.cancellation.calling(partial(_shut_down, connection)),
    ):
        exchange = http.client.HTTPConnection(parts.hostname or "", parts.port or http.client.HTTP_PORT)
        exchange.sock = _TimedSocket(connection, allowance)
        host = parts.netloc.encode("idna").decode() if not parts.netloc.isascii() else parts.netloc
        target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (
            "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~[]") if parts.query else ""
        )
        exchange.request("GET", target, headers={"Host": host, **_HEADERS})
        response = exchange.getresponse()
        location = response.getheader("Location")
        if response.status in _REDIRECTS and location:
            return _Redirect(location)
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"the server answered {response.status} {response.reason[:60]}".rstrip())
        encoding = response.getheader("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise http.client.HTTPException(f"the server sent the encoding {encoding[:20]!r}, which was not asked for")
        return _read_body(response, parts, allowance)


def _read_body(response: http.client.HTTPResponse, parts: SplitResult, allowance: Allowance) -> bytes:
    declared, limits = response.length, allowance.limits
    if declared is not None and declared > limits.max_bytes:
        raise _too_large(parts, limits)
    body = bytearray()
    while chunk := response.read(_CHUNK_BYTES):
        body += chunk
        allowance.spend_bytes(len(chunk))
        if len(body) > limits.max_bytes:
            raise _too_large(parts, limits)
    if declared is not None and len(body) < declared:
        raise http.client.HTTPException(f"the connection ended after {len(body)} of {declared} bytes")
    return bytes(body)


def _too_large(parts: SplitResult, limits: MediaLimits) -> RequestError:
    return RequestError(
        ErrorCode.MEDIA_TOO_LARGE,
        f"{shorten_url(parts.geturl())} is larger than {limits.max_bytes} bytes: "
        "send a smaller file or raise MediaLimits.max_bytes",
    )


def _unreachable(url: str, reason: str) -> RequestError:
    return RequestError(
        ErrorCode.MEDIA_UNREACHABLE,
        f"cannot fetch {shorten_url(url)}: {reason}. Check the URL, or give the content in place of it",
    )
