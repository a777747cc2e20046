"""`/v1/embeddings`: pooled last hidden states of texts, ids and pictures. tests/offline/test_embedding.py compares them
with Transformers'."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import openai_schemas as schemas
import pytest
from live_server import MODEL, LiveServer, ask_about, make_data_url, make_settings, serve

from seesay import Pipeline
from seesay.engine.front.engine import AsyncEngine

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


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_pipeline_and_the_server_give_the_same(server: LiveServer, engine: AsyncEngine, pooling: Any) -> None:
    pipe = Pipeline.from_engine(engine)
    url = make_data_url(seed=30)
    messages = ask_about(url, "what?")
    for dimensions in (None, 8):
        options = {"pooling": pooling, "dimensions": dimensions}
        np.testing.assert_allclose(
            embed(server, input="the game", **options)[0], pipe.embed("the game", **options), atol=1e-5
        )
        found = pipe.embed(messages, do_preprocess=True, **options)
        np.testing.assert_allclose(embed(server, messages=messages, **options)[0], found, atol=1e-5)


def test_content_parts_are_a_turn_of_the_user(server: LiveServer) -> None:
    url = make_data_url(seed=31)
    first, second = ask_about(url, "what?"), ask_about("and ", url, " that?")
    expected = [embed(server, messages=messages)[0] for messages in (first, second)]
    np.testing.assert_allclose(embed(server, input=first[0]["content"]), expected[:1], atol=1e-5)
    np.testing.assert_allclose(embed(server, input=[first[0]["content"], second[0]["content"]]), expected, atol=1e-5)
    bare = embed(server, messages=first, add_generation_prompt=False)[0]
    assert not np.allclose(bare, expected[0], atol=1e-4)


def test_the_server_has_a_pooling_of_its_own(engine: AsyncEngine, server: LiveServer) -> None:
    with serve(engine, make_settings(embedding_pooling="last")) as last:
        own = embed(last, input="the game")[0]
        np.testing.assert_allclose(own, embed(server, input="the game", pooling="last")[0], atol=1e-5)
        np.testing.assert_allclose(
            embed(last, input="the game", pooling="mean"), embed(server, input="the game"), atol=1e-5
        )
    assert not np.allclose(own, embed(server, input="the game")[0], atol=1e-3)


def test_fields_of_prompts(server: LiveServer, engine: AsyncEngine) -> None:
    ids = engine.tokenizer.encode("the game is in the frame", add_special_tokens=True)
    cut = embed(server, input=ids, truncate_prompt_tokens=3, cache_salt="s", priority=1)[0]
    np.testing.assert_allclose(cut, embed(server, input=ids[-3:])[0], atol=1e-5)
    unit = embed(server, input="the game", normalize=True)[0]
    assert abs(np.linalg.norm(unit) - 1) < 1e-5
    small = embed(
        server, messages=ask_about(make_data_url(size=(300, 300)), "?"), mm_processor_kwargs={"max_pixels": 4000}
    )
    assert np.isfinite(small[0]).all()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "dimensions": 100_000}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"messages": ask_about("a"), "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
        ({"input": [{"type": "text"}]}, "input[0].text"),
        ({"input": [{"type": "text", "text": "a"}, 3]}, "input[1]"),
        ({"input": [[{"type": "text", "text": "a"}], "b"]}, "input[1]"),
        ({"input": [[{"type": "text", "text": "a"}], []]}, "input[1]"),
        ({"input": [[{"type": "text", "text": "a"}], [{"type": "input_audio"}]]}, "input[1][0].input_audio"),
        ({"input": [[{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]]}, "input[0][0].image_url.url"),
        ({"input": [[{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]]},
         "input[0][0].image_url.url"),
        ({"input": [{"type": "image_url", "image_url": {"url": make_data_url()}}] * 65}, "input"),
    ],
)  # fmt: skip
def test_what_cannot_be_embedded_is_named(server: LiveServer, body: dict[str, Any], param: str) -> None:
    response = server.post(PATH, body)
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text
