"""`--unknown-fields`: refused by default; ignored, they are named in a header, wherever in the body they are."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from cpu_time import check_cpu_s, measure_cpu_s
from live_server import make_data_url, make_settings, serve

from seesay.cli import make_parser
from seesay.commands.serve_server import make_settings as make_cli_settings
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.openai.protocol import ChatCompletionRequest
from seesay.serving.requests.unknown_fields import drop_unknown, make_warning

URL = make_data_url()
PICTURE = {"type": "image_url", "image_url": {"url": URL, "zoom": 2}, "cache_control": {"type": "ephemeral"}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2], "size": 3}

# Bodies with unknown fields, and where these are.
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "/v1/chat/completions": (
        {
            "messages": [
                {"role": "user", "content": [PICTURE, {"type": "text", "text": "hi", "lang": "en"}], "mood": "good"},
            ],
            "max_tokens": 1, "guided_odd": ["a"], "stream": True,
            "stream_options": {"include_usage": True, "odd": 1},
        },
        ["messages[0].content[0].image_url.zoom", "messages[0].content[0].cache_control",
         "messages[0].content[1].lang", "messages[0].mood", "guided_odd", "stream_options.odd"],
    ),
    "/v1/completions": ({"prompt": "hi", "max_tokens": 1, "odd": None}, ["odd"]),
    "/v1/responses": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "odd": 1}], "tone": 1}],
         "max_output_tokens": 1},
        ["input[0].content[0].odd", "input[0].tone"],
    ),
    "/v1/embeddings": ({"input": "hi", "odd": 1}, ["odd"]),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": SOURCE, "odd": 1}], "id": "m"}],
         "max_tokens": 1, "metadata": {"user_id": "u", "odd": 1}, "top_a": 1},
        ["messages[0].content[0].source.size", "messages[0].content[0].odd", "messages[0].id", "metadata.odd", "top_a"],
    ),
    "/v1/chat/interactive": ({"prompt": "hi", "request_output_len": 1, "odd": 1}, ["odd"]),
    "/generate": ({"prompt": "hi", "max_tokens": 1, "odd": 1}, ["odd"]),
    "/tokenize": ({"messages": [{"role": "user", "content": "x", "odd": 1}]}, ["messages[0].odd"]),
    "/detokenize": ({"tokens": [1], "odd": 1}, ["odd"]),
}  # fmt: skip


def client_of(engine: AsyncEngine, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(engine, make_settings(**options)))
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)


@pytest.mark.parametrize("path", CASES)
async def test_ignored_fields_are_named(engine: AsyncEngine, http: httpx.AsyncClient, path: str) -> None:
    body, places = CASES[path]
    response = await client_of(engine, unknown_fields="ignore").post(path, json=body)
    assert response.status_code == 200, response.text
    code, agent, text = response.headers["warning"].split(" ", 2)
    assert (code, agent) == ("299", "seesay")
    assert sorted(text.removeprefix('"unknown fields were ignored: ').removesuffix('"').split(", ")) == sorted(places)
    refused = await http.post(path, json=body)
    assert refused.status_code == 400 and "warning" not in refused.headers


async def test_nothing_else_is_taken(engine: AsyncEngine) -> None:
    http = client_of(engine, unknown_fields="ignore")
    hi = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    fine = await http.post("/v1/chat/completions", json=hi)
    assert fine.status_code == 200 and "warning" not in fine.headers
    for wrong in ({"tools": [{"type": "function"}]}, {"temperature": 9}, {"messages": [{"role": "robot"}]}):
        response = await http.post("/v1/chat/completions", json={**hi, **wrong, "odd": 1})
        assert response.status_code == 400 and "odd" in response.headers["warning"]
    kept = {"chat_template_kwargs": {"anything": {"at": "all"}}}
    assert "warning" not in (await http.post("/v1/chat/completions", json={**hi, **kept})).headers


def test_names_cannot_break_the_header(engine: AsyncEngine) -> None:
    names = ['a"\r\nset-cookie: x', "ü\ud800", "x" * 10_000, *map(str, range(20))]
    assert make_warning(names) == (
        '299 seesay "unknown fields were ignored: a???set-cookie??x, ??, ' + f'{"x" * 80}, 0, 1, 2, 3, 4 and 15 more"'
    )
    with serve(engine, make_settings(unknown_fields="ignore")) as server:
        response = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, 'a"\r\nb': 1})
    assert response.headers["warning"].endswith('ignored: a???b"')


def test_it_takes_linear_time() -> None:
    def drop(number: int) -> None:
        parts = [{"type": "text", "text": "x", "odd": 1} for _ in range(number)]
        names = drop_unknown({"messages": [{"role": "user", "content": parts}]}, ChatCompletionRequest)
        assert len(names) == number

    # Eight times as many fields. A search through the names so far for each of them would take sixty times as long.
    check_cpu_s(lambda: drop(16_000), 16 * measure_cpu_s(lambda: drop(2_000)))


def test_the_option() -> None:
    parser = make_parser()
    for words, expected in (([], "refuse"), (["--unknown-fields", "ignore"], "ignore")):
        assert make_cli_settings(parser.parse_args(["serve", "api_server", *words])).unknown_fields == expected
