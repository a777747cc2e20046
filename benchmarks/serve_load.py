"""Many streaming chats with pictures against a live server, half of which hang up at random.

    python benchmarks/serve_load.py [MODEL] [--seconds 60] [--clients 64] [--pictures 200] [--warm-up 30]
        [--plot FILE.png]

Starts `seesay serve api_server` in a process of its own, on a free port of loopback. Every client asks about one
picture after another; those with an odd number leave each stream at a random moment, before its first token or later.
Prints JSON lines: seconds to the first token, per token after it and end to end (p50, p90, p99 of the streams that were
read to their end), then a summary. Ends with status 1 when anything was lost, when the server's memory grew, or when KV
blocks are still in use after the last client is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from server_process import resident_bytes, running_server

from seesay.bench.plotting import Bars, Lines, Panel, add_plot_option, save_plot
from seesay.demo.scenes import sample_scene

QUESTIONS = ("describe this image", "how many shapes are there?", "what do you see?")
IDLE_S = 20.0


@dataclass
class Tally:
    """The measurements of all streams."""

    first_s: list[float] = field(default_factory=list)
    per_token_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_left: int = 0
    lost: Counter[str] = field(default_factory=Counter)


def read_metrics(url: str) -> dict[str, float]:
    """The metrics without labels, by name."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    return {name: float(value) for name, value in re.findall(r"^(seesay_\w+) (\S+)$", text, re.MULTILINE)}


# --- the clients -----------------------------------------------------------------------------------------------------


def make_pictures(count: int) -> list[str]:
    """Data URLs of drawn scenes."""
    urls = []
    for seed in range(count):
        buffer = io.BytesIO()
        sample_scene(seed=seed).images[0].save(buffer, "PNG")
        urls.append("data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode())
    return urls


async def run_client(
    http: httpx.AsyncClient, model: str, pictures: Sequence[str], tally: Tally, *, number: int, until: float
) -> None:
    """One chat after another until the time is over; those that run then are finished."""
    rng = random.Random(number)
    while time.monotonic() < until:
        leaves_after = rng.randint(0, 12) if number % 2 and rng.random() < 0.9 else None
        parts = [
            {"type": "image_url", "image_url": {"url": rng.choice(pictures)}},
            {"type": "text", "text": rng.choice(QUESTIONS)},
        ]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": parts}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 64,
        }
        try:
            await ask(http, body, tally, leaves_after=leaves_after)
        except (httpx.HTTPError, ValueError) as error:
            tally.lost[type(error).__name__] += 1
            await asyncio.sleep(0.2)


async def ask(http: httpx.AsyncClient, body: dict[str, Any], tally: Tally, *, leaves_after: int | None) -> None:
    """Read one stream to its end, or leave it after so many events."""
    started = time.monotonic()
    first_at: float | None = None
    last_at = started
    reasons, num_tokens, is_done, num_events = [], 0, False, 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            tally.lost[f"status {response.status_code}"] += 1
            await asyncio.sleep(0.2)
            return
        async for line in response.aiter_lines():
            if leaves_after is not None and num_events >= leaves_after:
                tally.num_left += 1
                return
            if not line.startswith("data: "):
                continue
            num_events += 1
            if line == "data: [DONE]":
                is_done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                tally.lost["error event"] += 1
                return
            for choice in event["choices"]:
                if choice["delta"].get("content"):
                    last_at = time.monotonic()
                    first_at = first_at or last_at
                if choice["finish_reason"] is not None:
                    reasons.append(choice["finish_reason"])
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
    if not is_done or len(reasons) != 1:
        tally.lost["unfinished stream"] += 1
        return
    tally.num_tokens += num_tokens
    first_at = first_at or time.monotonic()  # an answer without text
    last_at = max(last_at, first_at)
    tally.first_s.append(first_at - started)
    tally.total_s.append(last_at - started)
    if num_tokens > 1:
        tally.per_token_s.append((last_at - first_at) / (num_tokens - 1))


async def watch_memory(pid: int, until: float, samples: list[int]) -> None:
    while time.monotonic() < until:
        samples.append(resident_bytes(pid))
        await asyncio.sleep(0.5)


async def run_load(url: str, pid: int, args: argparse.Namespace) -> tuple[Tally, list[int]]:
    tally, memory, warming = Tally(), list[int](), Tally()
    pictures = make_pictures(args.pictures)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(120), limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        for seconds, counted, watched in ((args.warm_up, warming, list[int]()), (args.seconds, tally, memory)):
            until = time.monotonic() + seconds
            clients = [
                run_client(http, model, pictures, counted, number=number, until=until) for number in range(args.clients)
            ]
            await asyncio.gather(watch_memory(pid, until, watched), *clients)
    tally.lost += warming.lost
    return tally, memory


# --- the figures -----------------------------------------------------------------------------------------------------


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 4) for p in (50, 90, 99)}


def growth_bytes(samples: Sequence[int]) -> int:
    """From the first quarter of the time to the last one."""
    quarter = max(1, len(samples) // 4)
    return int(statistics.median(samples[-quarter:]) - statistics.median(samples[:quarter]))


def wait_until_idle(url: str) -> dict[str, float]:
    """The metrics once nothing runs, or after `IDLE_S` whatever they are."""
    deadline = time.monotonic() + IDLE_S
    while True:
        metrics = read_metrics(url)
        busy = sum(metrics[f"seesay_{name}"] for name in ("engine_preparing", "engine_running", "engine_waiting"))
        if (not busy and not metrics["seesay_kv_blocks_used"]) or time.monotonic() > deadline:
            return metrics
        time.sleep(0.1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo", metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--pictures", type=int, default=200, help="how many different ones are shown")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds of the same load before, not counted")
    # What fills up slowly is bounded (caches; on the CPU oneDNN's kernels for the 1024 latest shapes). A leak of one
    # picture per request would be ten times as much.
    parser.add_argument("--max-growth-mb", type=float, default=128.0, help="growth of memory that still is flat")
    parser.add_argument("--server-options", default="", help="further options of `seesay serve api_server`")
    add_plot_option(parser)
    args = parser.parse_args(argv)
    with running_server(args.model, args.server_options.split()) as (url, pid):
        tally, memory = asyncio.run(run_load(url, pid, args))
        metrics = wait_until_idle(url)
    latencies = {
        "time_to_first_token_s": tally.first_s,
        "time_per_output_token_s": tally.per_token_s,
        "end_to_end_s": tally.total_s,
    }
    latencies_at = {what: percentiles(values) for what, values in latencies.items() if values}
    for what, figures in latencies_at.items():
        print(json.dumps({"what": what, "count": len(latencies[what]), **figures}))
    growth_mb = growth_bytes(memory) / 2**20
    summary = {
        "what": "serve_load",
        "clients": args.clients,
        "seconds": args.seconds,
        "finished": len(tally.total_s),
        "left": tally.num_left,
        "lost": dict(tally.lost),
        "requests_per_s": round((len(tally.total_s) + tally.num_left) / args.seconds, 2),
        "tokens_per_s": round(tally.num_tokens / args.seconds, 1),
        "memory_mb": round(statistics.median(memory[-max(1, len(memory) // 4) :]) / 2**20, 1),
        "memory_growth_mb": round(growth_mb, 1),
        "kv_blocks_used_after": int(metrics["seesay_kv_blocks_used"]),
        "preemptions": int(metrics["seesay_preemptions_total"]),
    }
    print(json.dumps(summary))
    if args.plot is not None:
        panels: list[Panel] = [
            Bars(title=what.removesuffix("_s").replace("_", " ") + ", s", values={f"{args.clients} clients": figures})
            for what, figures in latencies_at.items()
        ]
        times_s = [args.seconds * (index + 0.5) / len(memory) for index in range(len(memory))]
        resident = {"server": (times_s, [num_bytes / 2**20 for num_bytes in memory])}
        panels.append(Lines(title="resident memory, MB", x_title="seconds", series=resident))
        save_plot(args.plot, f"seesay, {args.model}: {args.clients} clients", panels)
    is_good = tally.total_s and not tally.lost and not summary["kv_blocks_used_after"]
    return 0 if is_good and growth_mb <= args.max_growth_mb else 1


if __name__ == "__main__":
    raise SystemExit(main())
