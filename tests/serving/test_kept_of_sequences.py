"""Models whose layers keep states, or attend to latent rows, over HTTP: streams of two frontends beside each other, of
which some are left, with and without pictures, and turns behind them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from enrolment import WITH_PICTURES
from live_server import make_data_url, wait_until
from serving.test_frontends import CHAT, Server, running

OPTIONS = ["--cache-block-seq-len", "16", "--num-gpu-blocks", "30", "--num-cpu-blocks", "400", "--max-batch-size", "3"]
"""Few blocks and slots, so that requests wait, and find much in host memory."""
LONG = "the game is in the frame of the inn, " * 4


def ask(server: Server, messages: list[dict[str, Any]], num_left: int | None = None) -> tuple[str, int]:
    """Return the text of a streamed answer and the tokens that were cached; leave it behind `num_left` tokens."""
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    body = {"model": "tiny", "messages": messages, "stream": True, **options}
    pieces: list[str] = []
    cached = num_pieces = 0
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
            num_pieces += len(event["choices"])
            if num_left is not None and num_pieces > num_left:
                break
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    return "".join(pieces), cached


def ask_alone(server: Server, messages: list[dict[str, Any]], salt: str) -> str:
    """The answer that nothing is cached for."""
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    response = server.post(CHAT, messages=messages, cache_salt=salt, **options)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    assert not response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return text


def make_prompts(name: str) -> list[list[dict[str, Any]]]:
    texts = [LONG + "one", LONG + "two", "see", LONG[:50]]
    prompts: list[Any] = [[{"type": "text", "text": text}] for text in texts]
    if name in WITH_PICTURES:
        pictures = [
            {"type": "image_url", "image_url": {"url": make_data_url(seed=seed, size=(33 + 9 * seed, 40))}}
            for seed in range(3)
        ]
        prompts += [[*pictures[:1], *prompts[2]], [*prompts[3], *pictures], [*prompts[0], *pictures[1:]]]
    return [[{"role": "user", "content": content}] for content in prompts]


@pytest.mark.parametrize("name", ["granite4", "deepseek_vl2", pytest.param("qwen3_5", marks=pytest.mark.slow)])
def test_streams_of_two_frontends(
    name: str, tiny_checkpoint: Callable[[str], Path], unused_tcp_port_factory: Callable[[], int], tmp_path: Path
) -> None:
    prompts = make_prompts(name)
    with running(str(tiny_checkpoint(name)), unused_tcp_port_factory(), tmp_path, *OPTIONS) as server:
        expected = [ask_alone(server, prompt, f"alone {index}") for index, prompt in enumerate(prompts)]
        asked = [(index, left) for index in range(len(prompts)) for left in (None, 1, None, 6, None)]
        with ThreadPoolExecutor(12) as threads:
            found = list(threads.map(lambda each: ask(server, prompts[each[0]], each[1]), asked))
        for (index, left), (text, _) in zip(asked, found, strict=True):
            assert expected[index].startswith(text) if left is not None else text == expected[index]
        assert sum(cached for _, cached in found) > 0
        for index, prompt in enumerate(prompts[:2]):
            turn = [
                *prompt, {"role": "assistant", "content": expected[index]},
                {"role": "user", "content": [{"type": "text", "text": "and in the game?"}]},
            ]  # fmt: skip
            text, cached = ask(server, turn)
            assert text == ask_alone(server, turn, f"turn {index}") and cached > 0
        wait_until(lambda: not server.metrics()["seesay_kv_blocks_used"])
