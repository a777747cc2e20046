"""Requests of every kind whose answers have forced text: two frontends of an engine process that computes it together,
and a server in this process that computes it token by token, answer the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import MODEL, LiveServer, make_data_url, make_settings, serve, wait_until
from templates.tool_templates import HERMES_WITH_PICTURES

from seesay.config import EngineConfig
from seesay.engine.core.grammars.jumps import JumpRule
from seesay.engine.front.engine import AsyncEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SENTENCE = "I see no picture. Please send one."
SCHEMA = {
    "type": "object",
    "properties": {
        "invoice_number": {"type": "integer", "minimum": 0, "maximum": 99},
        "customer_name": {"type": "string", "maxLength": 4},
        "is_paid": {"type": "boolean"},
    },
    "required": ["invoice_number", "customer_name", "is_paid"],
    "additionalProperties": False,
}
PARTS = [{"type": "image_url", "image_url": {"url": make_data_url(seed=1)}}, {"type": "text", "text": "What is it?"}]
SAYS: dict[str, Any] = {"messages": [{"role": "user", "content": "What is it?"}], "temperature": 0, "max_tokens": 90}
SEES: dict[str, Any] = {**SAYS, "messages": [{"role": "user", "content": PARTS}]}
HELD: dict[str, Any] = {"guided_json": SCHEMA, "return_token_ids": True}
ONE: dict[str, Any] = {"guided_choice": [SENTENCE], "return_token_ids": True}
TOOL = {"type": "function", "function": {"name": "look_around", "parameters": SCHEMA}}
FORM = {"type": "json_schema", "name": "invoice", "schema": SCHEMA}
DRAWN: dict[str, Any] = {"temperature": 1.0, "top_k": 4, "seed": 5}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a schema": (CHAT, SAYS | HELD),
    "with a picture": (CHAT, SEES | HELD),
    "one text": (CHAT, SEES | ONE),
    "three answers": (CHAT, SEES | HELD | DRAWN | {"n": 3}),
    "the best of three": (COMPLETIONS, {"prompt": "What?", "max_tokens": 90, "best_of": 3} | HELD | DRAWN),
    "the prompt again": (COMPLETIONS, {"prompt": "What?", "max_tokens": 90, "temperature": 0, "echo": True} | HELD),
    "a stop within": (CHAT, SAYS | HELD | {"stop": ["_name"]}),
    "the stop, too": (CHAT, SAYS | HELD | {"stop": ["_name"], "include_stop_str_in_output": True}),
    "log-probabilities": (CHAT, SAYS | HELD | {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1}),
    "cut": (CHAT, SAYS | HELD | {"max_tokens": 6}),
    "not before": (CHAT, SAYS | HELD | {"min_tokens": 8}),
    "weighed": (CHAT, SAYS | HELD | {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}),
    "biased": (CHAT, SAYS | HELD | {"logit_bias": {"50": 3}, "no_repeat_ngram_size": 9}),
    "a call": (CHAT, SEES | {"tools": [TOOL], "tool_choice": "required"}),
    "responses": ("/v1/responses", {"input": "What?", "temperature": 0, "text": {"format": FORM}}),
    "messages": ("/v1/messages", SAYS | {"output_format": {"type": "json_schema", "schema": SCHEMA}}),
    "interactive": ("/v1/chat/interactive", {"prompt": "What?", "temperature": 0, "guided_json": SCHEMA}),
}
CHANGING = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "call_id",
    "session_id",
    "cached_tokens",
    "prompt_tokens_details",
}
CHANGING |= {"cache_read_input_tokens", "input_tokens_details", "system_fingerprint"}


def leave_fixed(value: Any) -> Any:
    """An answer without what is another one each time. Log-probabilities depend on the shape of a step."""
    if isinstance(value, Mapping):
        return {name: leave_fixed(part) for name, part in value.items() if name not in CHANGING}
    if isinstance(value, list):
        return [leave_fixed(part) for part in value]
    return round(value, 3) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = Path(tmp_path_factory.mktemp("templates")) / "hermes.jinja"
    path.write_text(HERMES_WITH_PICTURES)
    return str(path)


@pytest.fixture(scope="module")
def stepping(template: str) -> Iterator[LiveServer]:
    """A server that computes each forced token in a step of its own."""
    config = EngineConfig(session_len=2048, device_type="cpu")
    engine = AsyncEngine("seesay-demo", backend_config=config, chat_template_config=template)
    with pytest.MonkeyPatch.context() as patch, engine, serve(engine, make_settings()) as server:
        patch.setattr(JumpRule, "choose", lambda rule, num_rows, found: {})
        yield server


@pytest.fixture(scope="module")
def frontends(template: str, unused_tcp_port_factory: Callable[[], int]) -> Iterator[str]:
    """The address of a server with two frontends and an engine process."""
    port = unused_tcp_port_factory()
    command = [sys.executable, "-m", "seesay", "serve", "api_server", "seesay-demo", "--server-port", str(port)]
    command += ["--server-name", "127.0.0.1", "--frontends", "2", "--device", "cpu", "--session-len", "2048"]
    command += ["--model-name", MODEL, "--chat-template", template, "--jump-ahead"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        log = []
        for line in process.stderr:
            log.append(line)
            if "ready after" in line:
                break
        assert process.poll() is None and "with 2 frontends" in log[-1], log
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        process.stderr.close()


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(url + path, json={"model": MODEL, **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def count_jumped(url: str) -> float:
    text = httpx.get(url + "/metrics", timeout=60).text
    return float(re.findall(r"^seesay_jumped_tokens_total (\S+)$", text, re.MULTILINE)[0])


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_the_same_token_by_token(frontends: str, stepping: LiveServer, name: str) -> None:
    path, body = REQUESTS[name]
    found = [leave_fixed(post(url, path, body)) for url in (frontends, stepping.url)]
    assert found[0] == found[1]


def test_the_fronts_alone_have_jumped(frontends: str, stepping: LiveServer) -> None:
    wait_until(lambda: count_jumped(frontends) > 500)
    assert count_jumped(stepping.url) == 0


@pytest.mark.parametrize("held", [HELD, ONE], ids=["schema", "one text"])
def test_streams_have_the_text_ids_and_counts_of_the_whole(frontends: str, held: dict[str, Any]) -> None:
    """A chunk may have several tokens."""
    whole = post(frontends, CHAT, SEES | held)
    choice, usage = whole["choices"][0], whole["usage"]
    body = SEES | held | {"stream": True, "stream_options": {"include_usage": True}, "model": MODEL}
    events = httpx.post(frontends + CHAT, json=body, timeout=120).text.split("data: ")
    chunks = [json.loads(event) for event in events if event.startswith("{")]
    deltas = [
        (one["delta"].get("content") or "", one.get("token_ids") or []) for chunk in chunks for one in chunk["choices"]
    ]
    assert "".join(text for text, _ in deltas) == choice["message"]["content"]
    token_ids = [token_id for _, ids in deltas for token_id in ids]
    assert token_ids == choice["token_ids"] and len(token_ids) == usage["completion_tokens"]
    assert max(len(ids) for _, ids in deltas) > 3 and len(deltas) < len(token_ids)
    assert chunks[-1]["usage"]["completion_tokens"] == usage["completion_tokens"]


def test_what_has_no_choice_is_the_same_without_forced_text(frontends: str, template: str) -> None:
    config = EngineConfig(session_len=2048, device_type="cpu", jump_ahead=False)
    engine = AsyncEngine("seesay-demo", backend_config=config, chat_template_config=template)
    with engine, serve(engine, make_settings()) as server:
        for options in ({}, {"n": 2, "temperature": 1.0, "seed": 1}, {"stop": ["Please"]}, {"logprobs": True}):
            body = SEES | ONE | options
            found, expected = post(frontends, CHAT, body), post(server.url, CHAT, body)
            texts = [[one["message"]["content"] for one in answer["choices"]] for answer in (found, expected)]
            assert texts[0] == texts[1] and texts[0][0].startswith("I see no picture. ")
        assert count_jumped(server.url) == 0
