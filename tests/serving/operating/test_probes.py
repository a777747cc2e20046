"""The probes and commands of other servers under their names."""

from __future__ import annotations

import httpx
from fastapi import FastAPI
from live_server import make_settings

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app


async def test_probes(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    for method, path in (("GET", "/ping"), ("POST", "/ping"), ("GET", "/live")):
        answer = await http.request(method, path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert (await http.get("/load")).json() == {"server_load": 0, "num_running": 0, "num_waiting": 0}
    facts = (await http.get("/get_model_info")).json()
    assert (facts["model_path"], facts["max_model_len"]) == (engine.model_path, engine.session_len)
    assert facts["is_generation"] is True


async def test_flush_cache_clears_the_caches(http: httpx.AsyncClient) -> None:
    body = {"prompt": "one two three four five six seven eight nine ten " * 4, "max_tokens": 1}

    async def count_cached() -> int:
        usage = (await http.post("/v1/completions", json=body)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    await count_cached()
    assert await count_cached() > 0
    assert (await http.post("/flush_cache")).json() == {"success": True}
    assert await count_cached() == 0
    assert (await http.post("/flush_cache?odd=1")).status_code == 400


async def test_a_probe_of_life_needs_no_key(engine: AsyncEngine) -> None:
    app: FastAPI = create_app(engine, make_settings(api_keys=["k"]))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")
    for path, status in (("/ping", 200), ("/live", 200), ("/load", 401), ("/get_model_info", 401)):
        assert (await client.get(path)).status_code == status
