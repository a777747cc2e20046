"""`/v1/chat/completions` over a live server, with OpenAI's own client and byte by byte."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import openai_schemas as schemas
import pytest
from live_server import MODEL, LiveServer, ask_about, make_data_url, make_settings, read_events

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app

PATH = "/v1/chat/completions"
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(server: LiveServer, messages: Any = "the game", **options: Any) -> dict[str, Any]:
    """The answer to a chat, checked against the schema."""
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    response = server.post(PATH, {"model": MODEL, "messages": messages, **GREEDY, **options})
    assert response.status_code == 200, response.text
    schemas.check(response.json(), schemas.CHAT_COMPLETION)
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: LiveServer, messages: Any = "the game", **options: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer, each checked against the schema."""
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    response = server.post(PATH, {"model": MODEL, "messages": messages, "stream": True, **GREEDY, **options})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text.endswith("\n\ndata: [DONE]\n\n")
    events = read_events(response.text)
    for event in events:
        schemas.check(event, schemas.CHAT_CHUNK)
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    return events


def join(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def text_of(completion: dict[str, Any], index: int = 0) -> str:
    return str(completion["choices"][index]["message"]["content"])


# --- the official client --------------------------------------------------------------------------------------------


def test_client_sync_and_streaming_give_the_same_answer(client: openai.OpenAI) -> None:
    messages: Any = ask_about(make_data_url(), "what is in the frame?")
    whole = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_completion_tokens=12)
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage is not None and whole.usage.completion_tokens == 12
    pieces = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content != ""


async def test_async_client_asks_many_at_once(server: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def one(i: int) -> str:
            pieces = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"game {i % 2}"}],
                stream=True,
                temperature=0,
                max_tokens=8,
            )
            return "".join([piece.choices[0].delta.content or "" async for piece in pieces])

        texts = await asyncio.gather(*(one(i) for i in range(8)))
    assert len(set(texts[::2])) == len(set(texts[1::2])) == 1


async def test_client_over_asgi(engine: AsyncEngine) -> None:
    httpx2: Any = importlib.import_module("httpx2" if "httpx2" in sys.modules else "httpx")  # whichever openai uses
    transport = httpx2.ASGITransport(app=create_app(engine, make_settings()))
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http) as client,
    ):
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=3
        )
        assert answer.usage is not None and answer.usage.completion_tokens <= 3
        assert [model.id async for model in client.models.list()] == [MODEL]


def test_client_raises_what_was_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[], max_tokens=3)
    assert caught.value.param == "messages"
    assert caught.value.request_id is not None and caught.value.request_id.startswith("req_")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "hi"}])
    assert missing.value.code == "model_not_found" and MODEL in str(missing.value)


# --- streams, byte by byte ------------------------------------------------------------------------------------------


def test_stream_has_role_once_text_and_one_finish_reason(server: LiveServer) -> None:
    events = stream(server)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert not any("role" in delta for delta in deltas[1:])
    assert deltas[-1] == {}
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["length"]
    assert not any("usage" in event for event in events)
    assert join(events) == text_of(ask(server))


def test_stream_gives_usage_when_asked(server: LiveServer) -> None:
    events = stream(server, stream_options={"include_usage": True})
    assert events[-1]["choices"] == []
    schemas.check(events[-1]["usage"], schemas.USAGE)
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["usage"]["completion_tokens"] == GREEDY["max_tokens"]


def test_stream_of_several_choices_keeps_them_apart(server: LiveServer) -> None:
    options = {"n": 3, "temperature": 1.0, "seed": 7}
    whole = ask(server, **options)
    events = stream(server, **options)
    for index in range(3):
        mine = [choice for event in events for choice in event["choices"] if choice["index"] == index]
        assert join(events, index) == text_of(whole, index)
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert sum(choice["finish_reason"] is not None for choice in mine) == 1
    assert len({text_of(whole, index) for index in range(3)}) > 1


def test_streamed_logprobs_and_ids_are_those_of_the_whole(server: LiveServer) -> None:
    options = {"logprobs": True, "top_logprobs": 3, "return_token_ids": True}
    whole = ask(server, **options)["choices"][0]
    events = stream(server, **options)
    entries = [e for event in events for c in event["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
    assert [e["token"] for e in entries] == [e["token"] for e in whole["logprobs"]["content"]]
    ids = [i for event in events for c in event["choices"] for i in c.get("token_ids", ())]
    assert ids == whole["token_ids"] and len(ids) == len(entries)


# --- what the fields do ---------------------------------------------------------------------------------------------


def test_seeds_of_choices_follow_the_first(server: LiveServer) -> None:
    several = ask(server, n=3, temperature=1, seed=11)
    for index in range(3):
        assert text_of(ask(server, temperature=1, seed=11 + index)) == text_of(several, index)
    usage = several["usage"]
    assert usage["prompt_tokens"] == ask(server)["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == 3 * GREEDY["max_tokens"]


def test_choices_share_the_prompt(server: LiveServer, engine: AsyncEngine) -> None:
    messages = ask_about(make_data_url(seed=31, size=(90, 80)), "the game is in the frame, " * 8)
    before = engine.stats()
    ask(server, messages, n=4)
    after = engine.stats()
    assert after.total_encoder_items - before.total_encoder_items == 1
    num_looked_up = after.total_prefix_queried_tokens - before.total_prefix_queried_tokens
    num_found = after.total_prefix_hit_tokens - before.total_prefix_hit_tokens
    assert num_found > 0.6 * num_looked_up


def test_stop_strings_of_any_length_are_never_shown(server: LiveServer) -> None:
    text = text_of(ask(server, max_tokens=30))
    assert len(text) > 12
    stop = text[6:11]
    at = text.index(stop)
    stopped = ask(server, max_tokens=30, stop=["never seen in it", stop])
    assert text_of(stopped) == text[:at] and stopped["choices"][0]["finish_reason"] == "stop"
    assert join(stream(server, max_tokens=30, stop=stop)) == text[:at]
    shown = ask(server, max_tokens=30, stop=stop, include_stop_str_in_output=True)
    assert text_of(shown) == text[: at + len(stop)]


def test_logprobs_hold_the_chosen_token_and_the_best(server: LiveServer) -> None:
    content = ask(server, logprobs=True, top_logprobs=4)["choices"][0]["logprobs"]["content"]
    assert len(content) == GREEDY["max_tokens"]
    for entry in content:
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True) and len(values) == 4
        assert entry["logprob"] == values[0]  # greedy
    plain = ask(server, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in plain)
    spelled = b"".join(bytes(entry["bytes"]) for entry in plain).decode(errors="replace")
    assert spelled == text_of(ask(server, skip_special_tokens=False))


def test_logit_bias_and_penalties_change_the_answer(server: LiveServer, engine: AsyncEngine) -> None:
    wanted = engine.tokenizer.encode("game")[0]
    answer = ask(server, logit_bias={str(wanted): 100}, return_token_ids=True, max_tokens=4)
    assert answer["choices"][0]["token_ids"] == [wanted] * 4
    varied = ask(server, presence_penalty=2, frequency_penalty=2, return_token_ids=True)["choices"][0]["token_ids"]
    assert len(set(varied)) >= len(set(ask(server, return_token_ids=True)["choices"][0]["token_ids"]))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-300},
        {"top_k": 1, "temperature": 1},
        {"top_p": 1e-6, "temperature": 1},
        {"min_p": 1.0, "temperature": 2},
    ],
)
def test_filters_that_leave_one_token_are_greedy(server: LiveServer, options: dict[str, Any]) -> None:
    assert text_of(ask(server, **options)) == text_of(ask(server))


def test_repetition_penalty_and_lengths(server: LiveServer) -> None:
    assert text_of(ask(server, repetition_penalty=5.0)) != text_of(ask(server))
    eos = ask(server, return_token_ids=True)["choices"][0]["token_ids"][1]
    short = ask(server, stop_token_ids=[eos])
    assert short["choices"][0]["finish_reason"] == "stop" and short["usage"]["completion_tokens"] <= 1
    longer = ask(server, stop_token_ids=[eos], min_new_tokens=3)
    assert longer["usage"]["completion_tokens"] >= 3
    assert ask(server, max_completion_tokens=2, max_tokens=2)["usage"]["completion_tokens"] == 2


def test_default_length_is_what_fits(server: LiveServer, engine: AsyncEngine) -> None:
    answer = ask(server, max_tokens=None, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == engine.session_len
    assert answer["choices"][0]["finish_reason"] == "length"


def test_last_message_may_begin_the_answer(server: LiveServer) -> None:
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one, two,"}]
    whole = ask(server, messages)
    begun = ask(server, messages, continue_final_message=True)
    assert begun["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"]
    bare = ask(server, messages, add_generation_prompt=False)
    assert bare["usage"]["prompt_tokens"] < whole["usage"]["prompt_tokens"]


def test_accepted_fields_without_effect(server: LiveServer) -> None:
    plain = text_of(ask(server))
    options: dict[str, Any] = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "tool_choice": "none",
        "tools": [], "prompt_cache_key": "k", "safety_identifier": "s", "prompt_cache_retention": "24h",
        "response_format": {"type": "text"}, "modalities": ["text"], "parallel_tool_calls": True, "functions": None,
    }  # fmt: skip
    assert text_of(ask(server, **options)) == plain


# --- pictures -------------------------------------------------------------------------------------------------------


def test_pictures_stand_anywhere_in_any_turn(server: LiveServer) -> None:
    url, other = make_data_url(seed=1), make_data_url(seed=2, size=(60, 30))
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    conversations = [
        ask_about("before ", url, " between ", other, " after"),
        [*ask_about(url, "what?"), {"role": "assistant", "content": "a game"}, {"role": "user", "content": "and?"}],
        [
            {"role": "system", "content": "be brief"},
            *ask_about("look"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": ask_about("seen: ", url)[0]["content"]},
        ],
    ]
    for messages in conversations:
        assert ask(server, messages)["usage"]["prompt_tokens_details"]["vision_tokens"] > 0


def test_pictures_have_options(server: LiveServer) -> None:
    url = make_data_url(size=(400, 300))

    def vision_tokens(**options: Any) -> int:
        content = [{"type": "image_url", "image_url": {"url": url, **options}}]
        usage = ask(server, [{"role": "user", "content": content}])["usage"]
        return int(usage["prompt_tokens_details"]["vision_tokens"])

    assert vision_tokens(max_pixels=4000) < vision_tokens(detail="high") == vision_tokens()
    assert vision_tokens(detail="low") <= vision_tokens() == vision_tokens(transparency="drop")


def test_equal_prompts_come_from_the_prefix_cache(server: LiveServer) -> None:
    messages = ask_about(make_data_url(seed=5), "the game is in the frame, " * 5)
    first, second = ask(server, messages), ask(server, messages)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert text_of(first) == text_of(second)


def test_timings_when_asked_by_header(server: LiveServer) -> None:
    body = {"messages": ask_about(make_data_url(seed=9), "?"), "max_tokens": 3}
    headers = {"x-seesay-timings": "1"}
    details = server.post(PATH, body, headers=headers).json()["seesay"]
    assert details["timings"]["total_s"] > details["timings"]["encode_s"] > 0
    [seen] = details["media"]
    assert seen["modality"] == "image" and (seen["height"], seen["width"]) == (30, 40) and not seen["is_cached"]
    assert seen["num_tokens"] > 0 and seen["num_patches"] > 0 and seen["timestamps_s"] == []
    assert "seesay" not in server.post(PATH, body).json()
    events = read_events(server.post(PATH, {**body, "stream": True}, headers=headers).text)
    assert [("seesay" in event) for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["seesay"]["media"] == [{**seen, "is_cached": True}]


def test_text_is_ascii_on_the_wire_and_whole_for_readers(server: LiveServer) -> None:
    response = server.post(
        PATH,
        {
            "messages": [{"role": "user", "content": "naïve 日本 \u2028"}],
            "stream": True,
            "temperature": 1.5,
            "max_tokens": 40,
            "ignore_eos": True,
        },
    )
    assert response.content.isascii()
    joined = join(read_events(response.text))
    assert joined.encode("utf-8")
    assert json.dumps(joined)


def test_reply_ids(server: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    given = server.post(PATH, body, headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    odd = server.post(PATH, body, headers={"x-request-id": "a b\tc"})
    assert odd.headers["x-request-id"].startswith("req_")
    assert isinstance(given, httpx.Response)
