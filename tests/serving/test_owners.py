"""What the server keeps belongs to a key: every route that keeps state, for two keys, however the keys are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from live_server import make_settings

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.errors import ApiError
from seesay.serving.traffic.auth import ApiKeyMiddleware, owner_of

CHAT, RESPONSES = "/v1/chat/interactive", "/v1/responses"

# Every route of the server is in one of these two, so that a new one cannot forget to whom its state belongs.
KEEPS_STATE = {
    ("POST", CHAT),
    ("POST", RESPONSES),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/{conversation_id}"),
    ("POST", "/v1/conversations/{conversation_id}"),
    ("DELETE", "/v1/conversations/{conversation_id}"),
    ("GET", "/v1/conversations/{conversation_id}/items"),
    ("POST", "/v1/conversations/{conversation_id}/items"),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"),
    ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/{file_id}"),
    ("GET", "/v1/files/{file_id}/content"),
    ("DELETE", "/v1/files/{file_id}"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{batch_id}"),
    ("POST", "/v1/batches/{batch_id}/cancel"),
}
KEEPS_NOTHING = {
    ("GET", "/v1/models"), ("GET", "/v1/models/{model:path}"), ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"), ("POST", "/v1/embeddings"), ("POST", "/v1/messages"),
    ("POST", "/v1/rerank"), ("POST", "/v2/rerank"), ("POST", "/rerank"), ("POST", "/v1/score"), ("POST", "/score"),
    ("POST", "/v1/audio/transcriptions"), ("POST", "/v1/audio/translations"),
    ("POST", "/v1/messages/count_tokens"), ("POST", "/generate"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/reset_caches"), ("POST", "/sleep"), ("POST", "/wake_up"), ("POST", "/wakeup"),
    ("POST", "/update_weights"), ("GET", "/is_sleeping"),
    ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/abort_request"), ("POST", "/terminate"),
    ("GET", "/health"), ("GET", "/ready"), ("GET", "/version"), ("GET", "/metrics"), ("GET", "/"),
    ("GET", "/openapi.json"), ("GET", "/openapi-simple.json"),
    ("GET", "/ping"), ("POST", "/ping"), ("GET", "/live"), ("GET", "/load"), ("GET", "/get_model_info"),
    ("POST", "/flush_cache"),
    ("POST", "/v1/responses/input_tokens"), ("POST", "/api/chat"), ("POST", "/api/generate"), ("GET", "/api/tags"),
    ("GET", "/api/ps"), ("POST", "/api/show"), ("GET", "/api/version"),
    ("GET", "/v1/live"), ("WebSocket", "/v1/live"),  # a session ends with its connection
    ("GET", "/docs/swagger-ui.css"), ("GET", "/docs/swagger-ui-bundle.js"),
}  # fmt: skip

BEARER = "authorization"
# (headers of the owner, headers of somebody else)
STRANGERS = {
    "bearer": ({BEARER: "Bearer a"}, {BEARER: "Bearer b"}),
    "header": ({"x-api-key": "a"}, {"x-api-key": "b"}),
    "bearer and header": ({BEARER: "bearer a"}, {"x-api-key": "b"}),
    "a gateway's scheme": ({BEARER: "Basic Z3c=", "x-api-key": "a"}, {BEARER: "Basic Z3c=", "x-api-key": "b"}),
    "a gateway's key": ({BEARER: "Bearer gw", "x-api-key": "a"}, {BEARER: "Bearer gw", "x-api-key": "b"}),
    "a gateway's header": ({BEARER: "Bearer a", "x-api-key": "gw"}, {BEARER: "Bearer b", "x-api-key": "gw"}),
    "a gateway's wrong key": ({BEARER: "Bearer no", "x-api-key": "a"}, {BEARER: "Bearer no", "x-api-key": "b"}),
    "only the gateway's": ({BEARER: "Bearer gw", "x-api-key": "a"}, {BEARER: "Bearer gw"}),
}
SPELLINGS = [
    {BEARER: "Bearer a"}, {BEARER: "bearer a"}, {BEARER: "BEARER   a "}, {"x-api-key": "a"}, {"X-API-Key": " a "},
    {BEARER: "Bearer a", "x-api-key": "a"},
]  # fmt: skip


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses", CHAT])
@pytest.mark.parametrize("shares", [False, True], ids=["own caches", "--share-caches"])
async def test_what_one_key_has_cached_is_not_used_for_another(engine: AsyncEngine, shares: bool, route: str) -> None:
    """Hits would tell by usage and timing what another key has sent."""
    settings = make_settings(api_keys=("a", "b"), admin_keys=("admin",), share_caches=shares)
    transport = httpx.ASGITransport(app=create_app(engine, settings))
    text = f"{route} {shares}: only one key knows this sentence. " * 2
    body: dict[str, Any] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
        "/v1/responses": {"input": text, "max_output_tokens": 1},
        CHAT: {"prompt": text, "session_id": -1, "request_output_len": 1},
    }[route]
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
        hits = []
        for key in ("a", "a", "b", "b", "admin"):
            before = engine.stats().total_prefix_hit_tokens
            answer = await client.post(route, json=body, headers={"x-api-key": key})
            assert answer.status_code == 200, answer.text
            hits.append(engine.stats().total_prefix_hit_tokens > before)
    assert hits == ([False, True, True, True, True] if shares else [False, True, False, True, False])


@pytest.fixture(params=["with keys", "open to all"])
async def http(engine: AsyncEngine, request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    """A server that has keys, and one behind a gateway that checks them."""
    keys = ("a", "b", "gw") if request.param == "with keys" else ()
    transport = httpx.ASGITransport(app=create_app(engine, make_settings(api_keys=keys)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
        yield client


class Visitor:
    """Somebody who sends these headers."""

    def __init__(self, http: httpx.AsyncClient, headers: dict[str, str]) -> None:
        self._http = http
        self._headers = headers

    async def turn(self, **options: Any) -> dict[str, Any]:
        """A turn of session 1; `history_tokens` tells whether there was one before."""
        body = {"prompt": "one", "session_id": 1, "interactive_mode": True, "request_output_len": 2, "temperature": 0}
        response = await self._http.post(CHAT, json={**body, **options}, headers=self._headers)
        assert response.status_code == 200, response.text
        return dict(response.json())

    async def respond(self, **options: Any) -> httpx.Response:
        body = {"input": "one", "max_output_tokens": 2, "temperature": 0, **options}
        return await self._http.post(RESPONSES, json=body, headers=self._headers)

    async def fetch(self, response_id: str, method: str = "GET") -> int:
        """The status of asking for a stored response."""
        return (await self._http.request(method, f"{RESPONSES}/{response_id}", headers=self._headers)).status_code


def walk(routes: Any) -> Iterator[tuple[str, str]]:
    for route in routes:
        if hasattr(route, "dependant") and not hasattr(route, "methods"):
            yield "WebSocket", route.path
        elif hasattr(route, "methods"):
            yield from ((method, route.path) for method in route.methods - {"HEAD"})
        else:
            yield from walk(route.original_router.routes)


def test_every_route_is_in_a_table(engine: AsyncEngine) -> None:
    assert set(walk(create_app(engine, make_settings()).routes)) == KEEPS_STATE | KEEPS_NOTHING
    assert not KEEPS_STATE & KEEPS_NOTHING


@pytest.mark.parametrize("pair", STRANGERS)
async def test_two_keys_share_nothing(http: httpx.AsyncClient, pair: str) -> None:
    owner, stranger = (Visitor(http, headers) for headers in STRANGERS[pair])
    await owner.turn()
    # Interactive sessions: the same number is another session, also to end and to cancel.
    assert (await stranger.turn())["history_tokens"] == 0
    await stranger.turn(prompt="", interactive_mode=False)
    await stranger.turn(prompt="", cancel=True)
    assert (await owner.turn())["history_tokens"] > 0
    # Stored responses: not to be read, continued or deleted.
    stored = (await owner.respond()).json()["id"]
    assert await stranger.fetch(stored) == await stranger.fetch("resp_none") == 404
    continued, unknown = [await stranger.respond(previous_response_id=name) for name in (stored, "resp_none")]
    assert continued.status_code == 400
    assert continued.json()["error"] == {
        **unknown.json()["error"],
        "message": unknown.json()["error"]["message"].replace("resp_none", stored),
    }
    assert await stranger.fetch(stored, "DELETE") == 404
    assert await stranger.fetch(f"{stored}/cancel", "POST") == await stranger.fetch(f"{stored}/input_items") == 404
    assert await owner.fetch(f"{stored}/input_items") == 200
    assert await owner.fetch(stored) == 200
    assert (await owner.respond(previous_response_id=stored)).status_code == 200
    assert await owner.fetch(stored, "DELETE") == 200 and await owner.fetch(stored) == 404


async def test_one_key_is_one_owner_however_it_is_sent(http: httpx.AsyncClient) -> None:
    stored: list[str] = []
    expected = 0
    for headers in SPELLINGS:
        visitor = Visitor(http, headers)
        turn = await visitor.turn()
        assert turn["history_tokens"] == expected
        expected += turn["input_tokens"] + turn["tokens"]
        assert [await visitor.fetch(name) for name in stored] == [200] * len(stored)
        stored.append((await visitor.respond(**({"previous_response_id": stored[-1]} if stored else {}))).json()["id"])


async def find_owner(headers: list[tuple[bytes, bytes]], keys: tuple[str, ...] = ()) -> bytes:
    scope: dict[str, Any] = {"type": "http", "path": "/x", "method": "POST", "headers": headers}

    async def nothing(*_: Any) -> Any:
        return None

    await ApiKeyMiddleware(nothing, keys=keys)(scope, nothing, nothing)
    return owner_of(scope)


async def test_owners_of_an_open_server() -> None:
    values = [b"", b"KeyA", b"keya", b"Basic x", b"Basic X", b"basic x y", b"Bearer KeyA", b"Bearer Basic x"]
    owners = [await find_owner([(b"authorization", value)] if value else []) for value in values]
    assert owners[0] == b"" and len(set(owners)) == len(owners)
    assert await find_owner([(b"authorization", b"BASIC x")]) == owners[3]
    assert all(b"KeyA" not in owner for owner in owners)


async def test_too_many_keys_are_refused() -> None:
    """Rather than some of them dropped, which could make two owners one."""
    with pytest.raises(ApiError, match="5 API keys; at most 4"):
        await find_owner([(b"x-api-key", b"%d" % number) for number in range(5)])
    with pytest.raises(ApiError, match="no API key"):
        await find_owner([(b"authorization", b"Basic eA==")], keys=("a",))
