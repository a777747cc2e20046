"""What named clients send: `client_shapes/*.json` has their requests, one on a line. A shape with `refused` is refused
with a message that has this text; all others are answered.

Most bodies were recorded from the clients themselves, of the versions that are named, at a server that takes
everything. Those of `agents_and_chats.json` were written by hand, in the form that these programs are known to send,
and name no version. `$PNG` stands for a picture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import make_data_url

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.settings import ServerSettings

_PNG = make_data_url().partition(",")[2]
_CLIENTS = (
    "openai", "anthropic", "litellm", "langchain", "llama-index", "instructor", "pydantic-ai", "openai-agents",
    "Vercel AI SDK", "Claude Code", "Codex", "Cline", "Continue", "Open WebUI", "LobeChat", "n8n", "ollama",
)  # fmt: skip
_LIMITS = {"/v1/responses": "max_output_tokens", "/v1/embeddings": None, "/v1/responses/input_tokens": None,
           "/v1/messages/count_tokens": None}  # fmt: skip
_MAX_TOKENS = 4


def read_shapes() -> list[dict[str, Any]]:
    files = sorted((Path(__file__).parent / "client_shapes").glob("*.json"))
    return [shape for file in files for shape in json.loads(file.read_text(encoding="utf-8"))]


SHAPES = read_shapes()


def shorten(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with a limit of few tokens. One above the context stays where it is taken: it is part of the
    shape."""
    route = path.partition("?")[0]
    if route.startswith("/api/"):
        return {**body, "options": {**(body.get("options") or {}), "num_predict": _MAX_TOKENS}}
    name = _LIMITS.get(route, "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens")
    if name is None or (route == "/v1/messages" and body["max_tokens"] > 4096):
        return body
    return {**body, name: min(body.get(name) or _MAX_TOKENS, _MAX_TOKENS)}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    """The built-in model."""
    settings = ServerSettings()
    with AsyncEngine(
        "seesay-demo", backend_config=EngineConfig(device_type="cpu", session_len=1024), media_limits=settings.media
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: AsyncEngine) -> httpx.AsyncClient:
    app = create_app(engine, ServerSettings(any_model_name=True))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)


@pytest.mark.parametrize("shape", SHAPES, ids=[f"{s['client']}: {s['shape']}" for s in SHAPES])
async def test_a_shape(client: httpx.AsyncClient, shape: dict[str, Any]) -> None:
    body = json.loads(json.dumps(shape["body"]).replace("$PNG", _PNG))
    response = await client.post(shape["path"], json=shorten(shape["path"], body), headers=shape.get("headers"))
    if (reason := shape.get("refused")) is not None:
        assert response.status_code == 400 and reason in response.text, response.text
    else:
        assert response.status_code == 200, response.text
        assert '"error":{' not in response.text, response.text


def test_the_catalogue() -> None:
    assert len(SHAPES) >= 120
    for name in _CLIENTS:
        assert any(shape["client"].startswith(name) for shape in SHAPES), name
    assert len([shape for shape in SHAPES if "refused" not in shape]) >= 0.95 * len(SHAPES)
