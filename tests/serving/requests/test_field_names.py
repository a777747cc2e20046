"""Errors of the engine name the fields that the client has sent, on every route."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.serving.requests.field_names import FieldNames

CHAT, TEXT, RESPONSES, CLAUDE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
GENERATE, INTERACTIVE = "/generate", "/v1/chat/interactive"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: MESSAGES, TEXT: {"prompt": "hi"}, RESPONSES: {"input": "hi"}, CLAUDE: {**MESSAGES, "max_tokens": 4},
    GENERATE: {"prompt": "hi"}, INTERACTIVE: {"prompt": "hi"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"thinking_token_budget": 3}, "thinking_token_budget"),
        (CHAT, {"max_thinking_tokens": 3}, "max_thinking_tokens"),
        (TEXT, {"thinking_token_budget": 3}, "thinking_token_budget"),
        (RESPONSES, {"thinking_token_budget": 3}, "thinking_token_budget"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": 3}}, "thinking"),
        (CHAT, {"min_tokens": 9, "max_completion_tokens": 3}, "min_tokens"),
        (CHAT, {"min_new_tokens": 9, "max_tokens": 3}, "min_new_tokens"),
        (GENERATE, {"min_tokens": 9, "max_new_tokens": 3}, "min_tokens"),
        (INTERACTIVE, {"min_tokens": 9, "request_output_len": 3}, "min_tokens"),
        (TEXT, {"best_of": 200}, "best_of"),
        (TEXT, {"n": 200}, "n"),
        (TEXT, {"prompt": ["a", "b " * 600]}, "prompt[1]"),
    ],
)
async def test_what_was_sent_is_named(http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str) -> None:
    answer = await http.post(path, json={**NEEDED[path], **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.get("param", param) == param and param in error["message"], error
    for name in {"max_completion_tokens", "request_output_len"} & fields.keys():
        assert f"{name}=3" in error["message"], error


@pytest.mark.parametrize("path", [*NEEDED, "/v1/embeddings", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mm_processor_kwargs": {"odd": 1}}, "mm_processor_kwargs.odd"),
        ({"media_io_kwargs": {"image": {"odd": 1}}}, "media_io_kwargs.image.odd"),
    ],
    ids=["processor", "loading"],
)
async def test_options_of_media_are_checked_without_media(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    needed = NEEDED.get(path, {"input": "hi"} if path == "/v1/embeddings" else MESSAGES)
    answer = await http.post(path, json={**needed, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["message"].startswith(f"{param} is unknown"), (
        answer.text
    )


def test_a_name_is_replaced_whole_and_paths_are_kept() -> None:
    options = {"response_format": "text.format", "response_format.regex": "regex"}
    names = FieldNames(options=options, prompts=["a", "b[1]"])
    error = names.explain(ConfigError("response_format.type must be 'x', not response_formats or my.response_format"))
    assert error.param == "text.format.type" and error.status_code == 400
    assert error.message == "text.format.type must be 'x', not response_formats or my.response_format"
    assert names.explain(ConfigError("response_format.regex must be a string")).param == "regex"
    long = RequestError(ErrorCode.CONTEXT_TOO_LONG, "too long", "input_ids")
    assert [names.explain(long, index=index).param for index in range(3)] == ["a", "b[1]", "a"]
    assert names.explain(long, index=1).message == "b[1]: too long"
    assert names.of("response_format") == "text.format" and names.of("seed") == "seed"
