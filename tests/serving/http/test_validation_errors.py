"""A wrong field of a body is answered with its name, what is allowed, and what it is."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

CHAT, TEXT, RESPONSES, CLAUDE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: MESSAGES, TEXT: {"prompt": "hi"}, RESPONSES: {"input": "hi"}, CLAUDE: {**MESSAGES, "max_tokens": 4},
    "/generate": {"prompt": "hi"}, "/v1/chat/interactive": {"prompt": "hi"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (CHAT, {"stop": 5}, "stop must be a string or a list, got 5"),
        (CHAT, {"stop": [1]}, "stop[0] must be a string, got 1"),
        (CHAT, {"stop": ["a", ""]}, "stop: a stop string must not be empty, got '' at index 1"),
        (CHAT, {"bad_words": ["a", ""]}, "bad_words: a word must not be empty, got '' at index 1"),
        (CHAT, {"choice": "a"}, "choice must be a list, got 'a'"),
        (CHAT, {"choice": {}}, "choice must be a list, got an empty object"),
        (CHAT, {"choice": []}, "choice must be a list of non-empty strings, got an empty list"),
        (CHAT, {"guided_json": 5}, "guided_json must be an object or a string or true or false, got 5"),
        (CHAT, {"logit_bias": [1]}, "logit_bias must be an object, got a list"),
        (CHAT, {"temperature": 5}, "temperature must be at most 2, got 5"),
        (CHAT, {"stream": True, "stream_options": 5}, "stream_options must be an object, got 5"),
        (CHAT, {"stream_options": {}}, "stream_options requires stream=true, which the request does not have"),
        (CHAT, {"stream": False, "stream_options": {}}, "stream_options requires stream=true, got False"),
        (RESPONSES, {"stream_options": {}}, "stream_options requires stream=true, which the request does not have"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs requires logprobs=true, which the request does not have"),
        (CHAT, {"modalities": ["audio"]}, "modalities is not supported, except ['text']; got a list"),
        (CHAT, {"messages": 5}, "messages must be a list with at least one message, got 5"),
        (CHAT, {"logits_processors": [{"qualname": 3}]}, "logits_processors[0].qualname must be a string, got 3"),
        (TEXT, {"prompt": ["a", 3]}, "prompt[1] must be a string, like the ones before it, got 3"),
        (TEXT, {"max_tokens": 0}, "max_tokens=0 requires echo=true, which the request does not have"),
        (CLAUDE, {"thinking": 5}, "thinking must be an object, got 5"),
        (CLAUDE, {"thinking": {}}, "the field thinking.type is missing"),
        (CLAUDE, {"thinking": {"type": "on"}},
         "thinking.type must be one of 'enabled', 'disabled', 'adaptive', got 'on'"),
        (CLAUDE, {"thinking": {"type": "enabled"}}, "the field thinking.budget_tokens is missing"),
        (CLAUDE, {"thinking": {"type": "enabled", "budget_tokens": "a"}},
         "thinking.budget_tokens must be an integer, got 'a'"),
        (CLAUDE, {"messages": [{"role": "odd"}]},
         "messages[0].role must be user or assistant (the system prompt goes into the field system), got 'odd'"),
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity must be null, got 'low'"),
        (RESPONSES, {"input": 3}, "input must be a string or a list of items, got 3"),
        ("/generate", {"top_logprobs_num": 1}, "top_logprobs_num requires return_logprob=true, got False"),
        ("/v1/chat/interactive", {"request_output_len": 0}, "request_output_len must be at least 1, got 0"),
    ],
)  # fmt: skip
async def test_the_message_has_the_field_what_is_allowed_and_the_value(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], message: str
) -> None:
    answer = await http.post(path, json={**NEEDED[path], **fields})
    assert answer.status_code == 400 and answer.json()["error"]["message"] == message, answer.text
