"""`/v1/chat/interactive`, `/generate`, `/tokenize` and `/detokenize`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from asking import messages_of
from live_server import MODEL, HeldEngine, LiveServer, make_data_url, make_settings, read_events, serve, wait_until

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.serving.errors import ApiError
from seesay.serving.stored.sessions import EMPTY, Conversation, SessionStore
from seesay.values import MediaPart, Message, Modality, OutputDelta, TextPart, Usage

CHAT = "/v1/chat/interactive"
GREEDY: dict[str, Any] = {"temperature": 0, "request_output_len": 6}
FOREVER: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "request_output_len": 400, "stream": True}


def turn(server: LiveServer, prompt: Any, session_id: int, **options: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "session_id": session_id, "interactive_mode": True, **GREEDY, **options}
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


# --- interactive -----------------------------------------------------------------------------------------------------


def test_a_session_remembers(server: LiveServer) -> None:
    first = turn(server, "one", 1)
    assert first["history_tokens"] == 0 and first["tokens"] == 6 and first["finish_reason"] == "length"
    second = turn(server, "two", 1)
    assert second["history_tokens"] == first["input_tokens"] + first["tokens"]
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "two"},
    ]
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 6}
    stateless = server.post("/v1/chat/completions", body).json()
    assert second["text"] == stateless["choices"][0]["message"]["content"]


def test_without_interactive_mode_it_forgets(server: LiveServer) -> None:
    first = turn(server, "one", 2)
    alone = turn(server, "one", 2, interactive_mode=False)
    assert alone == first
    assert turn(server, "one", 2) == first
    nothing = turn(server, "", 2, interactive_mode=False, request_output_len=0)
    assert nothing["tokens"] == 0 and nothing["finish_reason"] is None
    assert turn(server, "one", 2)["history_tokens"] == 0


def test_streamed_is_the_same(server: LiveServer) -> None:
    whole = turn(server, "one", 3)
    response = server.post(CHAT, {"prompt": "one", "session_id": 4, "interactive_mode": True, "stream": True, **GREEDY})
    events = read_events(response.text)
    assert "".join(event["text"] for event in events) == whole["text"]
    assert {**events[-1], "text": whole["text"]} == whole
    assert [event["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)


def test_pictures_are_remembered(server: LiveServer) -> None:
    plain = turn(server, "what?", 5)
    seen = turn(server, "what?", 6, image_url=[make_data_url(seed=1), make_data_url(seed=2)])
    assert seen["input_tokens"] > plain["input_tokens"]
    assert turn(server, "and?", 6)["history_tokens"] == seen["input_tokens"] + seen["tokens"]


def test_a_turn_takes_the_earlier_ones_from_the_cache(server: LiveServer) -> None:
    """All full blocks of the first prompt, whose picture is not encoded again."""
    text = "the game is in the frame, " * 5
    first = turn(server, text, 31, image_url=make_data_url(seed=131))
    before = server.state.engine.stats()
    second = turn(server, "and now?", 31)
    after = server.state.engine.stats()
    known = first["input_tokens"] + first["tokens"]
    assert first["cached_tokens"] < first["input_tokens"] // 2
    assert first["input_tokens"] - 16 < second["cached_tokens"] <= known
    num_prompt = second["history_tokens"] + second["input_tokens"]
    num_steps = after.total_step_tokens - before.total_step_tokens
    assert num_steps <= num_prompt - second["cached_tokens"] + second["tokens"] + 1
    assert after.total_encoder_items == before.total_encoder_items


def test_messages_as_prompt(server: LiveServer) -> None:
    parts = [{"type": "image_url", "image_url": {"url": make_data_url()}}, {"type": "text", "text": "what?"}]
    one, other = (
        turn(server, [{"role": "user", "content": parts}], 7),
        turn(server, "what?", 8, image_url=make_data_url()),
    )
    assert {**one, "cached_tokens": None} == {**other, "cached_tokens": None}


def test_cancel_keeps_what_was_said(server: LiveServer) -> None:
    body = {"prompt": "go", "session_id": 9, "interactive_mode": True, **FOREVER}
    events: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(line for line in lines if line and read_events(f"{line}\n\n")[0]["text"])  # before, nothing was said
        assert server.post(CHAT, {"prompt": "x", "session_id": 9, "interactive_mode": True}).status_code == 409
        server.post(CHAT, {"prompt": "", "session_id": 9, "cancel": True})
        events = read_events("\n".join(lines).lstrip("\n") + "\n")
    assert events[-1]["finish_reason"] in ("cancel", "length")
    following = turn(server, "more", 9)
    assert following["history_tokens"] > 0
    wait_until(lambda: server.state.answering.num_running == 0)


def test_tokens_without_a_text_are_no_part_of_the_next_prompt(server: LiveServer) -> None:
    """With `ignore_eos` special tokens are generated, which the text that the session holds has not."""
    alone = turn(server, "one", 11)["input_tokens"]
    end = server.state.engine.tokenizer.token_id("<|im_end|>")
    options = {"ignore_eos": True, "logit_bias": {str(end): 100}, "request_output_len": 200}
    first = turn(server, "one", 12, **options)
    assert (first["text"], first["tokens"], first["input_tokens"]) == ("", 200, alone)
    second = turn(server, "one", 12)
    assert second["history_tokens"] == alone + 200
    messages = [{"role": role, "content": text} for role, text in (("user", "one"), ("assistant", ""), ("user", "one"))]
    prompt_tokens = server.post("/tokenize", {"messages": messages, "add_generation_prompt": True}).json()["count"]
    assert second["input_tokens"] == prompt_tokens - alone - 1  # one ended the first answer


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_cancelled_turn_counts_its_prompt(engine: AsyncEngine, is_streamed: bool) -> None:
    held = HeldEngine(engine)
    transport = httpx.ASGITransport(app=create_app(held, make_settings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as http:
        body = {"prompt": "one", "session_id": 1, "interactive_mode": True, "stream": is_streamed}
        answer = asyncio.ensure_future(http.post(CHAT, json=body))
        while held.submitted.empty():
            await asyncio.sleep(0.01)
        request_id, request, on_output = held.submitted.get()
        assert request.streams
        on_output(OutputDelta(request_id=request_id, prompt_tokens=30, text="well", token_ids=(1, 2)))
        await asyncio.sleep(0.05)
        await http.post(CHAT, json={"prompt": "", "session_id": 1, "cancel": True})
        last = read_events((await answer).text)[-1] if is_streamed else (await answer).json()
        assert (last["input_tokens"], last["tokens"], last["finish_reason"]) == (30, 2, "cancel")
        following = asyncio.ensure_future(http.post(CHAT, json={**body, "stream": False}))
        while held.submitted.empty():
            await asyncio.sleep(0.01)
        request_id, request, on_output = held.submitted.get()
        assert [message.role for message in messages_of(request)] == ["user", "assistant", "user"]
        usage = Usage(prompt_tokens=40, completion_tokens=1)
        on_output(
            OutputDelta(request_id=request_id, prompt_tokens=40, token_ids=(3,), finish_reason="stop", usage=usage)
        )
        turn = (await following).json()
        assert (turn["history_tokens"], turn["input_tokens"]) == (32, 8)


def test_a_client_that_leaves_leaves_nothing(server: LiveServer) -> None:
    body = {"prompt": "go", "session_id": 10, "interactive_mode": True, **FOREVER}
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=60) as response:
        next(response.iter_raw())
    wait_until(lambda: server.state.answering.num_running == 0)
    assert turn(server, "one", 10)["history_tokens"] == 0


def test_sessions_belong_to_a_key(engine: AsyncEngine) -> None:
    with serve(engine, make_settings(api_keys=("a", "b"))) as server:
        headers = [{"authorization": f"Bearer {key}"} for key in "ab"]
        body = {"prompt": "one", "session_id": 1, "interactive_mode": True, **GREEDY}
        for header in headers:
            answer = server.post(CHAT, body, headers=header).json()
            assert answer["history_tokens"] == 0
        assert server.post(CHAT, body, headers=headers[0]).json()["history_tokens"] > 0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": "/etc/passwd"}]}]}, "prompt"),
        ({"session_id": -1}, "session_id"),
        ({"session_id": -1, "interactive_mode": False, "cancel": True}, "session_id"),
        ({"session_id": "x"}, "session_id"),
        ({"request_output_len": 0}, "request_output_len"),
        ({"adapter_name": "x"}, "adapter_name"),
        ({"n": 2}, "n"),
        ({"image_url": "ftp://x/y.png"}, "image_url"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"prompt": [{"role": "user", "content": "x"}], "image_url": "http://x/"}, "image_url"),
    ],
)  # fmt: skip
async def test_bad_interactive_requests(http: httpx.AsyncClient, change: dict[str, Any], name: str) -> None:
    response = await http.post(
        CHAT, json={"prompt": "x", "session_id": 1, "interactive_mode": True, **GREEDY, **change}
    )
    assert response.status_code == 400, response.text
    assert name in response.json()["error"]["param"]


# --- the store -------------------------------------------------------------------------------------------------------


def say(text: str) -> tuple[Message, ...]:
    return (Message(role="user", parts=(TextPart(text=text),)),)


def answer(store: SessionStore, number: int, turn: Sequence[Message]) -> Conversation:
    """One turn of a session. Returns what was stored before it."""
    session = store.begin((b"", number), lambda: None)
    before = session.conversation
    store.end(session, before.extended(turn, num_tokens=1, num_prompt_tokens=1))
    return before


def test_the_number_of_sessions_is_bounded() -> None:
    store = SessionStore(max_sessions=3)
    for number in range(5):
        answer(store, number, say("x"))
    assert len(store) == 3
    assert answer(store, 2, say("x")).messages  # 2 was kept, and is the newest now
    answer(store, 5, say("x"))
    assert not answer(store, 3, say("x")).messages


def test_the_bytes_of_sessions_are_bounded() -> None:
    store = SessionStore(max_bytes=10_000)
    picture = Message(role="user", parts=(MediaPart(modality=Modality.IMAGE, source="data:" + "x" * 4000),))
    for number in range(4):
        answer(store, number, [picture])
    assert len(store) == 2 and store.num_bytes < 10_000
    conversation = answer(store, 3, [picture])
    conversation.check_size([picture], max_bytes=10_000)
    with pytest.raises(ApiError, match="10000 bytes"):
        conversation.extended([picture], num_tokens=1, num_prompt_tokens=1).check_size([picture], max_bytes=10_000)


def test_running_sessions_are_not_dropped() -> None:
    store = SessionStore(max_sessions=1)
    session = store.begin((b"", 1), lambda: None)
    with pytest.raises(ApiError) as caught:
        store.begin((b"", 2), lambda: None)
    assert caught.value.status_code == 503
    with pytest.raises(ApiError) as caught:
        store.begin((b"", 1), lambda: None)
    assert caught.value.status_code == 409
    store.end(session, EMPTY.extended(say("x"), num_tokens=1, num_prompt_tokens=1))
    assert len(store) == 1


def test_an_unanswered_session_is_not_kept() -> None:
    store = SessionStore()
    store.end(store.begin((b"", 1), lambda: None))
    assert len(store) == 0


def test_a_session_that_was_forgotten_stays_so() -> None:
    """Its turn was running: what it stores does not replace that of the next turn."""
    store, cancelled = SessionStore(), list[int]()
    old = store.begin((b"", 1), lambda: cancelled.append(1))
    store.forget((b"", 1))
    assert cancelled == [1]
    answer(store, 1, say("new"))
    store.end(old, EMPTY.extended(say("old"), num_tokens=1, num_prompt_tokens=1))
    assert answer(store, 1, say("x")).messages == say("new")


# --- /generate -------------------------------------------------------------------------------------------------------


def generate(server: LiveServer, **body: Any) -> dict[str, Any]:
    response = server.post("/generate", {"temperature": 0, "max_tokens": 6, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_generate_from_text_and_ids(server: LiveServer) -> None:
    ids = server.post("/tokenize", {"prompt": "the game"}).json()["tokens"]
    by_text, by_ids = generate(server, prompt="the game"), generate(server, input_ids=ids)
    assert by_text["text"] == by_ids["text"] and by_text["output_ids"] == by_ids["output_ids"]
    assert by_ids["meta_info"]["prompt_tokens"] == len(ids)
    assert by_text["meta_info"]["finish_reason"] == {"type": "length"}
    assert len(by_text["output_ids"]) == by_text["meta_info"]["completion_tokens"] == 6


def test_generate_streams_what_is_new(server: LiveServer) -> None:
    whole = generate(server, prompt="the game", return_logprob=True)
    response = server.post(
        "/generate", {"temperature": 0, "max_tokens": 6, "prompt": "the game", "return_logprob": True, "stream": True}
    )
    events = read_events(response.text)
    assert "".join(event["text"] for event in events) == whole["text"]
    assert [i for event in events for i in event["output_ids"]] == whole["output_ids"]
    logprobs = [pair for event in events for pair in event["meta_info"]["output_token_logprobs"]]
    assert [token_id for _, token_id in logprobs] == whole["output_ids"]
    assert [value for value, _ in logprobs] == pytest.approx(
        [value for value, _ in whole["meta_info"]["output_token_logprobs"]], abs=1e-4
    )


def test_generate_scores_prompts_with_alternatives(server: LiveServer) -> None:
    """Whole and streamed: null at the first token and at those of the picture."""
    given = {"prompt": "see <IMAGE_TOKEN> in the frame", "image_data": make_data_url(), "return_logprob": True}
    options = {**given, "top_logprobs_num": 2, "logprob_start_len": 0}
    whole = generate(server, **options)["meta_info"]
    own, top = whole["input_token_logprobs"], whole["input_top_logprobs"]
    assert len(own) == len(top) == whole["prompt_tokens"] and own[0] is top[0] is None
    assert 1 < own.count(None) == top.count(None) < len(own)
    for pair, entry in zip(filter(None, own), filter(None, top)):
        assert pair[0] <= entry[0][0] <= 0 and len(entry) == 2 and entry[0][0] >= entry[1][0]
    for (value, token_id), entry in zip(whole["output_token_logprobs"], whole["output_top_logprobs"], strict=True):
        assert entry[0] == [value, token_id], "greedy answers have the most likely tokens"
    body = {"temperature": 0, "max_tokens": 6, **options, "logprob_start_len": 3, "stream": True}
    events = read_events(server.post("/generate", body).text)
    [streamed] = [event["meta_info"] for event in events if "input_token_logprobs" in event["meta_info"]]
    assert [pair and pair[1] for pair in streamed["input_token_logprobs"]] == [pair and pair[1] for pair in own[3:]]
    assert "input_token_logprobs" not in generate(server, **given)["meta_info"]


def test_generate_with_a_picture(server: LiveServer) -> None:
    with_picture = generate(server, prompt="see <IMAGE_TOKEN> ?", image_data=make_data_url())
    assert with_picture["meta_info"]["prompt_tokens"] > generate(server, prompt="see ?")["meta_info"]["prompt_tokens"]


def test_generate_with_a_picture_among_token_ids(server: LiveServer) -> None:
    """It takes the place of one token; the answer is that to the same prompt as a text."""
    before, after = (
        server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
        for text in ("the", "game")
    )
    whole = generate(server, prompt="the<IMAGE_TOKEN>game", image_data=make_data_url())
    placed = generate(
        server, input_ids=[*before, 0, *after], image_data=[make_data_url()], image_positions=[len(before)]
    )
    assert placed["output_ids"] == whole["output_ids"]
    assert placed["meta_info"]["prompt_tokens"] == whole["meta_info"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "top_logprobs_num": 2}, "top_logprobs_num"),
        ({"prompt": "x", "logprob_start_len": 0}, "logprob_start_len"),
        ({"prompt": "x", "input_ids": [1]}, "prompt"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [10**8]}, "input_ids"),
        ({"input_ids": [1], "image_data": "http://x/"}, "image_positions"),
        ({"input_ids": [1], "image_positions": [0]}, "image_positions"),
        ({"prompt": "x", "image_data": "http://x/", "image_positions": [0]}, "image_positions"),
        ({"input_ids": [1], "image_data": make_data_url(), "image_positions": [1]}, "input_ids"),
        ({"input_ids": [1] * 3, "image_data": [make_data_url()] * 2, "image_positions": [1, 1]}, "input_ids"),
        ({"prompt": "x", "image_data": "/etc/passwd"}, "image_data"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "n": 2}, "n"),
    ],
)
async def test_bad_generate_requests(http: httpx.AsyncClient, body: dict[str, Any], name: str) -> None:
    response = await http.post("/generate", json=body)
    assert response.status_code == 400, response.text
    assert name in response.json()["error"]["param"]


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_tokens_there_and_back(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    text = "the game — déjà vu 游戏"
    answer = (await http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert answer["tokens"] == engine.tokenizer.encode(text, add_special_tokens=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 512
    back = (await http.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert back == {"prompt": text}


async def test_conversations_are_tokenized_as_they_are_answered(server: LiveServer) -> None:
    parts = [{"type": "image_url", "image_url": {"url": make_data_url()}}, {"type": "text", "text": "what?"}]
    messages = [{"role": "user", "content": parts}]
    count = server.post("/tokenize", {"messages": messages}).json()["count"]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1}
    assert server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"] == count
    shorter = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["count"]
    assert shorter < count


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": [{"role": "user"}], "add_special_tokens": True}, "add_special_tokens"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs.messages",
        ),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1, 10**6]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)  # fmt: skip
async def test_bad_token_requests(http: httpx.AsyncClient, path: str, body: dict[str, Any], name: str) -> None:
    response = await http.post(path, json=body)
    assert response.status_code == 400, response.text
    assert name in response.json()["error"]["param"]


def test_many_sessions_at_once(server: LiveServer) -> None:
    """Answers of sessions do not mix: each continues its own first turn."""
    firsts = {i: turn(server, f"number {i}", 100 + i) for i in range(4)}
    seconds: dict[int, dict[str, Any]] = {}

    def go(i: int) -> None:
        seconds[i] = turn(server, "again", 100 + i)

    threads = [threading.Thread(target=go, args=(i,)) for i in firsts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for i, first in firsts.items():
        assert seconds[i]["history_tokens"] == first["input_tokens"] + first["tokens"]
