"""The figures over HTTP, for a moment on the CPU; the client that measures them; and what is made of its times."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from serve import make_jobs, summarize

from seesay.bench.event_stream import Client
from seesay.bench.outcomes import Outcome

ROOT = Path(__file__).parents[2]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.slow
def test_all_figures_are_printed() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "serve.py"), "seesay-demo", "--scale", "0.003"]
    command += ["--side-px", "56", "--clients", "2", "--", "--session-len", "4096", "--max-batch-size", "32"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        command, check=False, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    start, *records = [json.loads(line.removeprefix("RESULT ")) for line in result.stdout.splitlines()]
    assert start["what"] == "server_start" and start["seconds"] > 0
    assert [(record["what"], record["requests"]) for record in records[:-1]] == [
        ("small", 6), ("text", 1), ("image", 1), ("shared", 8),
    ]  # fmt: skip
    for record, num_tokens in zip(records, (16, 256, 128, 64)):
        assert abs(record["out_tok_per_s"] * record["seconds"] / (record["requests"] * num_tokens) - 1) < 0.1
    assert records[-1]["what"] == "mixed" and {"text", "image"} <= records[-1].keys()
    for record in records:
        assert record["failed"] == 0 and record["req_per_s"] > 0 and record["client_cores"] >= 0, record


def test_requests_of_mixed_arrive_in_order_and_within_its_time() -> None:
    jobs, num_at_a_time = make_jobs("mixed", "m", scale=0.2, side_px=28)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs) and jobs[-1].at_s < 4
    assert {job.kind for job in jobs} == {"text", "image"} and num_at_a_time == len(jobs)
    assert 40 < sum(job.kind == "text" for job in jobs) < 90, "16 a second"
    picture = next(json.loads(job.body) for job in jobs if job.kind == "image")["messages"][0]["content"][0]
    assert picture["image_url"]["url"].startswith("data:image/jpeg;base64,")


def outcome(first_s: float, token_s: float) -> Outcome:
    return Outcome("text", started_at=10.0, first_at=10 + first_s, last_at=10 + first_s + 9 * token_s, num_tokens=10)


def test_a_share_is_in_time() -> None:
    late, slow, failed = outcome(2.1, 0.01), outcome(0.1, 0.06), Outcome("text", error="status 429")
    figures = summarize([outcome(1.0, 0.04), late, slow, failed], seconds=4.0)
    assert figures["requests"] == 4 and figures["failed"] == 1 and figures["first_error"] == "status 429"
    assert figures["req_per_s"] == 0.75 and figures["in_time"] == 0.25 and figures["out_tok_per_s"] == 8
    assert figures["text"]["ttft_s_p50"] == 1.0 and figures["text"]["ttft_s_p99"] == 2.078
    assert figures["text"]["tpot_ms_p50"] == 40 and figures["text"]["tpot_ms_p99"] == 59.6


def event(content: str | None = None, **fields: Any) -> bytes:
    return json.dumps({"choices": [] if content is None else [{"delta": {"content": content}}], **fields}).encode()


def test_an_answer_is_timed_by_its_pieces_of_text() -> None:
    read = Outcome("text")
    for data, now in (
        (event(""), 1.0), (event("a"), 2.0), (event("b"), 2.5), (event("c"), 2.6),
        (event(usage={"completion_tokens": 3}), 9.0), (b"[DONE]", 9.0),
    ):  # fmt: skip
        read.read(data, now)
    read.end()
    assert read.error is None and (read.first_at, read.last_at, read.longest_gap_s) == (2.0, 2.6, 0.5)
    cut = Outcome("text")
    cut.read(event("a"), 2.0)
    cut.end()
    assert cut.error is not None, "neither usage nor an end"


# --- the client -------------------------------------------------------------------------------------------------------


def chunked(*chunks: bytes) -> bytes:
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


@asynccontextmanager
async def answering(*answers: list[bytes]) -> AsyncIterator[tuple[Client, list[object]]]:
    """A server that sends the pieces of each answer in turn; a client of it; and the connections that it made."""
    left, connections = list(answers), list[Any]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        while left:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"POST /v1 HTTP/1.1\r\n") and b"Content-Length: 2\r\n" in head
            assert await reader.readexactly(2) == b"{}"
            for piece in left.pop(0):
                await asyncio.sleep(0.002)
                writer.write(piece)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/v1")
    async with server:
        yield client, connections
        client.close()
        await asyncio.gather(*connections)


def keep(events: list[bytes], data: bytes, now: float) -> None:
    events.append(data)


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_events_are_read_however_they_are_cut(size: int) -> None:
    whole = chunked(b"data: a\n", b"\n", b"data: b\n\ndata: \xc3\xa4", b"\n\n", b"")
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    async with answering(pieces, pieces) as (client, connections):
        for _ in range(2):
            events = list[bytes]()
            await client.post(b"{}", partial(keep, events), timeout_s=60)
            assert events == [b"a", b"b", "ä".encode()]
        assert len(connections) == 1, "kept open"


async def test_an_error_is_told_with_its_status_and_text() -> None:
    refusal = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 8\r\n\r\nqueue fu"
    async with answering([refusal[:60], refusal[60:]]) as (client, _):
        with pytest.raises(RuntimeError, match="status 429: queue fu"):
            await client.post(b"{}", lambda data, now: None, timeout_s=60)


@pytest.mark.parametrize("cut", [CHUNKED + b"8\r\ndata", b"SSH-2.0-x\r\n\r\n", CHUNKED + b"zz\r\n\r\n"])
async def test_an_answer_that_ends_early_is_an_error(cut: bytes) -> None:
    async with answering([cut]) as (client, _):
        with pytest.raises(ConnectionError):
            await client.post(b"{}", lambda data, now: None, timeout_s=60)


async def test_an_answer_that_does_not_come_is_an_error() -> None:
    async with answering([CHUNKED] + 100 * [b""]) as (client, _):
        with pytest.raises(TimeoutError):
            await client.post(b"{}", lambda data, now: None, timeout_s=0.05)
