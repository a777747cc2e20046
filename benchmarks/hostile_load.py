"""A mixed load beside one hostile client: what its neighbours notice."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from hostile_shapes import Case
from serve_load import QUESTIONS, make_pictures, percentiles

HOSTILE_KEY = "hostile"
SIZES_MB = (0.05, 0.25, 2.0, 2.0, 20.0)
NUM_BODIES = 100
NUM_PICTURES = 50
LEAVES_AFTER_S = 3.0
"""The hostile client leaves its own answers to their fate."""


def make_keys(num_clients: int) -> list[str]:
    """The API keys of the neighbours, and that of the hostile client."""
    return [*(f"neighbour-{number}" for number in range(num_clients)), HOSTILE_KEY]


def cpu_clock(pid: int) -> int:
    """Return the clock of the CPU time of a process, named as clock_getcpuclockid(3) does."""
    return (~pid << 3) | 2


@dataclass
class Notes:
    """What the neighbours noticed. Gaps are between two events of one stream; of each, `computed_s` is the CPU time
    that the server used meanwhile, at most the gap: the rest is other processes, or waiting."""

    clock: int  # the server's CPU time
    gaps_s: list[float] = field(default_factory=list)
    computed_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    num_finished: int = 0
    lost: Counter[str] = field(default_factory=Counter)

    def summarize(self) -> dict[str, Any]:
        return {
            "finished": self.num_finished,
            "lost": dict(self.lost),
            "longest_gap_ms": round(1e3 * max(self.gaps_s, default=0.0), 1),
            "gap_ms": {name: round(1e3 * value, 2) for name, value in percentiles(self.gaps_s or [0.0]).items()},
            "longest_computed_ms": round(1e3 * max(self.computed_s, default=0.0), 1),
            "computed_ms": {n: round(1e3 * value, 2) for n, value in percentiles(self.computed_s or [0.0]).items()},
            "longest_first_token_ms": round(1e3 * max(self.first_s, default=0.0), 1),
            "first_token_ms": {n: round(1e3 * value, 1) for n, value in percentiles(self.first_s or [0.0]).items()},
        }


# --- the neighbours --------------------------------------------------------------------------------------------------


@contextmanager
def neighbours(url: str, pid: int, num_clients: int, pictures: Sequence[str]) -> Iterator[Notes]:
    """Clients that chat for the time of the block, every second one about pictures. Answers that run then are read."""
    notes, is_over = Notes(clock=cpu_clock(pid)), threading.Event()

    def run(number: int) -> None:
        rng = random.Random(number)
        headers = {"Authorization": f"Bearer neighbour-{number}"}
        with httpx.Client(base_url=url, timeout=120, headers=headers) as client:
            while not is_over.is_set():
                content: list[dict[str, Any]] = [{"type": "text", "text": rng.choice(QUESTIONS)}]
                if number % 2:
                    content.insert(0, {"type": "image_url", "image_url": {"url": rng.choice(pictures)}})
                try:
                    _chat(client, content, notes)
                except (httpx.HTTPError, ValueError) as error:
                    notes.lost[type(error).__name__] += 1
                    time.sleep(0.2)
                time.sleep(rng.random() * 0.2)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield notes
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _chat(client: httpx.Client, content: list[dict[str, Any]], notes: Notes) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "stream": True, "max_tokens": 100}
    body |= {"ignore_eos": True, "return_token_ids": True}  # an event per token, also for one without a text
    started = time.perf_counter()
    times: list[float] = []
    cpu_times: list[float] = []
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            notes.lost[f"status {response.status_code}"] += 1
            time.sleep(0.2)
            return
        last = ""
        for line in response.iter_lines():
            if line:
                times.append(time.perf_counter())
                cpu_times.append(time.clock_gettime(notes.clock))
                last = line
    if last != "data: [DONE]":
        notes.lost["unfinished stream"] += 1
        return
    notes.num_finished += 1
    notes.first_s.append(times[0] - started)
    gaps_s = [b - a for a, b in itertools.pairwise(times)]
    notes.gaps_s += gaps_s
    notes.computed_s += [min(gap_s, b - a) for gap_s, (a, b) in zip(gaps_s, itertools.pairwise(cpu_times), strict=True)]


# --- the hostile client ----------------------------------------------------------------------------------------------


class HostileClient:
    """One request after another, each odd in its own way, until it is closed."""

    def __init__(self, url: str, cases: Sequence[Case]) -> None:
        rng = random.Random(0)
        self._address = urlsplit(url)
        # Made before anything is measured: making them holds the GIL that the neighbours' clients need.
        self._bodies = [
            (case.path, case.make(int(rng.choice(SIZES_MB) * 1e6))) for case in rng.choices(cases, k=NUM_BODIES)
        ]
        self._is_over = threading.Event()
        self.statuses: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        for number, (path, body) in enumerate(itertools.cycle(self._bodies)):
            if self._is_over.is_set():
                return
            self.statuses[self._post(path, body, timeout_s=120)] += 1
            if number % 20 == 0:
                self._send_garbage()
            if number % 20 == 10:
                self._ask_too_much()

    def _post(self, path: str, body: bytes, *, timeout_s: float) -> int:
        """The status; 0 for none."""
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=timeout_s)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {HOSTILE_KEY}"}
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
                connection.request("POST", path, body, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def _ask_too_much(self) -> None:
        """128 long answers, for which nobody waits."""
        body = {"messages": [{"role": "user", "content": "describe"}], "n": 128, "ignore_eos": True, "max_tokens": 2000}
        self._post("/v1/chat/completions", json.dumps(body).encode(), timeout_s=LEAVES_AFTER_S)

    def _send_garbage(self) -> None:
        garbage = random.Random(1).randbytes(1 << 20)
        place = self._address.hostname, self._address.port or 80
        with socket.create_connection(place, timeout=10) as connection, contextlib.suppress(OSError):
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n" + garbage)
            connection.recv(1000)


# --- the measurement -------------------------------------------------------------------------------------------------


def run_mixed(url: str, pid: int, cases: Sequence[Case], *, seconds: float, num_clients: int) -> bool:
    """Print what the neighbours notice without and with the hostile client. Returns whether none of their answers were
    lost, and none of its requests was the server's fault."""
    pictures = make_pictures(NUM_PICTURES)
    with neighbours(url, pid, num_clients, pictures):
        time.sleep(min(20.0, seconds / 4))  # not counted: caches fill
    with neighbours(url, pid, num_clients, pictures) as quiet:
        time.sleep(min(60.0, seconds / 2))
    hostile = HostileClient(url, cases)
    try:
        with neighbours(url, pid, num_clients, pictures) as beside:
            time.sleep(seconds)
    finally:
        hostile.close()
    for what, notes in (("without", quiet), ("beside_hostile_client", beside)):
        print(json.dumps({"what": what, "clients": num_clients, **notes.summarize()}))
    print(
        json.dumps({"what": "hostile_client", "seconds": seconds, "statuses": dict(sorted(hostile.statuses.items()))})
    )
    faults = [status for status in hostile.statuses if status >= 500]
    return bool(beside.num_finished) and not (quiet.lost or beside.lost or faults)
