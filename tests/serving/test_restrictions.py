"""Words and repetitions that a request forbids, and log-probabilities of prompts, on every route that takes them."""

from __future__ import annotations

from typing import Any

import pytest
from live_server import LiveServer, make_data_url, read_events

CHAT = {"messages": [{"role": "user", "content": "go"}]}
RAW = {"prompt": "go"}
DRAWN = {"temperature": 1.5, "top_k": 0, "seed": 4, "ignore_eos": True}
ROUTES = [
    ("/v1/chat/completions", {**CHAT, "max_tokens": 20}, lambda a: a["choices"][0]["message"]["content"]),
    ("/v1/completions", {**RAW, "max_tokens": 20}, lambda a: a["choices"][0]["text"]),
    ("/generate", {**RAW, "max_tokens": 20}, lambda a: a["text"]),
    ("/v1/chat/interactive", {**RAW, "request_output_len": 20}, lambda a: a["text"]),
]


@pytest.mark.parametrize(("path", "body", "text_of"), ROUTES, ids=[path for path, *_ in ROUTES])
def test_every_route_takes_them(server: LiveServer, path: str, body: dict[str, Any], text_of: Any) -> None:
    def ask(**options: Any) -> Any:
        response = server.post(path, {**body, **DRAWN, **options})
        assert response.status_code == 200, response.text
        return response.json()

    free = text_of(ask())
    words = [run[:2] for run in free.split("\ufffd") if run]
    clean = text_of(ask(bad_words=words))
    assert words and clean != free and not any(word in clean for word in words)
    loud = {"logit_bias": {"7": 100}}
    assert text_of(ask(**loud, no_repeat_ngram_size=1)) != text_of(ask(**loud))
    short = text_of(ask(**loud, repetition_ngram_size=1, repetition_ngram_threshold=3))
    assert 0 < len(short) < len(text_of(ask(**loud)))
    assert text_of(ask(**loud, no_repeat_ngram_size=2, whitelist_token_ids=[7])) == text_of(ask(**loud))
    assert text_of(ask(**loud, no_repeat_ngram_size=2, ngram_window=3)) != text_of(ask(**loud, no_repeat_ngram_size=2))
    one = text_of(ask(allowed_token_ids=[70]))
    assert one and one == one[:1] * 20
    wrong: dict[str, Any]
    for wrong in (
        {"allowed_token_ids": []}, {"allowed_token_ids": [1 << 30]}, {"bad_words": [""]},
        {"bad_words": ["a"] * 257}, {"bad_words": ["a" * 4097]}, {"bad_words": "a"},
        {"no_repeat_ngram_size": -1}, {"ngram_window": -1}, {"whitelist_token_ids": [1 << 30]},
        {"repetition_ngram_size": 1.5}, {"repetition_ngram_threshold": -1},
    ):  # fmt: skip
        response = server.post(path, {**body, **wrong})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(next(iter(wrong))), response.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_answer_that_repetition_ended_says_so(server: LiveServer, path: str) -> None:
    body = {**(CHAT if "chat" in path else RAW), **DRAWN, "max_tokens": 20, "logit_bias": {"7": 100}}
    guard = {"repetition_ngram_size": 1, "repetition_ngram_threshold": 3}
    [choice] = server.post(path, {**body, **guard}).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "repetition")
    [choice] = server.post(path, body).json()["choices"]
    assert choice["finish_reason"] == "length" and "stop_reason" not in choice
    streamed = server.post(path, {**body, **guard, "stream": True}).text
    last = [event["choices"][0] for event in read_events(streamed) if event.get("choices")][-1]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "repetition")


def test_prompt_logprobs_of_a_chat_with_a_picture(server: LiveServer) -> None:
    """Whole and streamed, with several answers; null at the first token and at those of the picture."""
    content = [{"type": "image_url", "image_url": {"url": make_data_url()}}, {"type": "text", "text": "what is this?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3, "temperature": 0, "n": 2}
    answer = server.post("/v1/chat/completions", {**body, "prompt_logprobs": 2}).json()
    usage, entries = answer["usage"], answer["prompt_logprobs"]
    assert len(entries) == usage["prompt_tokens"]
    assert entries.count(None) == 1 + usage["prompt_tokens_details"]["vision_tokens"] > 1
    for entry in filter(None, entries):
        assert 2 <= len(entry) <= 3 and all(value["logprob"] <= 0 for value in entry.values())
        ranks = sorted(value["rank"] for value in entry.values())
        assert ranks[:2] == [1, 2]
    events = read_events(server.post("/v1/chat/completions", {**body, "prompt_logprobs": 2, "stream": True}).text)
    [streamed] = [event["prompt_logprobs"] for event in events if "prompt_logprobs" in event]
    assert [entry and sorted(entry) for entry in streamed] == [entry and sorted(entry) for entry in entries]
    assert all(event["choices"] for event in events)
    plain = server.post("/v1/chat/completions", body).json()
    assert "prompt_logprobs" not in plain
    response = server.post("/v1/chat/completions", {**body, "prompt_logprobs": 21})
    assert response.status_code == 400 and response.json()["error"]["param"] == "prompt_logprobs"
