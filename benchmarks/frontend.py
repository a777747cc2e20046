"""Processor time that one frontend takes for a request, over a core that computes nothing. Needs no GPU.

    python benchmarks/frontend.py [MODEL] [--requests 1000] [--at-a-time 256] [--step-ms 20] [--rounds 3]
        [--only small,whole,text]

The frontend is a whole server in a process of its own, joined to a core by the link of an engine process; the core
gives each of its requests one token in each step. So the figures hold what HTTP, templates, tokens and text cost, and
nothing of a model. Kinds of requests:

*small*: chats of 12 words, 16 tokens out, streamed.
*whole*: the same, not streamed.
*text*: chats of 480 words, 256 tokens out, streamed; a quarter as many.

Prints a JSON line per kind: microseconds of processor time (of all threads, user and system) per request, the median
over the rounds; *template*, the same of the processes that render chat templates; and requests per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from processor_time import children_of, cpu_s

from seesay.bench.event_stream import Client
from seesay.bench.workload import make_text
from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.listener import accept_connection, open_listener
from seesay.engine.token_messages import CoreFacts
from seesay.llm.plans.sampling_params import SamplingParams

KINDS = ("small", "whole", "text")
TIMEOUT_S = 300.0
_NO_NEWS = kinds.News((), (), None)
_BEAT_S = 0.5


# --- the core --------------------------------------------------------------------------------------------------------


def run_core(pipe: Connection, step_s: float) -> None:
    """Serve one frontend: each of its requests gets one token in each step."""
    listener, address = open_listener()
    pipe.send(address)
    found = accept_connection(listener, receives=kinds.ToCore)
    assert found is not None, "the frontend cannot connect"
    link, _ = found
    link.send(kinds.Hello())
    assert link.wait(TIMEOUT_S) and isinstance(link.receive(), kinds.Join)
    link.send(kinds.Started(FACTS, ModelStatus()))
    live: dict[int, _Live] = {}
    next_beat = 0.0
    while not link.is_cut():
        if time.monotonic() >= next_beat:
            link.send(kinds.Beat({}, _NO_NEWS))
            next_beat = time.monotonic() + _BEAT_S
        step_ends = time.monotonic() + step_s
        if live:
            if outputs := _step(live):
                link.send(kinds.Outputs(outputs, _NO_NEWS))
        else:
            link.wait(_BEAT_S)
        while link.has_message():
            match link.receive():
                case kinds.Submit(request):
                    live[request.request_id] = _Live(request)
                case kinds.Abort(request_ids):
                    for request_id in request_ids:
                        live.pop(request_id, None)
        time.sleep(max(0.0, step_ends - time.monotonic()))


class _Live:
    """A request: its tokens that were not sent, and how many it still gets."""

    def __init__(self, request: kinds.Request) -> None:
        self.tokens: list[int] = []
        self.num_left: int = request.params.get("max_new_tokens", SamplingParams().max_new_tokens)
        self.defers_tokens = request.defers_tokens


def _step(live: dict[int, _Live]) -> tuple[kinds.Output, ...]:
    outputs = []
    for request_id, request in list(live.items()):
        request.num_left -= 1
        request.tokens.append(65 + request_id % 20)
        if request.num_left and request.defers_tokens:
            continue
        token_ids = tuple(request.tokens)
        request.tokens.clear()
        if request.num_left:
            outputs.append(kinds.Output(request_id, token_ids, None, None, None, None, None, None))
        else:
            outputs.append(kinds.Output(request_id, token_ids, None, "length", None, None, None, _REPORT))
            del live[request_id]
    return tuple(outputs)


FACTS = CoreFacts(
    device="cpu",
    dtype="float32",
    session_len=16384,
    max_batch_size=1024,
    takes_media=True,
    resizes_on_device=False,
)
_REPORT = kinds.Report(0, 0.0, 0.0, None, None, 1.0, 1.0, (), None, None, None, 0, 0)


# --- the frontend -----------------------------------------------------------------------------------------------------


def run_frontend(pipe: Connection, model: str, address: str) -> None:
    """Be a server, with its defaults, until the benchmark ends it."""
    from seesay.config import EngineConfig
    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.http.listener import open_sockets, port_of
    from seesay.serving.server import run_server
    from seesay.serving.settings import ServerSettings

    settings = ServerSettings(host="127.0.0.1", port=0, model_name="m", max_concurrent_requests=1024, max_queue=4096)
    config = EngineConfig(device_type="cpu", engine_process=True)
    with (
        AsyncEngine(model, backend_config=config, engine_address=address) as engine,
        open_sockets("127.0.0.1", 0) as sockets,
    ):
        port = port_of(sockets)
        run_server(engine, settings, sockets=sockets, on_ready=lambda: pipe.send(port))


@contextmanager
def running_frontend(model: str, step_s: float) -> Iterator[tuple[str, int]]:
    """Start core and frontend; yield the frontend's address and process id."""
    spawn = multiprocessing.get_context("spawn")
    processes = []

    def start(run: Any, *arguments: Any) -> Any:
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=run, args=(theirs, *arguments)))
        processes[-1].start()
        theirs.close()
        return ours.recv()

    try:
        port = start(run_frontend, model, start(run_core, step_s))
        yield f"http://127.0.0.1:{port}", processes[-1].pid or 0
    finally:
        for process in reversed(processes):
            process.terminate()
            process.join()


# --- the load --------------------------------------------------------------------------------------------------------


def make_bodies(kind: str, num: int, seed: int) -> list[bytes]:
    """Return the bodies of chat completions."""
    rng = random.Random(seed)
    num_words, num_tokens = (480, 256) if kind == "text" else (12, 16)
    options: dict[str, Any] = {"model": "m", "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    if kind != "whole":
        options |= {"stream": True, "stream_options": {"include_usage": True}}
    return [
        json.dumps({"messages": [{"role": "user", "content": make_text(num_words, rng)}], **options}).encode()
        for _ in range(num)
    ]


def _drop(event: bytes, now: float) -> None:
    del event, now


async def send_all(url: str, bodies: Sequence[bytes], num_at_a_time: int) -> None:
    """Send all requests, at most so many at a time. Raises for an answer that fails."""
    client = Client(url, "/v1/chat/completions")
    places = asyncio.Semaphore(num_at_a_time)

    async def send(body: bytes) -> None:
        async with places:
            await client.post(body, _drop, timeout_s=TIMEOUT_S)

    await asyncio.gather(*map(send, bodies))
    client.close()


def measure(url: str, pid: int, kind: str, *, num: int, num_at_a_time: int, seed: int) -> dict[str, float]:
    """Return microseconds per request, and requests per second."""
    bodies = make_bodies(kind, num, seed)
    children = children_of(pid)
    before, before_children, started_s = cpu_s(pid), sum(map(cpu_s, children)), time.perf_counter()
    asyncio.run(send_all(url, bodies, num_at_a_time))
    return {
        "front_us": 1e6 * (cpu_s(pid) - before) / num,
        "template_us": 1e6 * (sum(map(cpu_s, children)) - before_children) / num,
        "req_per_s": num / (time.perf_counter() - started_s),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--at-a-time", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of requests, with commas")
    args = parser.parse_args(argv)
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(KINDS):
        parser.error(f"--only {args.only}: {', '.join(sorted(unknown))} is none of {', '.join(KINDS)}")
    with running_frontend(args.model, args.step_ms / 1e3) as (url, pid):
        for kind in chosen:
            num = max(1, args.requests // (4 if kind == "text" else 1))
            rounds = [
                measure(url, pid, kind, num=count, num_at_a_time=args.at_a_time, seed=seed)
                for seed, count in enumerate([max(1, num // 4), *[num] * args.rounds])
            ][1:]
            medians = {name: round(statistics.median(one[name] for one in rounds), 1) for name in rounds[0]}
            print(json.dumps({"what": kind, "requests": num, **medians}), flush=True)


if __name__ == "__main__":
    main()
