"""The benchmark of hostile bodies finds every field of every route, and what it sends is never the server's fault."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import httpx
import pytest
from hostile_bodies import Neighbour, is_good, measure, post
from hostile_shapes import Case, find_cases, picture_cases
from live_server import LiveServer

_JSON = "application/json"


def _takes_body(operations: dict[str, Any]) -> bool:
    return "requestBody" in operations.get("post", {})


@pytest.fixture(scope="module")
def cases(server: LiveServer) -> list[Case]:
    return list(find_cases(httpx.get(f"{server.url}/openapi.json", timeout=60).json()))


def test_every_field_of_every_route_is_found(server: LiveServer, cases: list[Case]) -> None:
    paths = httpx.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]
    contents = {
        path: operations.get("post", {}).get("requestBody", {}).get("content") for path, operations in paths.items()
    }
    assert {case.path for case in cases} == {path for path, content in contents.items() if content and _JSON in content}
    assert {path for path, content in contents.items() if content and _JSON not in content} == {
        "/v1/files",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    }
    fields = {(case.path, case.field) for case in cases}
    for expected in (
        ("/v1/chat/completions", "messages[].content[].image_url.url"),
        ("/v1/chat/completions", "chat_template_kwargs"),
        ("/v1/completions", "prompt[]"),
        ("/v1/messages", "messages[].content[].source.data"),
        ("/detokenize", "tokens"),
    ):
        assert expected in fields, sorted(fields)


def test_a_field_stands_in_the_alternative_that_has_it(cases: list[Case]) -> None:
    """Or else the body is refused for an unknown field, and the reader of the field is never tried."""
    bodies = {(case.path, case.field): json.loads(case.make(300)) for case in cases if case.shape == "one word"}
    for path, field, part in (
        ("/v1/chat/completions", "messages[].content[].image_url.url", {"type": "image_url"}),
        ("/v1/messages", "messages[].content[].source.data", {"type": "document"}),
        ("/v1/messages", "messages[].content[].name", {"type": "tool_use", "id": "hi"}),
        ("/v1/messages", "messages[].content[].content[].text", {"type": "tool_result", "tool_use_id": "hi"}),
    ):
        parts = [part for message in bodies[path, field]["messages"] for part in message["content"]]
        assert any(isinstance(found, dict) and part.items() <= found.items() for found in parts), (path, field)
    roles = [message["role"] for message in bodies["/v1/messages", "messages[].content[].name"]["messages"]]
    assert roles == ["user", "assistant", "user"]  # the call of a tool has a result


def test_bodies_are_json_of_the_size_asked_for(cases: list[Case]) -> None:
    for case in cases:
        if case.shape not in ("large numbers", "valid items"):  # which come in large pieces
            body = case.make(1500)
            assert 700 < len(body) < 2500, (case, len(body))
            json.loads(body)


def test_no_shape_is_the_servers_fault(server: LiveServer, cases: list[Case]) -> None:
    unlike = {(case.path, case.field.rpartition(".")[2], case.shape): case for case in cases}
    for case in random.Random(1).sample(list(unlike.values()), 120):
        status, answer = post(server.url, case.path, case.make(6000))
        assert 200 <= status < 500, (case, status, answer[:300])


@pytest.mark.parametrize("all_places", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_refusals_are_short(server: LiveServer, cases: list[Case], all_places: bool) -> None:
    """Whatever a body has where a name or a key belongs, not all of it is sent back. Each field once in each route, or
    in all places where it may be."""
    named = {
        (case.path, case.field if all_places else case.field.rpartition(".")[2], case.shape): case
        for case in cases
        if case.shape in ("long key", "one word")
    }
    assert len(named) > 100
    for case in named.values():
        status, answer = post(server.url, case.path, case.make(50_000 if all_places else 12_000))
        assert status < 500 and (status == 200 or len(answer) < 5000), (case, status, answer[:300])


def test_figures_of_a_body(server: LiveServer) -> None:
    """The server is this process: its memory and its streams are real."""
    neighbour = Neighbour(server.url, os.getpid())
    try:
        figures = [
            measure(case, 50_000, url=server.url, pid=os.getpid(), neighbour=neighbour, repeats=2)
            for case in picture_cases()
        ]
    finally:
        neighbour.close()
    for figure in figures:
        assert figure["status"] == 200 and figure["body_mb"] == 0.05 and figure["seconds"] > 0
        assert figure["stall_ms"] >= 0 <= figure["computed_ms"]
        assert is_good({**figure, "stall_ms": 1.0, "memory": 1.0}, 50)
        assert not is_good({**figure, "stall_ms": 51.0}, 50) and not is_good({**figure, "status": 500}, 50)
        assert not is_good({**figure, "shape": "text", "stall_ms": 0, "memory": 5, "memory_mb": 100.0}, 50)
