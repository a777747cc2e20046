"""What a lenient schema does not hold is said in a header of the answer."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from seesay.serving.requests.left_out import HEADER, show_left_out

pytest.importorskip("llguidance")

SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True, "items": {"type": "string"}}}}
MESSAGES = [{"role": "user", "content": "hi"}]


def form(strict: bool) -> dict[str, Any]:
    return {"type": "json_schema", "schema": SCHEMA, "strict": strict}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "response_format": form(False)}),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 1, "response_format": form(False)}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1, "text": {"format": form(False)}}),
        ("/generate", {"prompt": "hi", "max_tokens": 1, "response_format": form(False)}),
    ],
)
async def test_what_is_left_out_is_named(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], stream: bool
) -> None:
    response = await http.post(path, json={**body, "stream": stream})
    assert response.status_code == 200, response.text
    assert "uniqueItems" in response.headers[HEADER] and "properties.a" in response.headers[HEADER]


async def test_nothing_is_named_where_all_is_held(http: httpx.AsyncClient) -> None:
    held = {**form(False), "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    body = {"messages": MESSAGES, "max_tokens": 1, "response_format": held}
    assert HEADER not in (await http.post("/v1/chat/completions", json=body)).headers
    refused = await http.post("/v1/chat/completions", json={**body, "response_format": form(True)})
    assert refused.status_code == 400 and HEADER not in refused.headers


def test_the_header_is_short_and_plain() -> None:
    shown = show_left_out(tuple(f"not at $.é\n{number}" for number in range(20)))
    assert shown.startswith("not at $.??0, ") and shown.endswith(" and 4 more")
