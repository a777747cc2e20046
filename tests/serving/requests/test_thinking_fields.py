"""Every route and field by which a client says whether and how long a model thinks, and grammars behind the thought."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from live_server import MODEL, LiveServer, serve
from thinking import OPENED, SWITCHED, write_thinking

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine

MESSAGES: Any = [{"role": "user", "content": "hi"}]
REGEX = "(yes|no){1,3}"
CHAT, RESPONSES, CLAUDE = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def serve_thinking(plain: Path, path: Path, template: str) -> Iterator[LiveServer]:
    config = EngineConfig(session_len=256, device_type="cpu", block_size=16, async_scheduling=True)
    model = str(write_thinking(plain, path, template=template))
    with AsyncEngine(model, backend_config=config) as engine, serve(engine) as server:
        yield server


@pytest.fixture(scope="module")
def opened(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose model always thinks: its prompts begin the thought."""
    yield from serve_thinking(tiny_checkpoint("qwen3"), tmp_path_factory.mktemp("opened") / "model", OPENED)


@pytest.fixture(scope="module")
def switched(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose model thinks unless it is told not to."""
    yield from serve_thinking(tiny_checkpoint("qwen3"), tmp_path_factory.mktemp("switched") / "model", SWITCHED)


def post(live: LiveServer, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = httpx.post(live.url + path, json=body, timeout=120)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("name", ["max_thinking_tokens", "thinking_token_budget"])
def test_a_limit_and_a_grammar_in_chat(opened: LiveServer, name: str) -> None:
    body = {"messages": MESSAGES, "seed": 1, "n": 2, "max_tokens": 40, name: 5, "regex": REGEX}
    answer = post(opened, CHAT, body)
    for choice in answer["choices"]:
        assert re.search(f"{REGEX}$", choice["message"]["content"]) and choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}


def test_a_stream_counts_the_thought(opened: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, max_tokens=20, seed=1,
            extra_body={"max_thinking_tokens": 4, "regex": REGEX},
        )  # fmt: skip
        usage = [chunk.usage for chunk in stream if chunk.usage is not None][-1]
    assert usage.completion_tokens_details is not None and usage.completion_tokens_details.reasoning_tokens == 4


def test_other_routes_limit_thoughts_and_hold_to_grammars(opened: LiveServer) -> None:
    limits = {"max_thinking_tokens": 3, "regex": REGEX}
    raw = "<think>"
    texts = [
        post(opened, "/v1/completions", {"prompt": raw, "max_tokens": 40, **limits})["choices"][0]["text"],
        post(opened, "/generate", {"prompt": raw, "max_tokens": 40, **limits})["text"],
        post(opened, "/v1/chat/interactive", {"prompt": "hi", "request_output_len": 40, **limits})["text"],
    ]
    response = post(
        opened,
        RESPONSES,
        {"input": "hi", "text": {"format": {"type": "regex", "regex": REGEX}}, "max_thinking_tokens": 3},
    )
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    messages = [item for item in response["output"] if item["type"] == "message"]
    texts.append(messages[-1]["content"][0]["text"])
    message = post(
        opened,
        CLAUDE,
        {
            "messages": MESSAGES,
            "max_tokens": 40,
            "thinking": {"type": "enabled", "budget_tokens": 3},
            "output_format": {"type": "regex", "regex": REGEX},
        },
    )
    texts.append(message["content"][-1]["text"])
    assert [text for text in texts if not re.search(f"{REGEX}$", text)] == []


OFF: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"enable_thinking": False}), (CHAT, {"reasoning_effort": "none"}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}), (RESPONSES, {"reasoning": {"effort": "none"}}),
    (CLAUDE, {"thinking": {"type": "disabled"}}),
]  # fmt: skip
ON: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {}), (CHAT, {"enable_thinking": True}), (CHAT, {"reasoning_effort": "low"}),
    (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}), (CLAUDE, {"thinking": {"type": "adaptive"}}),
]  # fmt: skip


def count_prompt(live: LiveServer, path: str, fields: dict[str, Any]) -> int:
    """Tokens of a prompt: the template writes an empty thought where thinking is off."""
    if path == RESPONSES:
        return int(post(live, path, {"input": "hi", "max_output_tokens": 1, **fields})["usage"]["input_tokens"])
    usage = post(live, path, {"messages": MESSAGES, "max_tokens": 1, **fields})["usage"]
    if path == CHAT:
        return int(usage["prompt_tokens"])
    counted = post(live, f"{CLAUDE}/count_tokens", {"messages": MESSAGES, **fields})["input_tokens"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    return int(counted)


def test_thinking_is_turned_on_and_off(switched: LiveServer) -> None:
    on = {count_prompt(switched, path, fields) for path, fields in ON}
    off = {count_prompt(switched, path, fields) for path, fields in OFF}
    assert len(on) == len(off) == 1 and max(on) < min(off)


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (CHAT, {"enable_thinking": False}, "enable_thinking"),
        (CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
        (CHAT, {"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
        (CHAT, {"reasoning_effort": "odd"}, "reasoning_effort"),
        (CHAT, {"max_thinking_tokens": -1}, "max_thinking_tokens"),
        (CHAT, {"max_thinking_tokens": 1, "thinking_token_budget": 2}, "thinking_token_budget"),
        (RESPONSES, {"reasoning": {"effort": "none"}}, "reasoning.effort"),
        (RESPONSES, {"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        (CLAUDE, {"thinking": {"type": "disabled"}}, "thinking"),
        (CLAUDE, {"thinking": {"type": "enabled"}}, "budget_tokens"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(
    opened: LiveServer, path: str, fields: dict[str, Any], named: str
) -> None:
    """The thoughts of this model cannot be turned off."""
    required = {"input": "hi"} if path == RESPONSES else {"messages": MESSAGES, "max_tokens": 1}
    error = post(opened, path, {**required, **fields}, status=400)["error"]
    assert named in error["message"] and error.get("param", named) == named


def test_the_clients_send_these_fields(opened: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{opened.url}/v1", api_key="x", max_retries=0) as client:
        chat = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=4, reasoning_effort="low", temperature=0
        )
        response = client.responses.create(
            model=MODEL, input="hi", max_output_tokens=4, reasoning={"effort": "low"}, temperature=0
        )
    assert chat.usage is not None and chat.usage.completion_tokens_details is not None
    assert chat.usage.completion_tokens_details.reasoning_tokens
    assert response.usage is not None and response.usage.output_tokens_details.reasoning_tokens
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    asked: Any = {"messages": MESSAGES, "thinking": thinking, "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=opened.url, api_key="x", max_retries=0) as claude:
        message = claude.messages.create(model=MODEL, max_tokens=4, **asked)
    assert message.usage.output_tokens > 0


def test_a_continued_message_is_continued_in_its_thought(switched: LiveServer) -> None:
    """A thought that the last message begins goes on; behind other text, none begins."""
    for begun, num_tokens in (("<think>well", 2), ("<think>well</think>so", 0), ("so", 0)):
        messages = [*MESSAGES, {"role": "assistant", "content": begun}]
        fields = {"continue_final_message": True, "add_generation_prompt": False, "regex": REGEX}
        answer = post(switched, CHAT, {"messages": messages, "max_tokens": 40, "max_thinking_tokens": 2, **fields})
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_tokens}
        assert re.search(f"{REGEX}$", answer["choices"][0]["message"]["content"])
