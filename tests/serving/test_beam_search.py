"""Beam search over HTTP: the answers of Transformers, within the limits of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import LiveServer, make_data_url, make_settings
from oracles import load_oracle
from processing import process
from waiting import until, wait_until

from seesay.config import BeamSearchParams, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.offline.beam_search import search_beams
from seesay.serving.app import create_app
from seesay.values import GenerationRequest

BEAMS: dict[str, Any] = {"use_beam_search": True, "n": 3, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
CHAT = {"messages": [{"role": "user", "content": "the game is in the frame"}]}


def find_beams(engine: AsyncEngine, prompt: str, **options: Any) -> list[list[int]]:
    request = GenerationRequest(prompt=prompt, gen_config=GenerationConfig())
    [found] = search_beams(engine, [request], BeamSearchParams(max_tokens=6, **options))
    return [choice.token_ids for choice in found.choices]


def ask(server: LiveServer, path: str, **fields: Any) -> dict[str, Any]:
    response = server.post(path, {**BEAMS, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_chat_has_the_answers_of_transformers(server: LiveServer, tiny_checkpoint: Callable[[str], Path]) -> None:
    model, processor = load_oracle(tiny_checkpoint("qwen2_5_vl"))
    text = processor.apply_chat_template(CHAT["messages"], tokenize=False, add_generation_prompt=True)
    inputs = process(processor, text, images=[], add_special_tokens=False)
    model.generation_config.eos_token_id = None
    rows = model.generate(
        **inputs, do_sample=False, max_new_tokens=6, num_beams=3, num_return_sequences=3, pad_token_id=0
    )
    expected = rows[:, inputs["input_ids"].shape[1] :].tolist()
    found = ask(server, "/v1/chat/completions", **CHAT, ignore_eos=True)
    assert [choice["token_ids"] for choice in found["choices"]] == expected
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2]
    assert found["usage"]["completion_tokens"] == 18
    assert found["usage"]["prompt_tokens"] == inputs["input_ids"].shape[1]


def test_a_chat_keeps_as_many_texts_as_best_of_says(server: LiveServer) -> None:
    path = "/v1/chat/completions"
    expected = [choice["token_ids"] for choice in ask(server, path, **CHAT, ignore_eos=True)["choices"]]
    found = ask(server, path, **CHAT, ignore_eos=True, n=2, best_of=3)
    assert [choice["token_ids"] for choice in found["choices"]] == expected[:2]
    assert found["usage"]["completion_tokens"] == 18


def test_completions_have_a_search_for_each_prompt(server: LiveServer, engine: AsyncEngine) -> None:
    prompts = ["the game", "in a frame"]
    found = ask(server, "/v1/completions", prompt=prompts, ignore_eos=True, length_penalty=-2.0)
    expected = [ids for prompt in prompts for ids in find_beams(
        engine, prompt, beam_width=3, ignore_eos=True, length_penalty=-2.0)]  # fmt: skip
    assert [choice["token_ids"] for choice in found["choices"]] == expected
    best = ask(server, "/v1/completions", prompt=prompts, ignore_eos=True, length_penalty=-2.0, n=1, best_of=3)
    assert [choice["token_ids"] for choice in best["choices"]] == [expected[0], expected[3]]
    wait_until(lambda: engine.stats().num_used_kv_blocks == 0)


def test_pictures_are_searched_for_too(server: LiveServer) -> None:
    content = [{"type": "image_url", "image_url": {"url": make_data_url()}}, {"type": "text", "text": "what?"}]
    found = ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": content}], n=2)
    assert len(found["choices"]) == 2 and found["usage"]["prompt_tokens_details"]["vision_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"stream": True}, "stream"), ({"temperature": 0.5}, "temperature"), ({"stop": "a"}, "stop"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"allowed_token_ids": [3]}, "allowed_token_ids"), ({"logprobs": True}, "logprobs"),
        ({"use_beam_search": False, "length_penalty": 2.0}, "length_penalty"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"), ({"n": 129}, "n"),
        ({"best_of": 2}, "best_of"), ({"best_of": 129}, "best_of"),
        ({"use_beam_search": False, "best_of": 3}, "best_of"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_search_cannot_do_is_refused(server: LiveServer, fields: dict[str, Any], name: str) -> None:
    response = server.post("/v1/chat/completions", {**BEAMS, **CHAT, **fields})
    assert response.status_code == 400 and response.json()["error"]["param"] == name, response.text


def test_the_limits_of_a_key_hold_for_beams(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two places, a search of five texts computes two at a time, and two searches do not wait for each other."""
    running, most = set[int](), 0
    submit_batch = engine.submit_batch

    def watch(requests: Any, on_output: Any, prompts: Any = None) -> list[int]:
        def put(delta: Any) -> None:
            if delta.finish_reason is not None:
                running.discard(delta.request_id)
            on_output(delta)

        nonlocal most
        ids = submit_batch(requests, put, prompts)
        running.update(ids)
        most = max(most, len(running))
        return ids

    monkeypatch.setattr(engine, "submit_batch", watch)
    app = create_app(engine, make_settings(max_sequences_per_key=2))

    async def run() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as client:
            body = {**BEAMS, "prompt": "the game", "n": 5, "ignore_eos": True}
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(2)))
        assert most == 2
        expected = find_beams(engine, "the game", beam_width=5, ignore_eos=True)
        for answer in answers:
            assert [choice["token_ids"] for choice in answer.json()["choices"]] == expected

    asyncio.run(run())


async def test_a_search_ends_with_its_client(engine: AsyncEngine) -> None:
    app = create_app(engine, make_settings())
    await until(lambda: engine.stats().num_used_kv_blocks == 0)  # of the test before
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x", timeout=60) as client:
        body = {**BEAMS, "prompt": "hi", "max_tokens": 400, "ignore_eos": True, "rid": "mine"}
        running = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: engine.stats().num_used_kv_blocks > 0)
        assert (await client.post("/abort_request", json={"rid": "mine"})).json() == {"num_aborted": 1}
        assert "was aborted" in (await running).text
    await until(lambda: engine.stats().num_used_kv_blocks == 0)
