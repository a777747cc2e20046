"""`/v1/completions`: raw prompts, several at once, echoed or not."""

from __future__ import annotations

from typing import Any

import openai
import openai_schemas as schemas
import pytest
from live_server import MODEL, LiveServer, read_events

from seesay.config import GenerationConfig
from seesay.engine import AsyncEngine

PATH = "/v1/completions"


def complete(server: LiveServer, prompt: Any, **options: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 6, **options}
    response = server.post(PATH, body)
    assert response.status_code == 200, response.text
    schemas.check(response.json(), schemas.COMPLETION)
    schemas.check(response.json()["usage"], schemas.USAGE)
    return response.json()


def texts(answer: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def stream(server: LiveServer, prompt: Any, **options: Any) -> list[dict[str, Any]]:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 6, "stream": True, **options}
    response = server.post(PATH, body)
    assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")
    events = read_events(response.text)
    for event in events:
        schemas.check(event, schemas.COMPLETION)
    return events


async def test_raw_text_is_answered_as_the_engine_does(server: LiveServer, engine: AsyncEngine) -> None:
    config = GenerationConfig(max_new_tokens=6)
    expected = [
        r async for r in engine.generate("the game", gen_config=config, do_preprocess=False, stream_response=False)
    ]
    answer = complete(server, "the game")
    assert texts(answer) == [expected[0].text]
    assert answer["usage"]["prompt_tokens"] == len(engine.tokenizer.encode("the game", add_special_tokens=True))


def test_lists_of_prompts_keep_their_indexes(server: LiveServer, engine: AsyncEngine) -> None:
    prompts = ["the game", "in a frame", "frame"]
    alone = [texts(complete(server, prompt))[0] for prompt in prompts]
    assert texts(complete(server, prompts)) == alone
    assert texts(complete(server, prompts, n=2)) == [text for text in alone for _ in range(2)]
    ids = [engine.tokenizer.encode(prompt, add_special_tokens=True) for prompt in prompts]
    assert texts(complete(server, ids)) == alone
    assert texts(complete(server, ids[0])) == alone[:1]
    joined = [""] * 6
    reasons: list[list[str]] = [[] for _ in joined]
    for event in stream(server, prompts, n=2):
        for choice in event["choices"]:
            joined[choice["index"]] += choice["text"]
            reasons[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert joined == [text for text in alone for _ in range(2)]
    assert reasons == [["length"]] * 6


def test_echo_begins_with_the_prompt(server: LiveServer, engine: AsyncEngine) -> None:
    plain = texts(complete(server, ["the game", "frame"]))
    assert texts(complete(server, ["the game", "frame"], echo=True)) == ["the game" + plain[0], "frame" + plain[1]]
    events = stream(server, ["the game", "frame"], echo=True)
    joined = ["".join(c["text"] for e in events for c in e["choices"] if c["index"] == i) for i in range(2)]
    assert joined == ["the game" + plain[0], "frame" + plain[1]]
    ids = engine.tokenizer.encode("the game")
    assert texts(complete(server, ids, echo=True, max_tokens=0)) == ["the game"]


def test_scores_of_a_prompt(server: LiveServer, engine: AsyncEngine) -> None:
    answer = complete(server, "the game is in the frame", echo=True, max_tokens=0, logprobs=0)
    logprobs = answer["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "the game is in the frame" == answer["choices"][0]["text"]
    assert logprobs["token_logprobs"][0] is None and all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert answer["usage"]["completion_tokens"] == 0
    from seesay.api import Pipeline

    ids = engine.tokenizer.encode("the game is in the frame", add_special_tokens=True)
    loss = Pipeline.from_engine(engine).get_ppl(ids)[0]
    mean = sum(logprobs["token_logprobs"][1:]) / (len(ids) - 1)
    assert mean == pytest.approx(-loss, abs=1e-4)


def test_logprobs_and_offsets(server: LiveServer) -> None:
    choice = complete(server, "the game", logprobs=3)["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == 6 and all(len(top) <= 3 for top in logprobs["top_logprobs"])
    assert logprobs["text_offset"][0] == 0
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    events = stream(server, "the game", logprobs=3)
    pieces = [c["logprobs"] for e in events for c in e["choices"] if c["logprobs"]]
    for key in ("tokens", "text_offset", "token_logprobs"):
        assert [value for piece in pieces for value in piece[key]] == pytest.approx(logprobs[key]) or key == "tokens"
    assert [token for piece in pieces for token in piece["tokens"]] == logprobs["tokens"]


def test_usage_of_a_stream_and_timings(server: LiveServer) -> None:
    events = stream(server, ["the game", "frame"], n=2, stream_options={"include_usage": True})
    whole = complete(server, ["the game", "frame"], n=2)["usage"]
    last = events[-1]["usage"]
    assert events[-1]["choices"] == [] and last["total_tokens"] == whole["total_tokens"]
    assert all(event["usage"] is None for event in events[:-1])
    body = {"prompt": "the game", "max_tokens": 2, "stream": True}
    timed = read_events(server.post(PATH, body, headers={"x-seesay-timings": "1"}).text)
    assert timed[-1]["seesay"]["timings"]["total_s"] > 0


def test_default_length_is_openais(server: LiveServer) -> None:
    assert complete(server, "the game", max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_official_client(server: LiveServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    whole = client.completions.create(model=MODEL, prompt="the game", max_tokens=6, temperature=0)
    pieces = client.completions.create(model=MODEL, prompt="the game", max_tokens=6, temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a", ""]}, "prompt[1]"), ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[10**9]]}, "prompt[0][0]"), ({"prompt": ""}, "prompt"), ({"prompt": [1, 99999]}, "prompt[1]"),
        ({"prompt": [-1, 99999]}, "prompt[0]"), ({"prompt": "a", "echo": True, "logprobs": 2}, "logprobs"),
        ({"prompt": "a", "echo": True, "logprobs": 0, "stream": True}, "echo"), ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({}, "prompt"), ({"prompt": [["a"]]}, "prompt[0][0]"), ({"prompt": ["a", 1]}, "prompt[1]"),
    ],
)  # fmt: skip
def test_prompts_that_are_refused(server: LiveServer, body: dict[str, Any], param: str | None) -> None:
    response = server.post(PATH, body)
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param, response.text
