from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from seesay.config import MediaLimits
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.processors.media import fetch as fetch_module
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.fetch import INTERNET, Network, is_allowed, is_global
from seesay.processors.media.load import load_image
from seesay.system.cancellation import Cancellation

if TYPE_CHECKING:
    from processors.conftest import Frames, Site

HERE = MediaLimits(allow_private_hosts=True, timeout_s=5)
BODY = b"0123456789" * 1000


def fetch(url: str, limits: MediaLimits, network: Network = INTERNET) -> bytes:
    return fetch_module.fetch(url, Allowance(limits), network)


def refusal(url: str, limits: MediaLimits = HERE, network: Network = INTERNET) -> RequestError:
    with pytest.raises(RequestError) as raised:
        fetch(url, limits, network)
    return raised.value


def test_a_picture_by_url(site: Site, encode: Callable[..., bytes], picture: Frames) -> None:
    url = site.serve("/a%20b.png", encode(picture))
    np.testing.assert_array_equal(np.asarray(load_image(url, limits=HERE)), picture)
    site.routes["/a%20b.png"] = site.routes.pop("/a%20b.png")
    assert fetch(site.url("/a b.png?q=1 2#part"), HERE) == encode(picture)
    assert site.paths[-1] == "/a%20b.png?q=1%202"


def test_bodies_of_unknown_length_and_chunks(site: Site) -> None:
    def until_close(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(BODY)

    def chunked(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for start in range(0, len(BODY), 3000):
            part = BODY[start : start + 3000]
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        handler.wfile.write(b"0\r\n\r\n")

    site.routes |= {"/close": until_close, "/chunked": chunked}
    assert fetch(site.url("/close"), HERE) == BODY
    assert fetch(site.url("/chunked"), HERE) == BODY


def test_status(site: Site) -> None:
    error = refusal(site.url("/nothing?token=secret"))
    assert error.code is ErrorCode.MEDIA_UNREACHABLE
    assert "404" in error.message and "secret" not in error.message and "/nothing?..." in error.message


def test_redirects(site: Site) -> None:
    end = site.serve("/end", BODY)
    site.redirect("/relative", "end")
    site.redirect("/1", site.url("/relative"))
    site.redirect("/2", "/1")
    assert fetch(site.url("/2"), HERE) == BODY
    assert site.paths == ["/2", "/1", "/relative", "/end"]
    site.redirect("/3", "/2")
    assert "more than 3 redirects" in refusal(site.url("/3")).message
    assert fetch(end, MediaLimits(allow_private_hosts=True, max_redirects=0)) == BODY


def test_each_redirect_is_checked(site: Site) -> None:
    """The first host passes for a public one; it sends on to the private address that it is at."""
    site.serve("/secret", BODY)
    url = site.redirect("/open", site.url("/secret"))
    answers = iter([True])
    network = Network(is_public=lambda address: next(answers, False))
    assert refusal(url, MediaLimits(), network).code is ErrorCode.MEDIA_FORBIDDEN
    assert site.paths == ["/open"]
    for location in ("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"):
        assert refusal(site.redirect("/other", location)).code is ErrorCode.MEDIA_FORBIDDEN


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433",
        "0x7f000001", "127.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "[::]", "[fe80::1]", "[fc00::1]",
        "224.0.0.1", "255.255.255.255", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
    ],
)  # fmt: skip
def test_private_addresses_are_refused(site: Site, host: str) -> None:
    error = refusal(site.url("/", host), MediaLimits(timeout_s=5))
    assert error.code is ErrorCode.MEDIA_FORBIDDEN, error.message
    assert "allow_private_hosts" in error.message and "MediaLimits" not in error.message
    assert site.paths == []


def test_is_global() -> None:
    assert all(map(is_global, ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]))
    assert not any(map(is_global, ["ff02::1", "fe80::1%eth0", "::ffff:10.0.0.1", "240.0.0.1", "192.0.2.1"]))


def test_the_checked_address_is_the_one_connected_to(site: Site) -> None:
    """A name server that answers differently the second time has no second time."""
    site.serve("/x", BODY)
    lookups = []

    def resolve(host: Any, port: Any, **options: Any) -> Any:
        lookups.append(host)
        address = "127.0.0.1" if len(lookups) == 1 else "192.0.2.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    network = Network(resolve, lambda address: address == "127.0.0.1")
    assert fetch(f"http://pictures.example:{site.port}/x", MediaLimits(), network) == BODY
    assert lookups == ["pictures.example"]
    assert site.hosts == [f"pictures.example:{site.port}"]


def test_only_public_ones_of_several_addresses_are_tried(site: Site) -> None:
    site.serve("/x", BODY)

    def resolve(host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("127.0.0.2", "127.0.0.1")]

    network = Network(resolve, lambda address: address == "127.0.0.1")
    assert fetch(f"http://pictures.example:{site.port}/x", MediaLimits(), network) == BODY


def test_too_large(site: Site) -> None:
    limits = MediaLimits(allow_private_hosts=True, max_bytes=5000)
    assert refusal(site.serve("/declared", BODY), limits).code is ErrorCode.MEDIA_TOO_LARGE

    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(BODY)

    site.routes["/endless"] = endless
    error = refusal(site.url("/endless"), limits)
    assert error.code is ErrorCode.MEDIA_TOO_LARGE and "5000 bytes" in error.message


def test_lying_lengths(site: Site) -> None:
    error = refusal(site.serve("/longer", BODY, length=len(BODY) + 5))
    assert error.code is ErrorCode.MEDIA_UNREACHABLE and "10000 of 10005 bytes" in error.message
    assert fetch(site.serve("/shorter", BODY, length=100), HERE) == BODY[:100]


def test_encodings_that_were_not_asked_for(site: Site) -> None:
    assert "gzip" in refusal(site.serve("/zip", BODY, Content_Encoding="gzip")).message


@pytest.mark.parametrize("part", ["header", "body", "silence"])
def test_slow_drip_ends_at_the_deadline(site: Site, part: str) -> None:
    """The server goes on for as long as the client listens: that it stops is the deadline's doing."""
    is_over = threading.Event()

    def drip(handler: Any) -> None:
        if part == "silence":
            is_over.wait()
        line = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n" + (b"\r\n" if part == "body" else b"X: ")
        handler.wfile.write(line)
        while not is_over.wait(0.05):
            handler.wfile.write(b"x")

    site.routes["/drip"] = drip
    error = refusal(site.url("/drip"), MediaLimits(allow_private_hosts=True, timeout_s=0.4))
    assert error.code is ErrorCode.MEDIA_UNREACHABLE and "within 0.4 s" in error.message
    is_over.set()


def test_slow_name_server_ends_at_the_deadline() -> None:
    """It does not answer before the client has given up."""
    is_over = threading.Event()

    def hang(*_: Any, **__: Any) -> list[Any]:
        is_over.wait()
        return []

    network = Network(hang)
    assert "within 0.2 s" in refusal("http://slow.example/", MediaLimits(timeout_s=0.2), network).message
    is_over.set()


@pytest.mark.parametrize("stage", ["name", "tls", "head", "body"])
def test_a_fetch_that_nobody_waits_for_ends(stage: str) -> None:
    """Wherever it is, long before its deadline."""
    allowance = Allowance(MediaLimits(allow_private_hosts=True, timeout_s=600), cancellation := Cancellation(2))
    reached, ended = threading.Event(), threading.Event()
    raised: list[RequestError] = []

    def look_up(*arguments: Any, **options: Any) -> Any:
        if stage == "name":
            reached.set()
            ended.wait()
        return socket.getaddrinfo(*arguments, **options)

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"{'https' if stage == 'tls' else 'http'}://127.0.0.1:{server.getsockname()[1]}/"

        def run() -> None:
            try:
                fetch_module.fetch(url, allowance, Network(look_up))
            except RequestError as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        if stage == "name":
            assert reached.wait(60)
            cancellation.leave()
            assert not raised, "somebody waits still"
            cancellation.leave()
        else:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                if stage == "body":
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
                cancellation.leave()
                cancellation.leave()
        thread.join(60)
        ended.set()
        assert not thread.is_alive() and len(raised) == 1
    with pytest.raises(RequestError) as late:
        allowance.remaining_s()
    assert late.value.code is ErrorCode.ABORTED


def test_not_http(site: Site) -> None:
    def garbage(handler: Any) -> None:
        handler.wfile.write(b"\x00\x01\x02 nonsense\r\n\r\n")

    site.routes["/garbage"] = garbage
    assert refusal(site.url("/garbage")).code is ErrorCode.MEDIA_UNREACHABLE
    assert refusal(f"https://127.0.0.1:{site.port}/").code is ErrorCode.MEDIA_UNREACHABLE


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = refusal(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert error.code is ErrorCode.MEDIA_UNREACHABLE
    assert "is not known" in refusal("http://nowhere.invalid/").message


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://host.invalid/x.png", ErrorCode.MEDIA_FORBIDDEN),
        ("http:///x.png", ErrorCode.INVALID_MEDIA),
        ("http://host.invalid:99999/x.png", ErrorCode.INVALID_MEDIA),
        ("http://[::1/x.png", ErrorCode.INVALID_MEDIA),
        ("http://user:hunter2@host.invalid/x.png", ErrorCode.INVALID_MEDIA),
        ("http://a\0b/x.png", ErrorCode.MEDIA_UNREACHABLE),
        (f"http://{'a' * 70}.invalid/x.png", ErrorCode.MEDIA_UNREACHABLE),
        ("http://host.invalid/\r\nX: y", ErrorCode.MEDIA_UNREACHABLE),
    ],
)
def test_bad_urls(url: str, code: Any) -> None:
    error = refusal(url)
    assert error.code is code
    assert "hunter2" not in error.message


# --- domains ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("example.com", True),
        ("EXAMPLE.com.", True),
        ("www.example.com", False),
        ("notexample.com", False),
        ("example.com.evil.net", False),
        ("cdn.pics.org", True),
        ("a.b.pics.org", True),
        ("pics.org", False),
        ("evilpics.org", False),
        ("xn--bcher-kva.de", True),
        ("bücher.de", True),
        ("127.0.0.1", False),
    ],
)
def test_domains(host: str, expected: bool) -> None:
    assert is_allowed(host, ("example.com", "*.Pics.org", "xn--bcher-kva.de")) is expected


def test_other_domains_are_refused_before_any_look_up() -> None:
    network = Network(lambda *_, **__: pytest.fail("the name was looked up"))
    error = refusal("http://evil.net/x.png", MediaLimits(allowed_media_domains=["example.com"]), network)
    assert error.code is ErrorCode.MEDIA_FORBIDDEN and "evil.net" in error.message
    error = refusal("http://example.com/x.png", MediaLimits(allowed_media_domains=()), network)
    assert error.code is ErrorCode.MEDIA_FORBIDDEN


def test_redirects_stay_in_the_domains(site: Site) -> None:
    site.serve("/end", BODY)
    limits = MediaLimits(allow_private_hosts=True, allowed_media_domains=("127.0.0.1",))
    assert fetch(site.redirect("/in", site.url("/end")), limits) == BODY
    error = refusal(site.redirect("/out", site.url("/end", "localhost")), limits)
    assert error.code is ErrorCode.MEDIA_FORBIDDEN and site.paths[-1] == "/out"


@pytest.mark.parametrize("wrong", ["example.com", ["http://example.com"], ["a.com:80"], ["a.com/x"], [""], ["*"], [5]])
def test_wrong_domains_are_named(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="allowed_media_domains"):
        MediaLimits(allowed_media_domains=wrong)
    assert MediaLimits(allowed_media_domains=("::1", "10.0.0.1", "localhost", "*.a-b.com"))


# --- what a whole request may take ----------------------------------------------------------------------------------


def test_redirects_share_one_deadline(site: Site) -> None:
    def slow_redirect(handler: Any) -> None:
        time.sleep(0.25)
        handler.send_response(302)
        handler.send_header("Location", "/slow")
        handler.end_headers()

    site.routes["/slow"] = slow_redirect
    error = refusal(site.url("/slow"), MediaLimits(allow_private_hosts=True, timeout_s=0.6, max_redirects=50))
    assert "within 0.6 s" in error.message and len(site.paths) <= 3


def test_bodies_share_one_allowance(site: Site) -> None:
    url = site.serve("/x", BODY)
    allowance = Allowance(MediaLimits(allow_private_hosts=True, max_total_bytes=25_000))
    for _ in range(2):
        fetch_module.fetch(url, allowance)
    with pytest.raises(RequestError, match="max_total_bytes") as raised:
        fetch_module.fetch(url, allowance)
    assert raised.value.code is ErrorCode.MEDIA_TOO_LARGE
