"""The requests of a measurement as a server and an engine get them."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from seesay.bench.http_load import make_body
from seesay.bench.in_process import make_requests
from seesay.bench.workload import Request
from seesay.errors import ConfigError

TEXT = Request("hello", [], 7)
PICTURE = Request("hello", [Image.new("RGB", (4, 4))], 7)


def test_body_of_a_chat_completion() -> None:
    body = json.loads(make_body("m", PICTURE, path="/own/chat/completions", extra={"temperature": 0.5, "top_k": 3}))
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url", "text"]
    assert (body["max_tokens"], body["temperature"], body["top_k"], body["ignore_eos"]) == (7, 0.5, 3, True)


def test_body_of_a_completion() -> None:
    body = json.loads(make_body("m", TEXT, path="/v1/completions", ignores_eos=False))
    assert body["prompt"] == "hello" and body["max_tokens"] == 7 and body["stream"]
    assert "messages" not in body and "ignore_eos" not in body
    with pytest.raises(ConfigError, match="--endpoint must end with /chat/completions"):
        make_body("m", PICTURE, path="/v1/completions")


def test_sampling_of_an_engine() -> None:
    (greedy,) = make_requests([TEXT], {"temperature": 0.0})
    (drawn,) = make_requests([TEXT], {"temperature": 0.7, "top_p": 0.8, "top_k": 5})
    config = drawn.gen_config
    assert not greedy.gen_config.do_sample and config.do_sample
    assert (config.temperature, config.top_p, config.top_k) == (0.7, 0.8, 5)
    assert config.max_new_tokens == config.min_new_tokens == 7
