"""Every field works or is refused with 400 that names it; never 422. Errors have OpenAI's envelope."""

from __future__ import annotations

from typing import Any

import httpx
import openai_schemas as schemas
import pytest
from live_server import MODEL, make_data_url, read_events

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
MINIMAL: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 1},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 1},
    RESPONSES: {"input": "hi", "max_output_tokens": 1},
    EMBEDDINGS: {"input": "hi"},
}
TOOL = {"type": "function", "function": {"name": "f"}}

BAD_FIELDS: dict[str, dict[str, Any]] = {
    CHAT: {
        "tools": [{**TOOL, "type": "odd"}], "tool_choice": "required", "functions": [{"name": "f"}],
        "function_call": {"name": "f"},
        "response_format": {"type": "xml"}, "modalities": ["text", "audio"], "audio": {"voice": "a"},
        "prediction": {"type": "content"}, "web_search_options": {}, "reasoning_effort": "low", "verbosity": "low",
        "store": True, "service_tier": "flex", "no_such_field": 1, "temperature": 2.5, "top_p": 0, "top_k": -2,
        "min_p": 1.5, "n": 0, "stop": [""], "seed": "7", "stream": "yes", "presence_penalty": 3,
        "frequency_penalty": -3,
        "logit_bias": {"x": 1}, "repetition_penalty": 0, "ignore_eos": 1, "min_new_tokens": -1, "stop_token_ids": [-1],
        "return_token_ids": "x", "max_tokens": 0, "max_completion_tokens": 1.5, "logprobs": 3, "top_logprobs": 3,
        "metadata": {"a": 1}, "chat_template_kwargs": [], "messages": [], "model": 3, "user": 3,
        "stream_options": {"include_usage": True}, "skip_special_tokens": "no", "include_stop_str_in_output": "no",
        "parallel_tool_calls": 1, "add_generation_prompt": "x", "continue_final_message": "x",
        "min_tokens": -1, "request_id": "a b", "rid": "", "documents": [3], "echo": "x", "lora_path": "x",
        "mm_processor_kwargs": [], "media_io_kwargs": 3, "no_stop_trim": "x", "spaces_between_special_tokens": "x",
    },
    COMPLETIONS: {
        "suffix": "end", "best_of": 0, "logprobs": 30, "prompt": [], "max_tokens": 0, "tools": [TOOL], "echo": "x",
        "n": 129, "no_such_field": 1, "temperature": -1, "logit_bias": {"1": 200}, "messages": MESSAGES,
    },
    RESPONSES: {
        "tools": [TOOL], "tool_choice": {"type": "web_search"}, "text": {"format": {"type": "xml"}}, "background": 3,
        "conversation": 3, "prompt": {"id": "p"}, "reasoning": {"effort": "low"}, "truncation": "auto",
        "max_tool_calls": 1, "include": ["reasoning.encrypted_content"], "input": 3, "previous_response_id": "resp_x",
        "service_tier": "flex", "top_logprobs": 21, "temperature": 9, "no_such_field": 1, "context_management": [1],
        "moderation": {"model": "m"}, "stream_options": {"include_obfuscation": False},
    },
    EMBEDDINGS: {
        "dimensions": 0, "encoding_format": "int8", "input": [], "no_such_field": 1, "pooling": "max", "normalize": 1,
        "add_generation_prompt": True, "chat_template_kwargs": {}, "endianness": "big", "truncate_prompt_tokens": -2,
    },
}  # fmt: skip
CASES = [(path, name, value) for path, fields in BAD_FIELDS.items() for name, value in fields.items()]


async def refused(http: httpx.AsyncClient, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    schemas.check(response.json(), schemas.ERROR)
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(("path", "name", "value"), CASES, ids=[f"{p.rpartition('/')[2]}-{n}" for p, n, _ in CASES])
async def test_bad_field_is_named(http: httpx.AsyncClient, path: str, name: str, value: Any) -> None:
    error = await refused(http, path, {**MINIMAL[path], name: value})
    assert (error["param"] or "").partition(".")[0].partition("[")[0] == name, error
    assert name in error["message"] or name in ("prompt", "messages")
    assert error["type"] == "invalid_request_error" and "Value error" not in error["message"]


@pytest.mark.parametrize("path", MINIMAL)
async def test_null_is_the_same_as_nothing(http: httpx.AsyncClient, path: str) -> None:
    required = ("messages", "prompt", "input", "no_such_field", "encoding_format", "context_management", "tools")
    nulls = {name: None for name in BAD_FIELDS[path] if name not in required}
    response = await http.post(path, json={**nulls, **MINIMAL[path]})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("together", "param"),
    [
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        ({"stream": True, "stream_options": {"odd": 1}}, "stream_options.odd"),
        ({"n": 200}, "n"),
    ],
)
async def test_fields_that_do_not_go_together(http: httpx.AsyncClient, together: dict[str, Any], param: str) -> None:
    assert (await refused(http, CHAT, {"messages": MESSAGES, **together}))["param"] == param


PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": make_data_url()}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "robot", "content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": "hi", "odd": 1}, "messages[0].odd"),
        ({"role": "user", "content": [{"type": "image_embeds", "image_embeds": "x"}]}, "messages[0].content[0].type"),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
            "messages[0].content[0].input_audio.data",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA==", "format": "midi"}}]},
            "messages[0].content[0].input_audio.format",
        ),
        (
            {"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": "/etc/passwd"}}]},
            "messages[0].content[0].audio_url.url",
        ),
        ({"role": "user", "content": [{"type": "audio_url", "audio_url": "x"}]}, "messages[0].content[0].audio_url"),
        ({"role": "user", "content": [{"type": "odd"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url.url"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 3}}]},
            "messages[0].content[0].image_url.url",
        ),
        ({"role": "user", "content": [{**PICTURE, "extra": 1}]}, "messages[0].content[0].extra"),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {**PICTURE["image_url"], "detail": "odd"}}],
            },
            "messages[0].content[0].image_url.detail",
        ),
    ],
)
async def test_bad_message_is_located(http: httpx.AsyncClient, message: Any, param: str) -> None:
    import json

    body = json.dumps({"messages": [message]})
    response = await http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "source",
    ["/etc/passwd", "file:///etc/passwd", "../x.png", "ftp://x/y.png", "iVBORw0KGgo=", "http://127.0.0.1:1/x.png",
     "http://[::1]/x", "http://169.254.169.254/latest", "data:text/html,hi", "data:image/png;base64,AAAA", "https://"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_media_that_are_not_taken(http: httpx.AsyncClient, source: str, stream: bool) -> None:
    content = [{"type": "image_url", "image_url": {"url": source}}]
    await refused(http, CHAT, {"messages": [{"role": "user", "content": content}], "stream": stream})


async def test_too_many_pictures_name_the_limit(http: httpx.AsyncClient) -> None:
    picture = {"type": "image_url", "image_url": {"url": make_data_url()}}
    error = await refused(http, CHAT, {"messages": [{"role": "user", "content": [picture] * 65}]})
    assert error["param"] == "messages" and error["code"] == "media_too_large", error
    assert "65" in error["message"] and "64" in error["message"]


async def test_unknown_option_of_a_picture(http: httpx.AsyncClient) -> None:
    url = {**PICTURE["image_url"], "max_dynamic_patch": 3}
    error = await refused(
        http, CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}
    )
    assert "max_dynamic_patch" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_too_long_a_context_gives_both_numbers(http: httpx.AsyncClient, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": "game " * 2000}], "stream": stream}
    error = await refused(http, CHAT, body)
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"] and "2" in error["message"]


LONG = "game " * 2000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (COMPLETIONS, {"prompt": LONG}, "prompt"),
        (COMPLETIONS, {"prompt": [LONG]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": ["a", LONG, "b"]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": ["a", "b", LONG], "n": 3}, "prompt[2]"),
        (COMPLETIONS, {"prompt": ["a", LONG], "echo": True}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [[1], [1] * 600]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [1] * 600}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": ["a", 3]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [1, "a"]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [[1], [2, 10**8]]}, "prompt[1][1]"),
        (RESPONSES, {"input": LONG}, "input"),
        (EMBEDDINGS, {"input": LONG}, "input"),
        (EMBEDDINGS, {"input": ["a", LONG]}, "input[1]"),
        (EMBEDDINGS, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/chat/interactive", {"prompt": LONG}, "prompt"),
        ("/generate", {"prompt": LONG}, "prompt"),
        ("/generate", {"input_ids": [1] * 600}, "input_ids"),
        ("/generate", {"prompt": "no marker", "image_data": make_data_url()}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ],
)
async def test_the_prompt_at_fault_is_named(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], param: str, stream: bool
) -> None:
    """By the field of its route, with its own index; the message names the index, too."""
    streams = {} if path in (EMBEDDINGS, "/tokenize") else {"stream": stream}
    response = await http.post(path, json={**body, **streams})
    if stream and response.status_code == 200:  # another prompt's answer had begun
        error = read_events(response.text)[-1]["error"]
    else:
        assert response.status_code == 400, response.text
        error = response.json()["error"]
    assert error["param"] == param and ("[" not in param or param in error["message"]), error


@pytest.mark.parametrize("path", MINIMAL)
async def test_unknown_model_is_404(http: httpx.AsyncClient, path: str) -> None:
    error = await refused(http, path, {**MINIMAL[path], "model": "gpt-9"}, 404)
    assert error["code"] == "model_not_found" and error["param"] == "model"


@pytest.mark.parametrize("path", MINIMAL)
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'"x"', b"null", b"\xff", b"[" * 100_000, b'{"n": ' + b"9" * 6000 + b"}"]
)
async def test_bodies_that_are_no_requests(http: httpx.AsyncClient, path: str, content: bytes) -> None:
    response = await http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    schemas.check(response.json(), schemas.ERROR)


@pytest.mark.parametrize("content", [b"{", b'{"a": "\xff"}', b'{"a": "\\ud800"}'])
async def test_what_is_no_json_says_so(http: httpx.AsyncClient, content: bytes) -> None:
    response = await http.post(CHAT, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_json", response.text


async def test_body_without_content_type(http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, content=b"a=b", headers={"content-type": "application/x-www-form-urlencoded"})
    assert response.status_code == 400


async def test_wrong_paths_and_methods(http: httpx.AsyncClient) -> None:
    for method, path, status, code in (
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("GET", "/v1/models/gpt-9", 404, "model_not_found"),
    ):
        response = await http.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert (await http.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
