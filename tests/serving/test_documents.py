"""Documents over HTTP, by OpenAI's and Anthropic's clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from live_server import LiveServer, make_settings, serve
from pdfs import damage, make_pdf, make_tiff

from seesay.config import EngineConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine

THREE = make_pdf(["Hello one\nsecond line", "Page two", "third"])
LIMITS = MediaLimits.for_server(max_items=8)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with (
        AsyncEngine("seesay-demo", backend_config=EngineConfig(device_type="cpu"), media_limits=LIMITS) as engine,
        serve(engine, make_settings(media=LIMITS)) as running,
    ):
        yield running


def url_of(data: bytes, kind: str = "application/pdf") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def ask(server: LiveServer, file: dict[str, Any], **fields: Any) -> httpx.Response:
    content = [{"type": "file", "file": file}, {"type": "text", "text": "What is it?"}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 2, **fields}
    return server.post("/v1/chat/completions", body)


def test_openais_chat_takes_a_file(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "file", "file": {"filename": "three.pdf", "file_data": url_of(THREE)}},
                        {"type": "text", "text": "What is it?"},
                    ],
                }
            ],
            max_tokens=2,
        )
    assert answer.choices[0].message.content


def test_openais_responses_take_a_file(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.responses.create(
            model="tiny",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_file", "filename": "three.pdf", "file_data": url_of(THREE), "detail": "auto"},
                        {"type": "input_text", "text": "What is it?"},
                    ],
                }
            ],
            max_output_tokens=16,
        )
        items = client.responses.input_items.list(answer.id)
    assert answer.output_text
    part = json.loads(items.model_dump_json())["data"][0]["content"][0]
    assert part["type"] == "input_file" and part["filename"] == "three.pdf"


def test_anthropics_document_blocks_are_read(server: LiveServer) -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(THREE).decode()}
    blocks: list[Any] = [
        {
            "type": "document",
            "source": pdf,
            "title": "three.pdf",
            "context": "A test.",
            "citations": {"enabled": False},
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Some text."}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "More."}]}},
        {"type": "text", "text": "What is it?"},
    ]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(model="tiny", messages=[{"role": "user", "content": blocks}], max_tokens=2)
    assert answer.content[0].type == "text"


@pytest.mark.parametrize(
    ("file", "param"),
    [
        ({"file_id": "file-1"}, "messages[0].content[0].file.file_id"),
        ({"filename": "a.pdf"}, "messages[0].content[0].file.file_data"),
        ({"file_data": 5}, "messages[0].content[0].file.file_data"),
        ({"file_data": "/etc/passwd"}, "messages[0].content[0].file.file_data"),
        ({"file_data": url_of(b"no pdf")}, "messages[0].content[0].file.file_data"),
        ({"file_data": url_of(THREE), "pages": "7"}, "messages[0].content[0].file.pages"),
        ({"file_data": url_of(THREE), "pages": "x"}, "messages[0].content[0].file.pages"),
        ({"file_data": url_of(THREE), "dpi": 1}, "messages[0].content[0].file.dpi"),
        ({"file_data": url_of(THREE), "text_layer": "only"}, "messages[0].content[0].file.text_layer"),
        ({"file_data": url_of(THREE), "nonsense": 1}, "messages[0].content[0].file.nonsense"),
        ({"file_data": url_of(make_pdf(["a"] * 9))}, "messages[0].content[0].file.file_data"),
        ({"file_data": url_of(make_pdf(["a"], size=(14400, 14400)))}, "messages[0].content[0].file.file_data"),
    ],
)
def test_errors_name_the_field(server: LiveServer, file: dict[str, Any], param: str) -> None:
    answer = ask(server, file)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"citations": {"enabled": True}}, "citations"),
        ({"source": {"type": "file", "file_id": "x"}}, "source"),
        ({"source": {"type": "base64", "media_type": "text/plain", "data": "eA=="}}, "source.media_type"),
        ({"source": {"type": "text", "media_type": "text/plain", "data": ""}}, "source.data"),
        ({"source": {"type": "content", "content": [{"type": "tool_use"}]}}, "source.content[0]"),
        ({"title": 5}, "title"),
        ({"pages": "9"}, "pages"),
    ],
)
def test_errors_of_document_blocks_name_the_field(server: LiveServer, change: dict[str, Any], param: str) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(THREE).decode()}
    block = {"type": "document", "source": source, **change}
    body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": [block]}]}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 400, answer.text
    assert f"messages[0].content[0].{param}" in answer.json()["error"]["message"]


def test_a_tiff_is_a_document(server: LiveServer) -> None:
    assert ask(server, {"file_data": url_of(make_tiff([(64, 64), (64, 64)]), "image/tiff")}).status_code == 200


def test_documents_may_be_counted(server: LiveServer) -> None:
    def count(data: bytes) -> int:
        pdf = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
        messages = [{"role": "user", "content": [{"type": "document", "source": pdf}]}]
        answer = server.post("/v1/messages/count_tokens", {"model": "tiny", "messages": messages})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["input_tokens"])

    one, three = count(make_pdf(["a"])), count(THREE)
    assert three > 2 * one > 0


def test_damaged_documents_are_400(server: LiveServer) -> None:
    statuses = []
    for seed in range(40):
        answer = ask(server, {"file_data": url_of(damage(THREE, seed)), "dpi": 18}, max_tokens=1)
        statuses.append(answer.status_code)
        assert answer.status_code in (200, 400), (seed, answer.text)
        json.loads(answer.text)
    assert {200, 400} <= set(statuses)
