"""The benchmark of hostile bodies finds every field of every route, and what it sends is never the server's fault."""

from __future__ import annotations

import json
import os
import random

import httpx
import pytest
from hostile_bodies import Neighbour, is_good, measure, post
from hostile_shapes import Case, find_cases, picture_cases
from live_server import LiveServer


@pytest.fixture(scope="module")
def cases(server: LiveServer) -> list[Case]:
    return list(find_cases(httpx.get(f"{server.url}/openapi.json").json()))


def test_every_field_of_every_route_is_found(server: LiveServer, cases: list[Case]) -> None:
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    posts = {path for path, operations in paths.items() if "requestBody" in operations.get("post", {})}
    assert {case.path for case in cases} == posts
    fields = {(case.path, case.field) for case in cases}
    for expected in (
        ("/v1/chat/completions", "messages[].content[].image_url.url"),
        ("/v1/chat/completions", "chat_template_kwargs"),
        ("/v1/completions", "prompt[]"),
        ("/v1/messages", "messages[].content[].source.data"),
        ("/detokenize", "tokens"),
    ):
        assert expected in fields, sorted(fields)


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


def test_figures_of_a_body(server: LiveServer) -> None:
    """The server is this process: its memory and its streams are real."""
    neighbour = Neighbour(server.url)
    try:
        figures = [
            measure(case, 50_000, url=server.url, pid=os.getpid(), neighbour=neighbour, repeats=2)
            for case in picture_cases()
        ]
    finally:
        neighbour.close()
    for figure in figures:
        assert figure["status"] == 200 and figure["body_mb"] == 0.05 and figure["seconds"] > 0
        assert figure["stall_ms"] >= 0 and is_good({**figure, "stall_ms": 1.0, "memory": 1.0}, 50)
        assert not is_good({**figure, "stall_ms": 51.0}, 50) and not is_good({**figure, "status": 500}, 50)
        assert not is_good({**figure, "shape": "text", "stall_ms": 0, "memory": 5, "memory_mb": 100.0}, 50)
