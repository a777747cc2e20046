"""Large and odd request bodies against a live server: how long each delays somebody else's stream, and its memory.

    python benchmarks/hostile_bodies.py [MODEL] [--size-mb 0.05 0.25 0.5 2 20] [--repeats 3] [--only TEXT]
        [--plot FILE.png]

Starts `seesay serve api_server` in a process of its own, on a free port of loopback. While a neighbour reads one
stream, another client sends one body after another: for every route of the server's OpenAPI document that takes JSON,
and every text, list and object in its schema, that field grown to each of `--size-mb` in every way that may hurt
(`SHAPES`); then legitimate bodies with large pictures. Prints a JSON line per body: the status, how long the answer
took, `stall_ms` (the neighbour's longest gap between two tokens meanwhile, less its usual longest gap) and `memory`
(the growth of the server's peak memory, as a multiple of the body). Noise of the machine only ever adds to a stall, so
it is the least of up to `--repeats`; memory is the most. Ends with status 1 when a stall is longer than
`--max-stall-ms`, when memory grew by more than 4 times the body (and by more than 32 MB, which a small body may take;
pixels of a picture have limits of their own), or with a 5xx.

    python benchmarks/hostile_bodies.py --mixed 300 [--clients 8]

Runs a mixed load instead: chats with pictures and without, by so many clients with an API key each, for so many
seconds, while one hostile client sends such bodies, garbage, and requests of 128 long answers all the time. Prints the
clients' longest gap between tokens, as much of one as the server computed, and their times to the first token, before
it begins and beside it. Ends with status 1 when an answer of theirs is lost, or with a 5xx.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from hostile_load import cpu_clock, make_keys, run_mixed
from hostile_shapes import Case, find_cases, picture_cases
from server_process import resident_bytes, running_server

from seesay.bench.plotting import Panel, add_plot_option, make_bars, save_plot

MAX_MEMORY_RATIO = 4.0
NUM_PLOTTED = 12
SMALL_GROWTH_BYTES = 32 << 20
QUIET_S = 0.15
"""The neighbour's usual longest gap is measured over this time before each body."""
SHORT_S = 0.01
"""A body that delays the neighbour less is sent once."""


# --- clients ---------------------------------------------------------------------------------------------------------


class Gap(NamedTuple):
    """A time between two tokens. `computed_s` is the CPU time that the server used meanwhile, at most `seconds`."""

    seconds: float
    computed_s: float


class Neighbour:
    """A client that reads one long stream after another, and notes when each token came, and the server's CPU time."""

    def __init__(self, url: str, pid: int) -> None:
        self._url = url
        self._clock = cpu_clock(pid)
        self._times: list[tuple[float, float]] = []
        self._is_over = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while not self._times and self.failure is None:
            time.sleep(0.001)

    def _run(self) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        body |= {"ignore_eos": True, "return_token_ids": True}  # an event per token, also for one without a text
        try:
            with httpx.Client(base_url=self._url, timeout=60) as client:
                while not self._is_over.is_set():
                    with client.stream("POST", "/v1/chat/completions", json={**body, "seed": 1}) as response:
                        response.raise_for_status()
                        for line in response.iter_lines():
                            if line:
                                self._times.append((time.perf_counter(), time.clock_gettime(self._clock)))
                            if self._is_over.is_set():
                                return
        except Exception as error:
            self.failure = error

    def longest_gap(self, since: float, until: float) -> Gap:
        """The longest times between two tokens of which the later came after `since`, the earlier before `until`."""
        if self.failure is not None:
            raise self.failure
        while len(self._times) < 2 or self._times[-1][0] <= until:  # whatever holds it up now began before
            time.sleep(0.001)
        times = list(self._times)
        gaps = [
            (b - a, cpu_b - cpu_a) for (a, cpu_a), (b, cpu_b) in itertools.pairwise(times) if b > since and a < until
        ]
        return Gap(max(seconds for seconds, _ in gaps), max(map(min, gaps)))

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(60)


def post(url: str, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the answer. Sends without a copy, and the GIL is free meanwhile."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except ConnectionResetError:
        return 0, b""
    finally:
        connection.close()


# --- one body after another ------------------------------------------------------------------------------------------


def read_peak_bytes(pid: int) -> int:
    """The most memory that a process had at once since `reset_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def measure(case: Case, size: int, *, url: str, pid: int, neighbour: Neighbour, repeats: int) -> dict[str, Any]:
    """Send the body of a case until it delays nobody, up to `repeats` times, and take the figures."""
    body = case.make(size)
    stalls_s: list[float] = []
    computed_s: list[float] = []
    seconds: list[float] = []
    growths: list[int] = []
    statuses, answer = set(), b""
    while len(stalls_s) < repeats and (not stalls_s or min(stalls_s) > SHORT_S):
        begun = time.perf_counter()
        time.sleep(QUIET_S)
        quiet = neighbour.longest_gap(begun, time.perf_counter())
        reset_peak(pid)
        before = resident_bytes(pid)
        started = time.perf_counter()
        status, answer = post(url, case.path, body)
        ended = time.perf_counter()
        gap = neighbour.longest_gap(started, ended)
        stalls_s.append(gap.seconds - quiet.seconds)
        computed_s.append(gap.computed_s - quiet.computed_s)
        seconds.append(ended - started)
        growths.append(max(0, read_peak_bytes(pid) - before))
        statuses.add(status)
    return {
        "path": case.path,
        "field": case.field,
        "shape": case.shape,
        "body_mb": round(len(body) / 1e6, 2),
        "status": max(statuses),
        "code": _code_of(answer),
        "seconds": round(min(seconds), 3),
        "stall_ms": round(1e3 * max(0.0, min(stalls_s)), 1),
        "computed_ms": round(1e3 * max(0.0, min(computed_s)), 1),
        "memory_mb": round(max(growths) / 1e6, 1),
        "memory": round(max(growths) / len(body), 2),
    }


def _code_of(answer: bytes) -> str | None:
    try:
        error = json.loads(answer)["error"]
        return str(error.get("code") or error["message"][:60])
    except (ValueError, KeyError, TypeError, AttributeError):  # it was answered
        return None


def is_good(figure: Mapping[str, Any], max_stall_ms: float) -> bool:
    grew_little = (
        figure["shape"] == "one picture"
        or figure["memory"] <= MAX_MEMORY_RATIO
        or figure["memory_mb"] * 1e6 <= SMALL_GROWTH_BYTES
    )
    return bool(figure["stall_ms"] <= max_stall_ms and grew_little and figure["status"] < 500)


def collect_cases(url: str, args: argparse.Namespace) -> list[Case]:
    """The cases that were asked for."""
    found = [*find_cases(httpx.get(f"{url}/openapi.json", timeout=60).json()), *picture_cases()]
    cases = {f"{case.path} {case.field} {case.shape}": case for case in found}  # of alternatives, one each
    return [case for name, case in cases.items() if args.only in name]


def run_cases(url: str, pid: int, args: argparse.Namespace) -> bool:
    """Measure all cases, and print their figures. Returns whether all are good."""
    chosen = collect_cases(url, args)
    neighbour = Neighbour(url, pid)
    figures = []
    try:
        for case, size_mb in itertools.product(chosen, args.size_mb):
            size = int(size_mb * 1e6)
            figure = measure(case, size, url=url, pid=pid, neighbour=neighbour, repeats=args.repeats)
            figures.append(figure)
            print(json.dumps({"what": "hostile_body", **figure}), flush=True)
    finally:
        neighbour.close()
    bad = [figure for figure in figures if not is_good(figure, args.max_stall_ms)]
    large = [
        figure["memory"]
        for figure in figures
        if figure["memory_mb"] * 1e6 > SMALL_GROWTH_BYTES and figure["shape"] != "one picture"
    ]
    summary = {
        "what": "hostile_bodies",
        "bodies": len(figures),
        "longest_stall_ms": max(figure["stall_ms"] for figure in figures),
        "most_computed_ms": max(figure["computed_ms"] for figure in figures),
        "median_stall_ms": statistics.median(figure["stall_ms"] for figure in figures),
        "most_memory_mb": max(figure["memory_mb"] for figure in figures),
        "most_memory": max(large, default=0.0),
        "over_the_limits": len(bad),
    }
    print(json.dumps(summary))
    if args.plot is not None:
        save_plot(args.plot, f"seesay, {args.model}: {len(figures)} hostile bodies", make_panels(figures))
    return not bad


def make_panels(figures: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """The bodies that stalled a stream for longest, and those that took most memory."""

    def worst(key: str) -> list[dict[str, Any]]:
        ordered = sorted(figures, key=lambda figure: float(figure[key]), reverse=True)[:NUM_PLOTTED]
        return [{**figure, "body": f"{figure['path']} {figure['field']} {figure['shape']}"} for figure in ordered]

    return [
        make_bars("longest stalls of another's stream, ms", worst("stall_ms"), "body", {"stall_ms": "stall"}),
        make_bars("most memory, MB", worst("memory_mb"), "body", {"memory_mb": "memory"}),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo", metavar="MODEL")
    parser.add_argument("--size-mb", type=float, nargs="+", default=[0.05, 0.25, 0.5, 2.0, 20.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="bodies whose 'path field shape' contains this")
    parser.add_argument("--max-stall-ms", type=float, default=50.0)
    parser.add_argument("--mixed", type=float, metavar="SECONDS", help="a mixed load beside one hostile client instead")
    parser.add_argument("--clients", type=int, default=8, help="of the mixed load, beside the hostile one")
    parser.add_argument("--server-options", default="", help="further options of `seesay serve api_server`")
    add_plot_option(parser)
    args = parser.parse_args(argv)
    if args.mixed is not None:
        os.environ["SEESAY_API_KEYS"] = ",".join(make_keys(args.clients))
        with running_server(args.model, args.server_options.split()) as (url, pid):
            cases = collect_cases(url, args)
            return 0 if run_mixed(url, pid, cases, seconds=args.mixed, num_clients=args.clients) else 1
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)  # or else the server grows into memory that it freed before
    with running_server(args.model, args.server_options.split()) as (url, pid):
        return 0 if run_cases(url, pid, args) else 1


if __name__ == "__main__":
    raise SystemExit(main())
