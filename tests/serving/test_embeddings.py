"""`/v1/embeddings`: the mean of the last hidden states, for texts, ids and pictures."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import openai_schemas as schemas
from live_server import MODEL, LiveServer, ask_about, make_data_url

from seesay.engine.engine import AsyncEngine

PATH = "/v1/embeddings"


def embed(server: LiveServer, **body: Any) -> list[np.ndarray]:
    response = server.post(PATH, {"model": MODEL, **body})
    assert response.status_code == 200, response.text
    schemas.check(response.json(), schemas.EMBEDDINGS)
    assert [entry["index"] for entry in response.json()["data"]] == list(range(len(response.json()["data"])))
    return [np.array(entry["embedding"], dtype=np.float32) for entry in response.json()["data"]]


def test_texts_and_ids_give_the_same(server: LiveServer, engine: AsyncEngine) -> None:
    texts = ["the game", "in a frame"]
    together = embed(server, input=texts)
    hidden = engine.family.backbone().text_config.hidden_size
    assert all(vector.shape == (hidden,) and np.isfinite(vector).all() for vector in together)
    ids = [engine.tokenizer.encode(text, add_special_tokens=True) for text in texts]
    for index, text in enumerate(texts):
        np.testing.assert_allclose(embed(server, input=text)[0], together[index], atol=1e-4)
        np.testing.assert_allclose(embed(server, input=ids[index])[0], together[index], atol=1e-4)
    np.testing.assert_allclose(embed(server, input=ids), together, atol=1e-4)
    assert not np.allclose(together[0], together[1])


def test_pictures_count(server: LiveServer) -> None:
    one, same, other = (
        embed(server, messages=ask_about(make_data_url(seed=seed), "what?"))[0] for seed in (21, 21, 22)
    )
    np.testing.assert_allclose(one, same, atol=1e-4)
    assert not np.allclose(one, other, atol=1e-3)


def test_base64_is_little_endian_float32(server: LiveServer) -> None:
    body = {"input": "the game", "encoding_format": "base64"}
    encoded = server.post(PATH, body).json()["data"][0]["embedding"]
    decoded = np.frombuffer(base64.b64decode(encoded), dtype="<f4")
    np.testing.assert_allclose(decoded, embed(server, input="the game")[0], atol=1e-5)


def test_usage_and_timings(server: LiveServer, engine: AsyncEngine) -> None:
    response = server.post(PATH, {"input": ["the game", "frame"]}, headers={"x-seesay-timings": "1"}).json()
    num_tokens = sum(len(engine.tokenizer.encode(t, add_special_tokens=True)) for t in ("the game", "frame"))
    assert response["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert response["seesay"]["timings"]["total_s"] > 0


def test_official_client(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model=MODEL, input=["the game", "frame"])  # asks for base64 by itself
    np.testing.assert_allclose(answer.data[1].embedding, embed(server, input="frame")[0], atol=1e-4)


def test_what_is_refused_is_named(server: LiveServer) -> None:
    for value, param in (("", "input"), ([], "input"), ([""], "input[0]"), ([1, 10**6], "input[1]")):
        response = server.post(PATH, {"input": value})
        assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text


def test_what_is_refused(server: LiveServer) -> None:
    body: dict[str, Any]
    both = {"input": "a", "messages": [{"role": "user", "content": "a"}]}
    for body in ({}, both, {"input": [""]}, {"input": ["a"] * 2049}, {"input": "game " * 2000}, {"messages": []}):
        response = server.post(PATH, body)
        assert response.status_code == 400, response.text
        schemas.check(response.json(), schemas.ERROR)
