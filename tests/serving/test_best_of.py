"""`best_of` of text completions: the best of several answers, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
from live_server import MODEL, LiveServer

PATH = "/v1/completions"
OPTIONS: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "seed": 9, "temperature": 1.8, "ignore_eos": True}
PROMPTS = ["the game", "in a frame"]


def post(server: LiveServer, **fields: Any) -> dict[str, Any]:
    response = server.post(PATH, {**OPTIONS, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("logprobs", [None, 2])
def test_the_best_of_several_answers_are_returned(server: LiveServer, logprobs: int | None) -> None:
    alone = []
    for prompt in PROMPTS:
        answers = [post(server, prompt=prompt, seed=9 + i, logprobs=0) for i in range(4)]
        choices = [answer["choices"][0] for answer in answers]
        choices.sort(key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
        alone += [choice["text"] for choice in choices[:2]]
        num_prompt = answers[0]["usage"]["prompt_tokens"]
    found = post(server, prompt=PROMPTS, n=2, best_of=4, logprobs=logprobs)
    assert [choice["text"] for choice in found["choices"]] == alone
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert all((choice["logprobs"] is None) == (logprobs is None) for choice in found["choices"])
    usage = found["usage"]
    assert usage["completion_tokens"] == 2 * 4 * 5, "all that were generated count"
    one = post(server, prompt=PROMPTS[1])["usage"]
    assert one["prompt_tokens"] == num_prompt
    assert usage["prompt_tokens"] == num_prompt + post(server, prompt=PROMPTS[0])["usage"]["prompt_tokens"]


def test_an_echo_has_the_scores_of_the_prompt_once_computed(server: LiveServer) -> None:
    one = post(server, prompt=PROMPTS[0], echo=True, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
    found = post(server, prompt=PROMPTS[0], echo=True, logprobs=0, n=2, best_of=3)
    num_echoed = len(one) - 5
    for choice in found["choices"]:
        assert choice["logprobs"]["token_logprobs"][:num_echoed] == pytest.approx(
            one[:num_echoed], nan_ok=True, abs=1e-4
        )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 3, "best_of": 2}, "best_of must be at least n=3, got 2"),
        ({"best_of": 2, "stream": True}, "best_of above n cannot be combined with stream"),
        ({"best_of": 129}, "at most 128 are allowed"),
    ],
)
def test_what_cannot_be_is_refused(server: LiveServer, fields: dict[str, Any], words: str) -> None:
    response = server.post(PATH, {**OPTIONS, "prompt": "a", **fields})
    assert response.status_code == 400 and words in response.json()["error"]["message"]


def test_the_same_number_may_be_streamed(server: LiveServer) -> None:
    response = server.post(PATH, {**OPTIONS, "prompt": "a", "n": 2, "best_of": 2, "stream": True})
    assert response.status_code == 200 and response.text.endswith("data: [DONE]\n\n")
