"""The sockets of a server. They are bound before the model is loaded, so that a port in use is reported at once."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import sys
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from seesay.errors import ConfigError
from seesay.serving.errors import bad_request

# An address that this machine does not have, such as ::1 where IPv6 is off.
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@contextlib.contextmanager
def open_sockets(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Bind a socket to each address of `host` ('': all addresses of the machine); close them at the end of the block.
    They do not listen yet.

    port: 0 takes a free one. Raises `ConfigError` when the host is unknown or the port is in use.
    """
    try:
        found = socket.getaddrinfo(host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host!r}: {getattr(error, 'strerror', None) or error}") from None
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    with contextlib.ExitStack() as opened:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sock = opened.enter_context(socket.socket(family, kind, protocol))
                _bind(sock, (address[0], port_of(sockets) or port, *address[2:]))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise cannot_listen(host, port, error) from None
                absent = error
            else:
                sockets.append(sock)
        if not sockets:
            assert absent is not None, "getaddrinfo returns at least one address"
            raise cannot_listen(host, port, absent)
        yield sockets


def port_of(sockets: Sequence[socket.socket]) -> int:
    """Return the common port of `sockets`, or 0 if there are none."""
    return int(sockets[0].getsockname()[1]) if sockets else 0


def url_host(host: str, sockets: Sequence[socket.socket]) -> str:
    """Return `host` as it is written in a URL on this machine. A wildcard address becomes the loopback address of the
    family of `sockets`."""
    if host in ("", "0.0.0.0", "::"):
        families = {sock.family for sock in sockets}
        host = "127.0.0.1" if socket.AF_INET in families else "::1"
    return shown_host(host)


def shown_host(host: str) -> str:
    """Return `host` as it is written in a URL: an IPv6 address stands in brackets, '' is all addresses."""
    return f"[{host}]" if ":" in host else host or "0.0.0.0"


def warn_of_strangers(host: str, served: str, advice: str) -> None:
    """Warn on stderr if a service without API keys can be reached from other machines."""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False  # '' is all addresses
    if not is_local:
        print(
            f"seesay: warning: {served} at {shown_host(host)} requires no key: "
            f"anyone who can reach this machine can use it; {advice}",
            file=sys.stderr,
            flush=True,
        )


def cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    """Return the error for an address that cannot be bound."""
    return ConfigError(f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --server-port")


def _bind(sock: socket.socket, address: tuple[object, ...]) -> None:
    # Allows a port whose last server has just ended. A port on which a server listens is still refused.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(address)


def read_url(url: object) -> str:
    """Return the URL of a server as it is compared, http(s)://HOST:PORT. Raises `ApiError` for any other."""
    with contextlib.suppress(ValueError):
        is_plain = isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url
        parts = urlsplit(str(url) if is_plain else "")
        host, port = parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        has_more = any((parts.path.rstrip("/"), parts.query, parts.fragment, "@" in parts.netloc))
        if host and parts.scheme in ("http", "https") and not has_more:
            return f"{parts.scheme}://{shown_host(host)}:{port}"
    raise bad_request("url must be http://HOST:PORT or https://HOST:PORT, without a path", "url")
