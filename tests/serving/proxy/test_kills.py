"""Nodes are killed under load, again and again: what was not begun is answered elsewhere, what was begun ends with an
error, nothing is answered twice, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import httpx
import pytest
from echo_node import EchoProcess, echo_nodes, start_node
from live_proxy import serve_proxy
from waiting import until

NUM_CLIENTS = 8


async def read_stream(client: httpx.AsyncClient, number: int) -> str:
    """Ask for a stream. Returns how it ended: 'whole', 'error', or 'broken'."""
    body = {"prompt": f"{number}", "stream": True, "num_events": 12, "pause_s": 0.01}
    events = []
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            events = [line[6:] async for line in answer.aiter_lines() if line]
    except httpx.RemoteProtocolError:
        return "broken"
    if events[-1] != "[DONE]":
        assert "has ended" in json.loads(events[-1])["error"]["message"]
    pieces = [json.loads(event) for event in events[:-1]]
    assert [piece["index"] for piece in pieces] == list(range(len(pieces)))
    assert len({piece["node"] for piece in pieces}) <= 1
    return "whole" if events[-1] == "[DONE]" else "error"


async def ask(client: httpx.AsyncClient, number: int, ends: Counter[str], stop: asyncio.Event) -> None:
    while not stop.is_set():
        number += NUM_CLIENTS
        if number % 2:
            ends[await read_stream(client, number)] += 1
        else:
            answer = await client.post("/v1/completions", json={"prompt": f"{number}", "wait_s": 0.02})
            assert answer.status_code == 200 and json.loads(answer.json()["body"])["prompt"] == f"{number}"
            ends["answered"] += 1


async def kill_and_restart(nodes: list[EchoProcess], index: int) -> None:
    node = nodes[index]
    node.process.kill()
    await asyncio.to_thread(node.process.wait)
    nodes[index] = await asyncio.to_thread(start_node, node.name, int(node.url.rpartition(":")[2]))


@pytest.mark.parametrize("num_kills", [4, pytest.param(50, marks=pytest.mark.slow)])
async def test_kills_under_load(num_kills: int) -> None:
    draw, ends, stop = random.Random(5), Counter[str](), asyncio.Event()
    with echo_nodes(4) as nodes, serve_proxy([node.url for node in nodes]) as proxy:
        async with httpx.AsyncClient(base_url=proxy.url, timeout=120) as client:
            asking = [asyncio.create_task(ask(client, number, ends, stop)) for number in range(NUM_CLIENTS)]
            for _ in range(num_kills):
                enough = ends.total() + 2 * NUM_CLIENTS
                await until(lambda enough=enough: ends.total() > enough)  # type: ignore[misc]
                await kill_and_restart(nodes, draw.randrange(4))
                await until(lambda: all(node.is_up for node in proxy.nodes))
            stop.set()
            await asyncio.gather(*asking)
        await until(lambda: all(node.num_running == 0 for node in proxy.nodes))  # soon behind the end of an answer
        assert proxy.metric("seesay_proxy_retries_total") > 0
    assert ends["whole"] and ends["answered"]
    print(dict(ends))
