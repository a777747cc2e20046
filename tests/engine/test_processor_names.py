"""Logits processors by name: the same in both process forms, only those that the engine's owner allows, and a failing
one ends its own request with its own words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import ask, make_message, make_picture, parse
from live_server import make_settings, serve

from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError, ErrorCode, RequestError

MODULE = """
import torch
OPTION = 7

def only_even(token_ids, logits):
    logits[1::2] = -torch.inf
    return logits

def fail(token_ids, logits):
    raise ValueError("no thanks, token %d" % len(token_ids))

class Only:
    def __init__(self, token_id, *, bonus=1e4):
        self.token_id, self.bonus = token_id, bonus

    def __call__(self, token_ids, logits):
        logits[self.token_id] += self.bonus
        return logits
"""
PATTERN = r"seesay_test_processors[.:](?!secret)\w+|seesay_test_broken:.*|json:dumps"


@pytest.fixture(scope="module", params=[True, False], ids=["process", "thread"])
def engine(
    request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AsyncEngine]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "seesay_test_processors.py").write_text(MODULE)
    (folder / "seesay_test_broken.py").write_text("raise RuntimeError('half a module')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(str(folder))
        config = EngineConfig(
            device_type="cpu",
            engine_process=request.param,
            async_scheduling=True,
            block_size=16,
            logits_processor_pattern=PATTERN,
        )
        with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
            yield engine


def options(*processors: Any) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=6, ignore_eos=True, logits_processors=list(processors))


def test_names_are_functions_of_the_engines_process(engine: AsyncEngine) -> None:
    """With pictures, beside each other and a request without any."""
    picture = [make_message(make_picture(30, 40, 1), "what?")]
    only = {"qualname": "seesay_test_processors.Only", "args": [9]}
    weak = {"qualname": "seesay_test_processors:Only", "args": [9], "kwargs": {"bonus": 0}}
    even, nine, both, plain, free = ask(
        engine,
        parse(
            ["go", picture, "go", "go", "go"],
            options("seesay_test_processors:only_even"),
            options(only),
            options(only, "seesay_test_processors.only_even"),
            options(weak),
            options(),
        ),
    )
    assert [each.error for each in (even, nine, both, plain, free)] == [None] * 5
    assert all(token_id % 2 == 0 for token_id in (*even.token_ids, *both.token_ids))
    assert nine.token_ids == [9] * 6 and plain.token_ids == free.token_ids


def test_a_failing_processor_ends_its_request_with_its_words(engine: AsyncEngine) -> None:
    failed, other = ask(engine, parse(["go", "go"], options("seesay_test_processors:fail"), options()))
    assert isinstance(failed.error, RequestError) and failed.error.param == "logits_processors"
    assert "no thanks, token" in str(failed.error)
    assert other.error is None and len(other.token_ids) == 6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("seesay_test_processors:secret", "does not match logits_processor_pattern"),
        ("os:system", "does not match"),
        ("seesay_test_processors:only_even; import os", "not of the form"),
        ("seesay_test_processors", "not of the form"),
        ("seesay_test_processors:Only.__call__", "not of the form"),
        ("a" * 300 + ":b", "not of the form"),
        ("seesay_test_processors:missing", "cannot be imported: AttributeError"),
        ("seesay_test_processors:OPTION", "is not a function but a int"),
        ("seesay_test_broken:f", "half a module"),
        ({"qualname": "seesay_test_processors:Only", "args": []}, "cannot be imported: TypeError"),
        ({"qualname": "json:dumps", "args": [1]}, "is not a function but a str"),
    ],
    ids=str,
)
def test_other_names_are_refused(engine: AsyncEngine, name: Any, words: str) -> None:
    [answer] = ask(engine, parse(["go"], options(name)))
    assert isinstance(answer.error, RequestError) and answer.error.code is ErrorCode.INVALID_REQUEST
    assert words in str(answer.error) and answer.error.param == "logits_processors", answer.error


def test_an_engine_imports_nothing_unless_it_is_told(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Over HTTP too, with a 400 that names the field."""
    path = str(tiny_checkpoint("qwen2_5_vl"))
    with AsyncEngine(path, backend_config=EngineConfig(device_type="cpu")) as engine:
        [answer] = ask(engine, parse(["go"], options("json:dumps")))
        assert isinstance(answer.error, RequestError) and "imports none" in str(answer.error)
        with serve(engine, make_settings()) as server:
            body = {"prompt": "go", "max_tokens": 2}
            for given in (["json:dumps"], [{"qualname": "json:dumps", "args": []}]):
                response = server.post("/v1/completions", {**body, "logits_processors": given})
                assert response.status_code == 400
                assert response.json()["error"]["param"] == "logits_processors"
            response = server.post("/v1/completions", {**body, "logits_processors": [{"name": "a:b"}]})
            assert response.status_code == 400


def test_http_takes_names_that_are_allowed(engine: AsyncEngine) -> None:
    with serve(engine, make_settings()) as server:
        given = [{"qualname": "seesay_test_processors:Only", "kwargs": {"token_id": 9}}]
        body = {"prompt": "go", "max_tokens": 3, "ignore_eos": True, "return_token_ids": True}
        answer = server.post("/v1/completions", {**body, "logits_processors": given})
        assert answer.json()["choices"][0]["token_ids"] == [9] * 3
        failed = server.post("/v1/completions", {**body, "logits_processors": ["seesay_test_processors:fail"]})
        assert failed.status_code == 400 and "no thanks" in failed.json()["error"]["message"]


@pytest.mark.parametrize(
    "given",
    [{"args": []}, {"qualname": "a:b", "other": 1}, {"qualname": 1}, {"qualname": "a:b", "args": [{1, 2}]}, 5],
    ids=str,
)
def test_wrong_forms_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="logits_processors"):
        options(given)
    with pytest.raises(ConfigError, match="logits_processor_pattern must be a regular expression"):
        EngineConfig(logits_processor_pattern="(")
