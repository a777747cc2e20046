"""Whatever a body holds, the answer is 200 or an error of the client's, in the envelope; never 422, never 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai_schemas as schemas
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import make_data_url
from pairs import num_examples

URL = make_data_url()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["", "\ud800", "user", "text", "image_url", "input_audio", URL, "data:,", "http://localhost/", "<IMAGE_TOKEN>"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
PARTS = st.dictionaries(
    st.sampled_from(
        [
            "type",
            "text",
            "image_url",
            "video_url",
            "audio_url",
            "input_audio",
            "data",
            "format",
            "url",
            "detail",
            "max_pixels",
            "min_pixels",
        ]
    ),
    VALUES,
    max_size=4,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "odd"])},
        optional={
            "content": st.text(max_size=10) | st.lists(PARTS | VALUES, max_size=3) | VALUES,
            "name": VALUES,
            "tool_calls": VALUES,
            "tool_call_id": VALUES,
        },
    )
    | VALUES,
    max_size=3,
)
ROUTES: dict[str, tuple[dict[str, Any], dict[str, st.SearchStrategy[Any]]]] = {
    "/v1/chat/completions": ({"max_tokens": 2}, {"messages": MESSAGES}),
    "/v1/completions": ({"max_tokens": 2}, {"prompt": VALUES}),
    "/v1/responses": ({"max_output_tokens": 2}, {"input": MESSAGES | VALUES}),
    "/v1/embeddings": ({}, {"input": VALUES, "messages": MESSAGES}),
}
FIELDS = [
    "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "stream", "logit_bias", "logprobs", "top_logprobs",
    "presence_penalty", "frequency_penalty", "stream_options", "user", "metadata", "chat_template_kwargs", "tools",
    "response_format", "echo", "suffix", "best_of", "stop_token_ids", "repetition_penalty", "min_new_tokens",
    "ignore_eos", "skip_special_tokens", "return_token_ids", "include", "instructions", "store",
    "previous_response_id", "encoding_format", "dimensions", "continue_final_message", "add_generation_prompt",
    "include_stop_str_in_output",
]  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
def test_no_body_breaks_the_server(app: FastAPI, path: str) -> None:
    fixed, main = ROUTES[path]

    @settings(max_examples=num_examples(30), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries(main), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=2))
    def check(body: dict[str, Any], more: dict[str, Any]) -> None:
        content = json.dumps({**fixed, **body, **more}).encode()
        response = asyncio.run(post(app, path, content))
        assert response.status_code in (200, 400), (response.status_code, response.text)
        if response.status_code == 400:
            schemas.check(response.json(), schemas.ERROR)

    check()


async def post(app: FastAPI, path: str, content: bytes) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60) as client:
        return await client.post(path, content=content, headers={"content-type": "application/json"})
