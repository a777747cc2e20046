"""More tools than 128, for a model with room for them."""

from __future__ import annotations

import json
from typing import Any

import httpx
from live_server import serve

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine

HI = [{"role": "user", "content": "hi"}]


def test_more_than_128_tools_are_shown_and_called() -> None:
    functions: list[dict[str, Any]] = [{"name": f"f{number}"} for number in range(129)]
    functions[-1]["parameters"] = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]}
    tools = [{"type": "function", "function": function} for function in functions]
    choice = {"type": "function", "function": {"name": "f128"}}
    body = {"messages": HI, "tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 100}
    config = EngineConfig(session_len=16384, device_type="cpu")
    with AsyncEngine("seesay-demo", backend_config=config) as engine, serve(engine) as live:
        answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f128", {"n": 7})
    assert answer.json()["usage"]["prompt_tokens"] > 129 * len('{"name": "f000"}')
