"""The names under which the page is served, and the headers that it has."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from seesay.ui.policy import PolicyMiddleware, find_hosts


async def answer(request: object) -> PlainTextResponse:
    del request
    return PlainTextResponse("the page")


async def get(host: str, server_name: str) -> httpx.Response:
    app = Starlette(routes=[Route("/", answer)])
    app.add_middleware(PolicyMiddleware, hosts=find_hosts(server_name))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        return await client.get("/", headers={"host": host})


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:7860", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:7860", 200),
        ("[::1]:7860", 200),
        ("192.168.1.7", 200),
        ("evil.example", 421),
        ("evil.example:7860", 421),
        ("localhost.evil.example", 421),
        ("localhost:7860@evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
@pytest.mark.parametrize("server_name", ["127.0.0.1", "0.0.0.0"])
async def test_a_foreign_name_that_leads_here_is_refused(host: str, status: int, server_name: str) -> None:
    response = await get(host, server_name)
    assert response.status_code == status
    assert ("the page" in response.text) == (status == 200)
    assert "frame-ancestors 'self'" in response.headers["content-security-policy"]


async def test_further_names_are_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await get("chat.example", "0.0.0.0")).status_code == 421
    monkeypatch.setenv("SEESAY_UI_HOSTS", "a.example, Chat.Example")
    assert (await get("chat.example:443", "0.0.0.0")).status_code == 200
