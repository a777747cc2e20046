"""Adapters over HTTP: a request names one as its model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from adapter_folders import write_adapter
from live_server import LiveServer, make_settings, serve

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
from seesay.serving.app import create_app

MODULES = r"model.layers.*(self_attn|mlp)\.\w+_proj"
OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    path, folder = tiny_checkpoint("qwen2_5_vl"), tmp_path_factory.mktemp("adapters")
    adapters = {name: str(write_adapter(path, folder / name, MODULES, seed=i)) for i, name in enumerate(("one", "two"))}
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16, adapters=adapters)
    with AsyncEngine(str(path), backend_config=config) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine: AsyncEngine) -> Iterator[LiveServer]:
    with serve(engine) as server:
        yield server


def say(server: LiveServer, model: str | None) -> dict[str, str]:
    """Return the answers of all routes, and check the model that they name."""
    named = {} if model is None else {"model": model}
    own = model or "tiny"
    chat = {"messages": [{"role": "user", "content": "go on"}], **named}
    found: dict[str, str] = {}
    answer = server.post("/v1/chat/completions", {**chat, **OPTIONS}).json()
    assert answer["model"] == own
    found["chat"] = answer["choices"][0]["message"]["content"]
    answer = server.post("/v1/completions", {"prompt": "go on", **named, **OPTIONS}).json()
    assert answer["model"] == own
    found["completions"] = answer["choices"][0]["text"]
    anthropic = {"max_tokens": 6, "temperature": 0, **chat}
    answer = server.post("/v1/messages", anthropic).json()
    assert answer["model"] == own
    found["messages"] = answer["content"][0]["text"]
    answer = server.post("/v1/responses", {"input": "go on", "max_output_tokens": 16, "temperature": 0, **named}).json()
    assert answer["model"] == own
    found["responses"] = answer["output"][0]["content"][0]["text"]
    answer = server.post("/v1/embeddings", {"input": "go on", **named}).json()
    assert answer["model"] == own
    found["embeddings"] = str(answer["data"][0]["embedding"])
    found["generate"] = server.post("/generate", {"prompt": "go on", **named, **OPTIONS}).json()["text"]
    ollama = {"model": f"{own}:latest", "messages": chat["messages"], "stream": False}
    answer = server.post("/api/chat", {**ollama, "options": {"num_predict": 6, "temperature": 0}}).json()
    found["ollama"] = answer["message"]["content"]
    return found


def test_every_route_answers_by_the_adapter_that_is_named(server: LiveServer) -> None:
    plain, one, two = (say(server, name) for name in (None, "one", "two"))
    for route in plain:
        assert len({plain[route], one[route], two[route]}) == 3, (route, plain[route], one[route], two[route])
    assert say(server, "tiny") == plain and say(server, "one") == one


def test_models_lists_adapters(server: LiveServer) -> None:
    import httpx

    cards = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("tiny", None), ("one", "tiny"), ("two", "tiny")]
    assert httpx.get(f"{server.url}/v1/models/two", timeout=60).json()["parent"] == "tiny"
    answer = server.post("/v1/chat/completions", {"model": "three", "messages": [{"role": "user", "content": "hi"}]})
    assert answer.status_code == 404 and "'one', 'two'" in answer.json()["error"]["message"]


def test_an_adapter_is_not_called_like_the_model(engine: AsyncEngine) -> None:
    with pytest.raises(ConfigError, match="'two' is the name of the model itself"):
        create_app(engine, make_settings(model_name="two"))
