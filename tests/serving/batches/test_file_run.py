"""A file answered into another: by the app in this process, by a server, and again after a run that was cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from live_server import LiveServer

from seesay.errors import ConfigError
from seesay.serving.batches.answering import AppAnswering, ServerAnswering
from seesay.serving.batches.file_run import count_lines, run_file
from seesay.serving.batches.lines import BatchLine
from seesay.serving.batches.results import Answered, ResultFile
from seesay.serving.batches.running import Answer

TURNS = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
}


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join(line + "\n" if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def request(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**BODIES[url], **body}}


async def run(source: Path, target: Path, answer: Answer, num_at_once: int = 8) -> dict[str | None, dict[str, Any]]:
    """Answer a file, and return the results by custom_id."""
    with ResultFile(target) as results:
        await run_file(source, results, answer, num_lines=count_lines(source, target), num_at_once=num_at_once)
    parsed = [json.loads(line) for line in target.read_text().splitlines()]
    assert len({result["custom_id"] for result in parsed}) == len(parsed), "a line was answered twice"
    return {result["custom_id"]: result for result in parsed}


@pytest.fixture(params=["in this process", "by a server"])
async def answer(request: pytest.FixtureRequest, app: FastAPI, server: LiveServer) -> Any:
    if request.param == "in this process":
        yield AppAnswering(app)
        return
    async with httpx.AsyncClient(timeout=60) as client:
        yield ServerAnswering(client, f"{server.url}/v1")


async def test_every_endpoint_answers_and_bad_lines_fail_alone(answer: Answer, tmp_path: Path) -> None:
    deep = '{"custom_id": "deep", "method": "POST", "url": "/v1/completions", "body": {"prompt": %s}}'
    source = write_lines(
        tmp_path / "in.jsonl",
        *(request(url, url) for url in BODIES),
        "nonsense",
        request("wrong", max_tokens=-1),
        request("unknown", model="no such model"),
        deep % ("[" * 100 + "]" * 100),
    )
    results = await run(source, tmp_path / "out.jsonl", answer)
    assert len(results) == 8
    for url in BODIES:
        response = results[url]["response"]
        assert response["status_code"] == 200 and response["request_id"].startswith("req_"), response
        assert response["body"]["object"] in ("chat.completion", "text_completion", "list", "response")
    for name, status, code in (
        ("wrong", 400, "invalid_request"), ("unknown", 404, "model_not_found"), ("deep", 400, "body_too_complex"),
    ):  # fmt: skip
        response = results[name]["response"]
        assert (response["status_code"], response["body"]["error"]["code"]) == (status, code)
    assert results[None]["error"]["line"] == 5


async def test_a_run_that_was_cut_off_is_continued(app: FastAPI, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", *(request(str(number)) for number in range(20)), "nonsense")
    target = tmp_path / "out.jsonl"
    seen: list[str] = []

    def counting(limit: int) -> Callable[[BatchLine], Any]:
        real = AppAnswering(app)

        async def count(line: BatchLine) -> Answered:
            if len(seen) == limit:
                raise KeyError("cut off")
            seen.append(line.custom_id)
            return await real(line)

        return count

    with pytest.raises(ExceptionGroup):
        await run(source, target, counting(11), num_at_once=3)
    begun = target.read_bytes()
    assert 8 <= begun.count(b"\n") <= 11
    target.write_bytes(begun[:-20])  # as a crash in the middle of a write leaves it
    num_kept = begun.count(b"\n") - 1
    seen.clear()
    results = await run(source, target, counting(1000), num_at_once=3)
    assert len(results) == 21 and len(seen) == 20 - num_kept
    before = target.read_bytes()
    await run(source, target, counting(0))
    assert target.read_bytes() == before


async def test_as_many_lines_run_at_once_as_asked_for(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", *(request(str(number)) for number in range(30)))
    num_running, most = 0, 0

    async def answer(line: BatchLine) -> Answered:
        nonlocal num_running, most
        num_running += 1
        most = max(most, num_running)
        await asyncio.sleep(0.01)
        num_running -= 1
        return Answered(status_code=200, request_id="", body=b"{}")

    assert len(await run(source, tmp_path / "out.jsonl", answer, num_at_once=5)) == 30
    assert most == 5


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", request("a"), request("b"), request("a"))
    with pytest.raises(ConfigError, match="lines 1 and 3"):
        count_lines(source, tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match="another file than INPUT"):
        count_lines(source, source)
    with pytest.raises(ConfigError, match="cannot read INPUT"):
        count_lines(tmp_path / "none", tmp_path / "out.jsonl")
    with pytest.raises(ConfigError, match="folder of OUTPUT"):
        count_lines(source, tmp_path / "none" / "out.jsonl")


async def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    statuses = [429, 503, 200, 400]
    sent: list[bytes] = []

    async def serve(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        if len(sent) == 2:
            raise httpx.ConnectError("refused")
        return httpx.Response(statuses.pop(0), json={}, headers={"x-request-id": "r"})

    source = write_lines(tmp_path / "in.jsonl", request("a"), request("b"))
    async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
        answer = ServerAnswering(client, "http://test/", first_pause_s=0.001)
        results = await run(source, tmp_path / "out.jsonl", answer, num_at_once=1)
    assert [results[name]["response"]["status_code"] for name in "ab"] == [200, 400]
    assert len(sent) == 5 and len(set(sent)) == 1


async def test_a_server_that_is_gone_fails_the_line() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
        line = BatchLine(number=1, custom_id="a", url="/v1/embeddings", body=b"{}")
        answered = await ServerAnswering(client, "http://test", first_pause_s=0.0001)(line)
    assert answered.status_code == 502 and b"cannot be reached: refused" in answered.body
