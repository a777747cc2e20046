"""`/v1/audio/transcriptions` and `/v1/audio/translations`, by the openai client and by hand."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from live_server import LiveServer, make_settings, serve
from sounds import encode_audio, make_tone, make_wav
from transformers import VoxtralForConditionalGeneration
from voxtral_checkpoints import process_transcription

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine

PATH, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
SOUND = make_wav(make_tone(0.9))
LONG = make_wav(np.concatenate([make_tone(1.7), np.zeros(3200), make_tone(2.4), np.zeros(3200), make_tone(1.2)]))
"""5.7 s, which the model's window of 2 s divides."""


@pytest.fixture(scope="module")
def listening(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu", session_len=256)
    with AsyncEngine(str(tiny_checkpoint("qwen2_audio")), backend_config=config) as engine:
        yield engine


@pytest.fixture(scope="module")
def listener(listening: AsyncEngine) -> Iterator[LiveServer]:
    with serve(listening) as server:
        yield server


@pytest.fixture(scope="module")
def client(listener: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{listener.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def send(
    server: LiveServer, fields: dict[str, Any] | None = None, file: Any = SOUND, path: str = PATH
) -> httpx.Response:
    files = None if file is None else {"file": ("speech.wav", file, "audio/wav")}
    return httpx.post(f"{server.url}{PATH}", data=fields or {}, files=files, timeout=120)


def ask_chat(server: LiveServer, text: str, sound: bytes = SOUND) -> dict[str, Any]:
    data = {"data": base64.b64encode(sound).decode(), "format": "wav"}
    content = [{"type": "input_audio", "input_audio": data}, {"type": "text", "text": text}]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
    found: dict[str, Any] = server.post("/v1/chat/completions", body).json()
    return found


def test_openai_client_transcribes(client: openai.OpenAI, listener: LiveServer) -> None:
    """The answer is the model's to the question for a transcript."""
    answer = client.audio.transcriptions.create(file=io.BytesIO(SOUND), model="tiny")
    asked = ask_chat(listener, "Transcribe the speech in this audio word by word. Answer with the transcript alone.")
    assert answer.text == asked["choices"][0]["message"]["content"].strip() != ""
    assert answer.usage is not None and answer.usage.type == "tokens"
    assert answer.usage.input_tokens == asked["usage"]["prompt_tokens"]
    details = answer.usage.input_token_details
    assert details is not None and details.audio_tokens == asked["usage"]["prompt_tokens_details"]["audio_tokens"] > 0


def test_openai_client_takes_every_format(client: openai.OpenAI) -> None:
    plain = client.audio.transcriptions.create(file=("a.wav", SOUND), model="tiny", language="en")
    text = client.audio.transcriptions.create(
        file=("a.wav", SOUND), model="tiny", language="en", response_format="text"
    )
    verbose = client.audio.transcriptions.create(
        file=("a.wav", SOUND), model="tiny", language="en", response_format="verbose_json"
    )
    assert text == plain.text + "\n" and verbose.text == plain.text
    assert verbose.language == "english" and verbose.duration == 0.9
    assert verbose.usage is not None and verbose.usage.seconds == 0.9


def test_openai_client_streams(client: openai.OpenAI) -> None:
    """Also what is divided: pieces come in the order of the audio."""
    for sound in (SOUND, LONG):
        whole = client.audio.transcriptions.create(file=("a.wav", sound), model="tiny")
        events = list(client.audio.transcriptions.create(file=("a.wav", sound), model="tiny", stream=True))
        assert [event.type for event in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
        last = events[-1]
        assert last.type == "transcript.text.done" and last.text == whole.text and last.usage is not None
        assert last.usage.model_dump() == whole.usage.model_dump() if whole.usage else False
        assert "".join(event.delta for event in events[:-1] if event.type == "transcript.text.delta") == whole.text
        assert len(events) > 3


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_openai_client_translates(client: openai.OpenAI, listener: LiveServer) -> None:
    answer = client.audio.translations.create(file=("a.mp3", SOUND), model="tiny")
    asked = ask_chat(listener, "Translate the speech in this audio into English. Answer with the translation alone.")
    assert answer.text == asked["choices"][0]["message"]["content"].strip()
    verbose = client.audio.translations.create(file=("a.mp3", SOUND), model="tiny", response_format="verbose_json")
    assert verbose.language == "english" and verbose.duration == 0.9


def test_language_and_prompt_are_told(listener: LiveServer) -> None:
    answer = send(listener, {"language": "de", "prompt": "Frau Müller"}).json()
    asked = ask_chat(
        listener,
        "Transcribe the speech in this audio word by word. Answer with the transcript alone. The speech is in German. "
        "What was said before, or may be said: Frau Müller",
    )
    assert answer["text"] == asked["choices"][0]["message"]["content"].strip()


def test_the_temperature_counts(listener: LiveServer) -> None:
    assert send(listener, {"temperature": "0"}).json()["text"] == send(listener).json()["text"]
    assert len({send(listener, {"temperature": "1.5"}).json()["text"] for _ in range(3)}) > 1


def test_a_long_file_is_divided_where_it_is_quiet(listener: LiveServer) -> None:
    answer = send(listener, {"response_format": "verbose_json", "language": "en"}, LONG)
    assert answer.json()["duration"] == 5.7, answer.text
    refused = ask_chat(listener, "what?", LONG)
    assert "takes the first 2 s alone: divide the audio" in refused["error"]["message"]


def test_other_containers_are_read(listener: LiveServer) -> None:
    for kind, codec in (("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "libopus"), ("webm", "libopus")):
        rate_hz = 48000 if codec == "libopus" else 16000
        found = send(listener, file=encode_audio(make_tone(0.9, rate_hz=rate_hz), kind, codec, rate_hz=rate_hz))
        assert found.status_code == 200, (kind, found.text)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": "srt"}, "response_format", "does not say when something is said"),
        ({"response_format": "vtt"}, "response_format", "does not say when something is said"),
        ({"response_format": "diarized_json"}, "response_format", "must be json, text or verbose_json"),
        ({"response_format": "verbose_json"}, "language", "the model does not"),
        ({"response_format": "verbose_json", "language": "en", "stream": "true"}, "response_format", "events"),
        ({"language": "english"}, "language", "ISO 639-1"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": "-1"}, "temperature", "at least 0"),
        ({"stream": "maybe"}, "stream", "boolean"),
        ({"prompt": "x" * 9000}, "prompt", "at most 8192"),
        ({"model": "whisper-1"}, "model", "does not exist"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]", "not supported"),
        ({"include[]": "logprobs"}, "include[]", "logprobs"),
        ({"known_speaker_names[]": ["a", "b"]}, "known_speaker_names[]", "speakers"),
        ({"chunking_strategy": "server_vad"}, "chunking_strategy", "auto"),
        ({"odd": "1"}, "odd", "unknown field"),
        ({"language": ["en", "de"]}, "language", "twice"),
    ],
)
def test_a_bad_field_is_named(listener: LiveServer, fields: dict[str, Any], param: str, message: str) -> None:
    error = send(listener, fields)
    assert error.status_code == (404 if param == "model" else 400), error.text
    assert error.json()["error"]["param"] == param and message in error.json()["error"]["message"], error.text


@pytest.mark.parametrize("file", [b"", b"junk", SOUND[:20], b"RIFF0000WAVEjunk", make_wav(np.zeros(0)), None])
@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_bad_file_is_named(listener: LiveServer, file: bytes | None, stream: str) -> None:
    error = send(listener, {"stream": stream}, file)
    assert error.status_code == 400 and error.json()["error"]["param"] == "file", error.text


def test_a_model_that_takes_all_reads_the_file_once(tiny_checkpoint: Callable[[str], Path]) -> None:
    """It is asked as it was trained to be."""
    config = EngineConfig(device_type="cpu", session_len=512)
    with AsyncEngine(str(tiny_checkpoint("glmasr")), backend_config=config) as engine, serve(engine) as server:
        found = send(server, {"response_format": "verbose_json", "language": "fr"}, LONG)
        assert found.json()["duration"] == 5.7, found.text
        asked = ask_chat(server, "Please transcribe this audio into text The speech is in French.", LONG)
        assert found.json()["text"] == asked["choices"][0]["message"]["content"].strip()
        error = send(server, file=SOUND[:20])
        assert error.status_code == 400 and error.json()["error"]["param"] == "file", error.text


def test_phi_is_asked_as_it_was_trained(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", session_len=512)
    with AsyncEngine(str(tiny_checkpoint("phi4_multimodal")), backend_config=config) as engine, serve(engine) as server:
        found = send(server)
        asked = ask_chat(server, "Transcribe the audio clip into text.")
        assert found.json()["text"] == asked["choices"][0]["message"]["content"].strip() != ""
        assert found.json()["usage"]["input_tokens"] == asked["usage"]["prompt_tokens"]


def test_a_form_that_is_none_is_refused(listener: LiveServer) -> None:
    assert listener.post(PATH, {"file": "x"}).status_code == 400
    broken = httpx.post(
        f"{listener.url}{PATH}", content=b"--x\r\nodd", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert broken.status_code == 400, broken.text
    two = httpx.post(f"{listener.url}{PATH}", files=[("file", SOUND), ("file", SOUND)], timeout=60)
    assert two.status_code == 400, two.text


def test_keys_and_limits_hold(listening: AsyncEngine) -> None:
    settings = make_settings(api_keys=("a",), max_body_bytes=20_000)
    with serve(listening, settings) as server:
        files = {"file": ("a.wav", SOUND)}
        assert httpx.post(f"{server.url}{PATH}", files=files, timeout=60).status_code == 401
        key = {"authorization": "Bearer a"}
        assert httpx.post(f"{server.url}{PATH}", files=files, headers=key, timeout=60).status_code == 413
        short = {"file": ("a.wav", make_wav(make_tone(0.5)))}
        assert httpx.post(f"{server.url}{PATH}", files=short, headers=key, timeout=60).status_code == 200


def test_unknown_fields_are_ignored_where_the_server_does(listening: AsyncEngine) -> None:
    with serve(listening, make_settings(unknown_fields="ignore")) as server:
        answer = send(server, {"odd": "1"})
        assert answer.status_code == 200 and "odd" in answer.headers["x-seesay-ignored"], answer.headers


def test_the_routes_are_published(listener: LiveServer) -> None:
    paths = httpx.get(f"{listener.url}/openapi.json", timeout=60).json()["paths"]
    contents = [paths[path]["post"]["requestBody"]["content"] for path in (PATH, TRANSLATIONS)]
    form, translation = (content["multipart/form-data"]["schema"] for content in contents)
    fields = {"file", "model", "prompt", "response_format", "temperature"}
    assert form["required"] == translation["required"] == ["file"]
    assert fields | {"language", "stream"} <= form["properties"].keys()
    assert fields <= translation["properties"].keys() and "language" not in translation["properties"]


def test_a_model_without_audio_says_so(server: LiveServer) -> None:
    error = send(server)
    assert error.status_code == 400 and "takes no audio" in error.json()["error"]["message"]


@pytest.fixture(scope="module")
def voxtral(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu", session_len=512)
    with AsyncEngine(str(tiny_checkpoint("voxtral")), backend_config=config) as engine:
        yield engine


def test_voxtral_is_asked_as_it_was_trained(voxtral: AsyncEngine, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("voxtral")
    model = VoxtralForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()
    with serve(voxtral) as server:
        for language in (None, "en"):
            inputs = process_transcription(path, SOUND, language)
            num_prompt = inputs["input_ids"].shape[1]
            with torch.inference_mode():
                output = model.generate(**inputs, max_length=num_prompt + 40, do_sample=False)
            expected = voxtral.tokenizer.backend.decode(output[0, num_prompt:].tolist(), skip_special_tokens=True)
            found = send(server, {} if language is None else {"language": language})
            assert found.status_code == 200 and found.json()["text"].startswith(expected.strip()[:20]), found.text
            assert found.json()["usage"]["input_tokens"] == num_prompt
        streamed = send(server, {"stream": "true"})
        assert "transcript.text.done" in streamed.text
        asked = ask_chat(
            server,
            "Transcribe the speech in this audio word by word. Answer with the transcript alone. What was said before, "
            "or may be said: Müller",
        )
        told = send(server, {"prompt": "Müller"})
        assert told.json()["text"] == asked["choices"][0]["message"]["content"].strip()
        assert told.json()["usage"]["input_tokens"] == asked["usage"]["prompt_tokens"]


def test_what_does_not_fit_the_context_is_divided(tiny_checkpoint: Callable[[str], Path]) -> None:
    """With room for the text: Ultravox has seven tokens for a second here."""
    sound = make_wav(
        np.concatenate([make_tone(14.0), np.zeros(3200), make_tone(24.0), np.zeros(3200), make_tone(30.0)])
    )
    config = EngineConfig(device_type="cpu", session_len=512)
    with AsyncEngine(str(tiny_checkpoint("ultravox")), backend_config=config) as engine, serve(engine) as server:
        found = send(server, {"response_format": "verbose_json", "language": "en"}, sound)
        assert found.status_code == 200 and found.json()["duration"] == 68.4, found.text
        counted = send(server, {}, sound).json()["usage"]["input_tokens"]
        alone = ask_chat(server, "Transcribe the speech in this audio word by word.", sound)
    assert counted > 68 * 7 + 3 * 60, "more than one piece was asked for"
    assert alone["error"]["code"] == "context_length_exceeded", "the whole does not fit"


def test_what_voxtral_cannot_write_down_at_once_is_divided(voxtral: AsyncEngine) -> None:
    most, voxtral.family.max_transcribed_samples = voxtral.family.max_transcribed_samples, 2 * 16000
    try:
        with serve(voxtral) as server:
            found = send(server, {"response_format": "json"}, LONG).json()
    finally:
        voxtral.family.max_transcribed_samples = most
    assert found["usage"]["input_token_details"]["audio_tokens"] == 375 * 4
    assert most == 30 * 60 * 16000
