"""What the distributor costs, and what it saves.

    python benchmarks/proxy.py added [--rate 500] [--seconds 20]
    python benchmarks/proxy.py affinity [--nodes 4] [--pictures 16] [--turns 8]

`added` sends requests at a rate, for a second to four echo nodes directly and for the next one through the distributor.
It prints the percentiles of both in milliseconds, their differences, and the distributor's processor time of a request.
The distributor has a core of its own, where there are several: what shares it waits for turns of the scheduler.
`affinity` asks servers of the built-in model on the CPU about few pictures, many times, with the strategies `random`
and `cache_affinity`, and prints how many pictures the vision towers encoded.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gc
import io
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
from light_http import Client, make_message
from server_process import running_server

from seesay.bench.workload import Request, shared_image_requests

NODE = Path(__file__).with_name("light_http.py")
BODY = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "word " * 200}]}).encode()
NUM_AT_ONCE = 8


CORES = sorted(os.sched_getaffinity(0))
OWN_CORES, OTHER_CORES = (CORES[-1:], CORES[:-1]) if len(CORES) > 1 else (CORES, CORES)
"""Of the distributor, and of the nodes and the client."""


@contextlib.contextmanager
def running_nodes(num: int) -> Iterator[list[str]]:
    """Echo nodes in processes of their own. Yields their URLs."""
    processes = [subprocess.Popen([sys.executable, str(NODE)], stdout=subprocess.PIPE) for _ in range(num)]
    try:
        yield [f"http://127.0.0.1:{int(process.stdout.readline())}" for process in processes if process.stdout]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def running_proxy(nodes: Sequence[str], strategy: str) -> Iterator[tuple[str, int]]:
    """A distributor in a process of its own. Yields its URL and process id."""
    command = [sys.executable, "-m", "seesay", "serve", "proxy", "--server-name", "127.0.0.1", "--server-port", "0"]
    process = subprocess.Popen([*command, "--strategy", strategy, "--nodes", *nodes], stderr=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, OWN_CORES)  # before it has threads, which take it over
    try:
        assert process.stderr is not None
        yield next(found[0] for line in process.stderr if (found := re.search(r"http://\S+", line))), process.pid
    finally:
        process.terminate()
        process.communicate()


async def measure_added(proxy: str, pid: int, nodes: Sequence[str], rate: float, seconds: float) -> None:
    request = make_message(b"POST /v1/chat/completions HTTP/1.1", BODY)
    through, direct = Client(proxy, request), itertools.cycle([Client(url, request) for url in nodes])
    for _ in range(200):
        await through.ask()
    used_s, num = _cpu_s(pid), int(rate * seconds)
    times_s: dict[str, list[float]] = {"direct": [], "through": []}
    pending: list[asyncio.Task[None]] = []

    async def ask(kind: str, client: Client) -> None:
        times_s[kind].append(await client.ask())

    begin_s = time.perf_counter()
    for index in range(num):
        wait_s = begin_s + index / rate - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        is_through = int(index / rate) % 2  # a second directly, a second through it
        pending.append(asyncio.create_task(ask(*("through", through) if is_through else ("direct", next(direct)))))
    await asyncio.gather(*pending)
    reached = num / (time.perf_counter() - begin_s)
    found = {kind: _percentiles_ms(values[len(values) // 10 :]) for kind, values in times_s.items()}
    added = {name: round(found["through"][name] - value, 2) for name, value in found["direct"].items()}
    cpu_ms = round(1000 * (_cpu_s(pid) - used_s) / len(times_s["through"]), 2)
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"rate": round(reached), "ms": found, "added_ms": added, "cpu_ms": cpu_ms, "load_average": load}))


def _cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _percentiles_ms(values_s: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values_s, n=100)
    return {f"p{percent}": round(1000 * cuts[percent - 1], 2) for percent in (50, 90, 99)}


def _make_body(request: Request) -> bytes:
    buffer = io.BytesIO()
    request.images[0].save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": request.text}]
    messages = [{"role": "user", "content": content}]
    return json.dumps({"messages": messages, "max_tokens": request.num_output_tokens}).encode()


async def measure_affinity(proxy: str, nodes: Sequence[str], strategy: str, bodies: Sequence[bytes]) -> int:
    """Ask, and return how many pictures were encoded."""
    places = asyncio.Semaphore(NUM_AT_ONCE)
    async with httpx.AsyncClient(timeout=600) as client:

        async def ask(body: bytes) -> None:
            async with places:
                headers = {"content-type": "application/json"}
                answer = await client.post(f"{proxy}/v1/chat/completions", content=body, headers=headers)
                answer.raise_for_status()

        async def count(name: str) -> list[int]:
            pages = [(await client.get(f"{url}/metrics")).text for url in nodes]
            found = [re.search(rf"^{name} (\S+)$", page, re.MULTILINE) for page in pages]
            return [int(float(match[1])) if match else 0 for match in found]

        (await client.post(f"{proxy}/reset_caches")).raise_for_status()
        before, answers = await count("seesay_encoder_items_total"), await count("seesay_request_prompt_tokens_count")
        started_s = time.perf_counter()
        await asyncio.gather(*(ask(body) for body in bodies))
        elapsed_s = time.perf_counter() - started_s
        encoded = [new - old for new, old in zip(await count("seesay_encoder_items_total"), before)]
        shares = [new - old for new, old in zip(await count("seesay_request_prompt_tokens_count"), answers)]
    print(json.dumps({"strategy": strategy, "encoded": encoded, "requests": shares, "seconds": round(elapsed_s, 1)}))
    return sum(encoded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("added", "affinity"))
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("--turns", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.part == "added":
        os.sched_setaffinity(0, OTHER_CORES)
        gc.disable()  # the client's pauses are not the distributor's
        with running_nodes(arguments.nodes) as nodes, running_proxy(nodes, "cache_affinity") as (proxy, pid):
            asyncio.run(measure_added(proxy, pid, nodes, arguments.rate, arguments.seconds))
        return
    requests = shared_image_requests(arguments.pictures, num_turns=arguments.turns, side_px=224, num_output_tokens=4)
    bodies = [_make_body(request) for request in requests]
    os.environ["OMP_NUM_THREADS"] = "1"
    options = ["--device", "cpu", "--session-len", "1024"]
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(running_server("seesay-demo", options))[0] for _ in range(arguments.nodes)]
        encoded = {}
        for strategy in ("random", "cache_affinity"):
            with running_proxy(nodes, strategy) as (proxy, _):
                encoded[strategy] = asyncio.run(measure_affinity(proxy, nodes, strategy, bodies))
    print(json.dumps({"affinity_by_random": round(encoded["cache_affinity"] / encoded["random"], 3)}))


if __name__ == "__main__":
    main()
