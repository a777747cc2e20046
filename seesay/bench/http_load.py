"""Sends requests to an OpenAI-compatible server from several processes, and times the streams of its answers."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any, NamedTuple

from PIL import Image
from tqdm import tqdm

from seesay.bench.event_stream import Client
from seesay.bench.outcomes import Outcome
from seesay.bench.workload import Request
from seesay.errors import ConfigError

CHAT_PATH = "/chat/completions"
PATH = f"/v1{CHAT_PATH}"
TIMEOUT_S = 300.0
_LEAD_S = 0.5
"""Between the moment that all clients know when to begin and that moment."""
_BAR_S = 0.2
"""Between two looks at how many requests have ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request to send `at_s` after the start."""

    at_s: float
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server: its address, the path of its chat completions or completions, headers of every request, and the
    longest time for an answer."""

    url: str
    path: str = PATH
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S


class LoadResult(NamedTuple):
    """What came of each request, the seconds of all together, and the processor seconds of the busiest client."""

    outcomes: list[Outcome]
    seconds: float
    most_cpu_s: float


def make_body(
    model: str,
    request: Request,
    *,
    path: str = PATH,
    ignores_eos: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the body for a `path` of chat completions, or of completions, which take no pictures (`ConfigError`). With
    `ignores_eos`, the answer has as many tokens as the request says, whatever the model says; servers of others that
    know the field do the same. `extra`: more fields."""
    body = {
        "model": model,
        **(_make_messages(request) if path.endswith(CHAT_PATH) else _make_prompt(request)),
        "max_tokens": request.num_output_tokens,
        "temperature": 0,
        **({"ignore_eos": True} if ignores_eos else {}),
        "stream": True,
        "stream_options": {"include_usage": True},
        **(extra or {}),
    }
    return json.dumps(body).encode()


def _make_messages(request: Request) -> dict[str, Any]:
    text, images, _ = request
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": make_url(image)}} for image in images]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}] if parts else text}]}


def _make_prompt(request: Request) -> dict[str, Any]:
    if request.images:
        raise ConfigError(f"--endpoint must end with {CHAT_PATH} for requests with pictures")
    return {"prompt": request.text}


def make_url(image: Image.Image) -> str:
    """Return a picture as a data URL of a JPEG."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


async def send_all(
    target: Target, jobs: Sequence[Job], num_at_a_time: int, start_at: float, on_end: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """Send each request when its time has come and at most so many are running; `start_at` is of `time.monotonic`.
    `on_end` is called behind each answer."""
    client = Client(target.url, target.path, target.headers)
    places = asyncio.Semaphore(num_at_a_time)

    async def send(job: Job) -> Outcome:
        await asyncio.sleep(start_at + job.at_s - time.monotonic())
        outcome = Outcome(job.kind)
        async with places:
            outcome.started_at = time.perf_counter()
            try:
                await client.post(job.body, outcome.read, timeout_s=target.timeout_s)
            except (OSError, RuntimeError) as error:  # TimeoutError is an OSError
                outcome.error = repr(error)
            outcome.ended_at = time.perf_counter()
        outcome.end()
        on_end()
        return outcome

    outcomes = await asyncio.gather(*map(send, jobs))
    client.close()
    return outcomes


def _run_client(
    target: Target, jobs: Sequence[Job], num_at_a_time: int, pipe: Connection, num_done: Synchronized[int]
) -> None:
    """A client process: says that it is ready, gets the moment to start, and returns what came of its requests, when
    the last one ended, and its processor time meanwhile. It adds each that has ended to `num_done`."""

    def count() -> None:
        with num_done.get_lock():
            num_done.value += 1

    pipe.send(None)
    start_at = pipe.recv()
    cpu_s = time.process_time()
    outcomes = asyncio.run(send_all(target, jobs, num_at_a_time, start_at, count))
    pipe.send((outcomes, time.monotonic(), time.process_time() - cpu_s))


def load(
    target: Target, jobs: Sequence[Job], num_at_a_time: int, num_clients: int, *, shows_progress: bool = False
) -> LoadResult:
    """Send the requests from several processes, each with its share of them and of the places."""
    spawn = multiprocessing.get_context("spawn")
    num_clients = min(num_clients, len(jobs))
    num_done: Synchronized[int] = spawn.Value("q", 0)
    pipes, processes = [], []
    for number in range(num_clients):
        ours, theirs = spawn.Pipe()
        own_jobs, own_places = jobs[number::num_clients], -(-num_at_a_time // num_clients)
        arguments = target, own_jobs, own_places, theirs, num_done
        processes.append(spawn.Process(target=_run_client, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    start_at = time.monotonic() + _LEAD_S
    for pipe in pipes:
        pipe.send(start_at)
    results = []
    with tqdm(total=len(jobs), unit="request", disable=not shows_progress) as bar:
        for pipe in pipes:
            while not pipe.poll(_BAR_S):
                bar.update(num_done.value - bar.n)
            results.append(pipe.recv())
        bar.update(num_done.value - bar.n)
    outcomes, ends, cpu_s = zip(*results)
    for process in processes:
        process.join()
    return LoadResult([outcome for own in outcomes for outcome in own], max(ends) - start_at, max(cpu_s))
