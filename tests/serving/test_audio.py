"""Audio over HTTP: OpenAI's `input_audio`, `audio_url`, what is refused, and what is counted."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from live_server import LiveServer, serve
from sounds import make_tone, make_wav

from seesay.config import EngineConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.openai.responses.response_items import read_input
from seesay.serving.openai.responses.stored_responses import make_items

SOUND = base64.b64encode(make_wav(make_tone(0.9))).decode()
INPUT = {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}
URL = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{SOUND}"}}


@pytest.fixture(scope="module")
def listener(tiny_checkpoint: Callable[[str], Path]) -> Iterator[LiveServer]:
    config = EngineConfig(device_type="cpu")
    with AsyncEngine(str(tiny_checkpoint("qwen2_audio")), backend_config=config) as engine, serve(engine) as server:
        yield server


def ask(server: LiveServer, part: dict[str, Any], *, max_tokens: int = 5) -> Any:
    content = [part, {"type": "text", "text": "what?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0}
    return server.post("/v1/chat/completions", body)


def test_openai_client_sends_audio(listener: LiveServer) -> None:
    content: Any = [INPUT, {"type": "text", "text": "what?"}]
    with openai.OpenAI(base_url=f"{listener.url}/v1", api_key="none", max_retries=0) as client:
        [model] = client.models.list().data
        answer = client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": content}], max_tokens=5, temperature=0
        )
    by_url = ask(listener, URL).json()
    assert answer.choices[0].message.content == by_url["choices"][0]["message"]["content"]
    assert answer.usage is not None
    assert by_url["usage"]["prompt_tokens"] == answer.usage.prompt_tokens > 20


def test_openai_client_sends_audio_to_the_responses(listener: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{listener.url}/v1", api_key="none", max_retries=0) as client:
        content: Any = [INPUT, {"type": "input_text", "text": "what?"}]
        item: Any = {"role": "user", "content": content}
        answer = client.responses.create(model="tiny", input=[item], max_output_tokens=16, temperature=0)
        chat = ask(listener, INPUT, max_tokens=16).json()
        assert answer.usage is not None and answer.usage.input_tokens == chat["usage"]["prompt_tokens"]
        assert answer.output_text == chat["choices"][0]["message"]["content"]
        more = client.responses.create(
            model="tiny", input="and?", previous_response_id=answer.id, max_output_tokens=16, temperature=0
        )
        assert more.usage is not None and more.usage.input_tokens > answer.usage.input_tokens


def test_the_audio_of_an_input_is_listed_as_it_was_sent() -> None:
    messages = read_input([{"role": "user", "content": [INPUT]}], (), MediaLimits())
    [item] = make_items(messages, "resp_1")
    assert item["content"] == [INPUT]


@pytest.mark.parametrize(
    ("audio", "param"),
    [
        ({"data": "####", "format": "wav"}, "input_audio.data"),
        ({"data": SOUND, "format": "midi"}, "input_audio.format"),
        ({"data": SOUND, "format": "wav", "odd": 1}, "input_audio.odd"),
        ("x", "input_audio"),
    ],
)
def test_bad_audio_of_a_response_is_named(listener: LiveServer, audio: object, param: str) -> None:
    item = {"role": "user", "content": [{"type": "input_audio", "input_audio": audio}]}
    response = listener.post("/v1/responses", {"input": [item]})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == f"input[0].content[0].{param}", response.text


def test_audio_is_counted(listener: LiveServer) -> None:
    assert ask(listener, INPUT).status_code == 200
    metrics = httpx.get(f"{listener.url}/metrics", timeout=60).text
    [line] = [line for line in metrics.splitlines() if line.startswith('seesay_media_items_total{modality="audio"')]
    assert float(line.split()[-1]) >= 1


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_audio", "input_audio": {"data": "####", "format": "wav"}}, "input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "input_audio.data"),
        ({"type": "input_audio", "input_audio": {"data": SOUND, "format": "midi"}}, "input_audio.format"),
        ({"type": "input_audio", "input_audio": {"data": SOUND}}, "input_audio.format"),
        ({"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav", "odd": 1}}, "input_audio.odd"),
        ({"type": "audio_url", "audio_url": {"url": "/etc/passwd"}}, "audio_url.url"),
        ({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:1/a.wav"}}, "audio_url.url"),
        ({"type": "audio", "audio": "/etc/passwd"}, "audio"),
    ],
)
def test_bad_audio_is_named(listener: LiveServer, part: dict[str, Any], param: str) -> None:
    response = ask(listener, part)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == f"messages[0].content[0].{param}", response.text


def test_a_model_without_audio_says_so(server: LiveServer) -> None:
    response = ask(server, INPUT)
    assert response.status_code == 400 and "takes no audio input" in response.json()["error"]["message"]
