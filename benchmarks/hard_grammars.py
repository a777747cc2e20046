"""How long one client's new schema takes to be compiled, alone and beside eight hard ones of other clients.

    python benchmarks/hard_grammars.py [MODEL_DIR] [--rounds 5] [--hard-keys 1] [--frontends 1]

Starts a server with API keys. In each round `--hard-keys` of them send eight schemas: in some rounds such as take the
compiler half of its limit of time, in others such as are refused at that limit. While they are compiled, another key
sends a request with a small schema, as a stream. Each schema is new. Prints a JSON line for each kind of round, with
the median and the longest time in seconds from that request to the first token of its answer, and how many of the hard
ones were answered before, at most.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from server_process import running_server

SMALL_KEY = "small"
NUM_HARD = 8
KINDS: Mapping[str, int] = {"alone": 0, "beside slow ones": 4_500, "beside refused ones": 10_000}
"""By the name of a round, how many optional properties the hard schemas have."""
HEAD_START_S = 0.5
LIMIT_S = 300.0

_numbers = itertools.count(time.time_ns())


def make_body(num_properties: int) -> dict[str, Any]:
    """Return a request with a schema that was never sent before."""
    name = f"name_{next(_numbers)}"
    fields: dict[str, Any] = {name: {"type": "string", "maxLength": 5}}
    fields |= {f"p{i}": {} for i in range(num_properties)}
    schema = {"type": "object", "properties": fields, "required": [name], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "new", "schema": schema}}
    return {"messages": [{"role": "user", "content": "hi"}], "response_format": form, "max_tokens": 8, "stream": True}


async def ask(client: httpx.AsyncClient, key: str, body: dict[str, Any]) -> float:
    """Return the seconds to the first token of an answer, or to its end where it has none."""
    headers = {"Authorization": f"Bearer {key}"}
    began_s = time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        async for line in answer.aiter_lines():
            if '"content":"' in line.replace('"content":""', ""):
                break
    return time.perf_counter() - began_s


async def run_round(client: httpx.AsyncClient, num_properties: int, keys: Sequence[str]) -> tuple[float, int]:
    """Return the time of `ask` for the small schema, and how many hard ones were answered before."""
    bodies = [make_body(num_properties) for _ in range(NUM_HARD if num_properties else 0)]
    hard = [asyncio.create_task(ask(client, key, body)) for key, body in zip(itertools.cycle(keys), bodies)]
    await asyncio.sleep(HEAD_START_S)
    first_s = await ask(client, SMALL_KEY, make_body(0))
    num_answered = sum(task.done() for task in hard)
    await asyncio.gather(*hard)
    return first_s, num_answered


async def measure(url: str, num_rounds: int, keys: Sequence[str]) -> None:
    limits = httpx.Limits(max_connections=NUM_HARD + 1)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits) as client:
        await ask(client, SMALL_KEY, make_body(0))  # starts the process that tries grammars
        for kind, num_properties in KINDS.items():
            rounds = [await run_round(client, num_properties, keys) for _ in range(num_rounds)]
            first_s, num_answered = zip(*rounds, strict=True)
            figures: dict[str, Any] = {"kind": kind, "answered_before": max(num_answered)}
            figures |= {"first_token_s": round(statistics.median(first_s), 3), "longest_s": round(max(first_s), 3)}
            print(json.dumps(figures), flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hard-keys", type=int, default=1)
    parser.add_argument("--frontends", type=int, default=1)
    args = parser.parse_args(argv)
    keys = [f"hard-{number}" for number in range(args.hard_keys)]
    os.environ["SEESAY_API_KEYS"] = ",".join([SMALL_KEY, *keys])
    with running_server(args.model, ["--frontends", str(args.frontends)]) as (url, _):
        asyncio.run(measure(url, args.rounds, keys))


if __name__ == "__main__":
    main()
