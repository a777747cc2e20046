"""`/v1/completions`: raw prompts, several at once, echoed or not."""

from __future__ import annotations

from typing import Any

import openai
import openai_schemas as schemas
import pytest
from asking import ask
from live_server import MODEL, LiveServer, read_events

from seesay.config import GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.values import GenerationRequest

PATH = "/v1/completions"


def complete(server: LiveServer, prompt: Any, **options: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 6, **options}
    response = server.post(PATH, body)
    assert response.status_code == 200, response.text
    schemas.check(response.json(), schemas.COMPLETION)
    schemas.check(response.json()["usage"], schemas.USAGE)
    answer: dict[str, Any] = response.json()
    return answer


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
    from seesay.offline.pipeline import Pipeline

    ids = engine.tokenizer.encode("the game is in the frame", add_special_tokens=True)
    loss = Pipeline.from_engine(engine).get_ppl(ids)[0]
    mean = sum(logprobs["token_logprobs"][1:]) / (len(ids) - 1)
    assert mean == pytest.approx(-loss, abs=1e-4)


def spans(choice: dict[str, Any]) -> list[str]:
    """The text of each token, by the offsets."""
    starts = choice["logprobs"]["text_offset"]
    return [choice["text"][a:b] for a, b in zip(starts, [*starts[1:], len(choice["text"])])]


@pytest.mark.parametrize(
    "prompt", ("the game  in\n\nthe Frame", "h\u00e9 \u732b \U0001f600 the", "<|im_end|>a<|im_start|>")
)
@pytest.mark.parametrize("as_ids", (False, True))
def test_offsets_of_an_echoed_prompt(server: LiveServer, engine: AsyncEngine, prompt: str, as_ids: bool) -> None:
    """Each token begins in the text where its own begins; tokens that share a character begin there together."""
    ids = engine.tokenizer.encode(prompt, add_special_tokens=True)
    for max_tokens in (0, 3):
        options = {"echo": True, "max_tokens": max_tokens, "logprobs": 0, "ignore_eos": True}
        [choice] = complete(server, ids if as_ids else prompt, **options)["choices"]
        assert choice["text"].startswith(prompt)
        offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
        assert len(offsets) == len(tokens) == len(ids) + max_tokens and offsets == sorted(offsets)
        for token, span in list(zip(tokens, spans(choice)))[: len(ids)]:
            assert span == token or "\ufffd" in token, (token, span)
        assert max_tokens == 0 or offsets[len(ids)] == len(prompt)


def test_nothing_is_generated_behind_an_echo_of_no_tokens(server: LiveServer, engine: AsyncEngine) -> None:
    """Also where the next token would be the end: the reason is the length that was asked for."""
    end = engine.tokenizer.eos_token_id
    options = {"echo": True, "max_tokens": 0, "logit_bias": {str(end): 100}, "return_token_ids": True}
    answer = complete(server, ["the game", "frame"], n=2, **options)
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 4
    assert [choice["token_ids"] for choice in answer["choices"]] == [[]] * 4
    assert texts(answer) == ["the game", "the game", "frame", "frame"]
    assert answer["usage"]["completion_tokens"] == 0
    events = stream(server, "the game", **options, stream_options={"include_usage": True})
    assert [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]] == ["length"]
    assert events[-1]["usage"]["completion_tokens"] == 0
    whole = ["the game in " * 200]
    count = len(engine.tokenizer.encode(whole[0], add_special_tokens=True))
    ids = engine.tokenizer.encode(whole[0], add_special_tokens=True)[: engine.session_len]
    assert count > len(ids) == engine.session_len
    [choice] = complete(server, ids, echo=True, max_tokens=0, logprobs=0)["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == engine.session_len


@pytest.mark.parametrize("num_top", (0, 1, 2))
def test_the_chosen_token_is_among_its_alternatives(server: LiveServer, num_top: int) -> None:
    """Also where chance took one that is not among the most likely."""
    options = {"max_tokens": 30, "temperature": 2.0, "top_k": 0, "seed": 5, "ignore_eos": True, "logprobs": num_top}
    logprobs = complete(server, "the game", **options)["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 30
    num_unlikely = 0
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]):
        assert top[token] == value and len(top) <= num_top + 1
        num_unlikely += len(top) > num_top
    assert num_unlikely > 10
    pieces = [c["logprobs"] for e in stream(server, "the game", **options) for c in e["choices"] if c["logprobs"]]
    streamed = [top for piece in pieces for top in piece["top_logprobs"]]
    for one, other in zip(streamed, logprobs["top_logprobs"], strict=True):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("max_tokens", (0, 4))
def test_alternatives_of_an_echoed_prompt(server: LiveServer, engine: AsyncEngine, max_tokens: int) -> None:
    """Those of the engine, in one piece and streamed, of several prompts with several answers."""
    prompts = ["the game is in the frame", "a frame"]
    options = {"echo": True, "max_tokens": max_tokens, "logprobs": 3, "prompt_logprobs": 1, "n": 2, "ignore_eos": True}
    whole = complete(server, prompts, **options)["choices"]
    pieces: list[list[dict[str, Any]]] = [[] for _ in whole]
    for event in stream(server, prompts, **options):
        for choice in event["choices"]:
            pieces[choice["index"]].append(choice)
    for index, choice in enumerate(whole):
        ids = engine.tokenizer.encode(prompts[index // 2], add_special_tokens=True)
        config = GenerationConfig(max_new_tokens=1, prompt_logprobs=3)
        [scored] = ask(engine, [GenerationRequest(prompt=tuple(ids), gen_config=config)])
        assert scored.prompt_logprobs is not None
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(ids) + max_tokens
        for place, entry in enumerate(scored.prompt_logprobs):
            top, own = logprobs["top_logprobs"][place], logprobs["token_logprobs"][place]
            shown = choice["prompt_logprobs"][place]
            if entry is None:
                assert top is own is shown is None and place == 0
                continue
            assert own == pytest.approx(entry[ids[place]], abs=1e-5)
            assert 1 <= len(top) <= 4, "tokens with the same text share an entry"
            assert all(min(abs(value - other) for other in entry.values()) < 1e-5 for value in top.values())
            assert {token: value["logprob"] for token, value in shown.items()} == pytest.approx(
                {str(token_id): entry[token_id] for token_id in (ids[place], next(iter(entry)))}, abs=1e-5
            )
            ranked = sorted(entry, key=lambda token_id: -entry[token_id])
            assert shown[str(ranked[0])]["rank"] == 1
            assert shown[str(ids[place])]["rank"] == ranked.index(ids[place]) + 1 or ids[place] == ranked[-1]
        assert "".join(piece["text"] for piece in pieces[index]) == choice["text"]
        for key in ("tokens", "text_offset"):
            assert [v for piece in pieces[index] if piece["logprobs"] for v in piece["logprobs"][key]] == logprobs[key]
        [streamed] = [piece["prompt_logprobs"] for piece in pieces[index] if "prompt_logprobs" in piece]
        assert [entry and set(entry) for entry in streamed] == [e and set(e) for e in choice["prompt_logprobs"]]


def test_the_chosen_token_of_a_prompt_is_there_too(server: LiveServer) -> None:
    logprobs = complete(server, "the game", echo=True, max_tokens=0, logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"][0] is None
    for token, value, top in list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]))[1:]:
        assert top == {token: value}


def test_offsets_of_an_answer_are_those_of_its_text(server: LiveServer) -> None:
    options = {"max_tokens": 40, "ignore_eos": True, "logprobs": 1, "temperature": 2.0, "top_k": 0, "seed": 3}
    for extra in ({}, {"skip_special_tokens": False}):
        [choice] = complete(server, "the game", **options, **extra)["choices"]
        for token, span in zip(choice["logprobs"]["tokens"], spans(choice)):
            assert span in (token, "") or "\ufffd" in token + span, (token, span)
        pieces = [
            c["logprobs"] for e in stream(server, "the game", **options, **extra) for c in e["choices"] if c["logprobs"]
        ]
        assert [at for piece in pieces for at in piece["text_offset"]] == choice["logprobs"]["text_offset"]


def test_logprobs_and_offsets(server: LiveServer) -> None:
    choice = complete(server, "the game", logprobs=3)["choices"][0]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == 6 and all(len(top) <= 4 for top in logprobs["top_logprobs"])
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
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.completions.create(model=MODEL, prompt="the game", max_tokens=6, temperature=0)
        pieces = client.completions.create(model=MODEL, prompt="the game", max_tokens=6, temperature=0, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a", ""]}, "prompt[1]"), ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[10**9]]}, "prompt[0][0]"), ({"prompt": ""}, "prompt"), ({"prompt": [1, 99999]}, "prompt[1]"),
        ({"prompt": [-1, 99999]}, "prompt[0]"), ({"prompt": "a", "echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs"), ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({}, "prompt"), ({"prompt": [["a"]]}, "prompt[0][0]"), ({"prompt": ["a", 1]}, "prompt[1]"),
    ],
)  # fmt: skip
def test_prompts_that_are_refused(server: LiveServer, body: dict[str, Any], param: str | None) -> None:
    response = server.post(PATH, body)
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param, response.text
