"""Throughput and latency over HTTP by the steps by which the peers' servers were measured.

    python benchmarks/serve.py MODEL_DIR [--only small,text,image,shared,mixed] [--scale 1.0] [--clients 6]
        [--url URL] [--plot FILE.png] [-- OPTIONS OF api_server]

Starts `seesay serve api_server` on loopback, with the options behind `--`, or takes the server at `--url`. Processes of
clients stream its chat completions:

*small*: 2,000 chats of 12 words, 16 tokens out, 512 at a time: the cost of HTTP.
*text*: 512 chats of 480 words, 256 tokens out, 256 at a time.
*image*: 256 chats, each with a 1024 x 1024 picture of its own (a JPEG data URL), 128 out, 128 at a time.
*shared*: 128 chats, 8 on each of 16 pictures, 64 out, all at once.
*mixed*: for 20 seconds, 16 texts (256 out) and 6 pictures (128 out) a second arrive at random moments.

`--scale` takes that share of the requests, and of the time of *mixed*. Prints a line `RESULT {JSON}` per figure: whole
answers per second; time to the first token, time per token after it, and the longest gap between two pieces of an
answer, by kind of request; *in_time*, the share of requests whose first token came within 2 s and whose others took 50
ms at most on average; and *client_cores*, the processor time of the busiest client process per second, which must stay
well below 1. A request that fails is counted, and the first one's error is named.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from h200 import report
from server_process import model_name_of, running_server

from seesay.bench import workload
from seesay.bench.http_load import Job, Target, load, make_body
from seesay.bench.outcomes import Outcome, percentile
from seesay.bench.plotting import Panel, add_plot_option, make_bars, save_plot
from seesay.bench.workload import Request

WORKLOADS = ("small", "text", "image", "shared", "mixed")
SERVER_OPTIONS = ("--session-len", "16384", "--max-concurrent-requests", "1024", "--max-queue", "4096")
MIXED_S, TEXTS_PER_S, IMAGES_PER_S = 20.0, 16, 6
IN_TIME_FIRST_S, IN_TIME_TOKEN_S = 2.0, 0.05


def make_jobs(name: str, model: str, *, scale: float, side_px: int) -> tuple[list[Job], int]:
    """Return the requests of a workload, in order, and how many run at a time."""

    def share(num: int) -> int:
        return max(1, int(num * scale))

    def at_once(requests: Iterable[Request]) -> list[Job]:
        return [Job(0.0, name, make_body(model, request)) for request in requests]

    match name:
        case "small":
            return at_once(workload.text_requests(share(2000), 12, 16, seed=31)), 512
        case "text":
            return at_once(workload.text_requests(share(512), seed=32)), 256
        case "image":
            return at_once(workload.image_requests(share(256), side_px=side_px, seed=33)), 128
        case "shared":
            jobs = at_once(workload.shared_image_requests(share(16), side_px=side_px, seed=34))
            return jobs, len(jobs)
    rng, jobs = random.Random(35), list[Job]()
    num_texts, num_images = (int(1.2 * rate * MIXED_S * scale) + 1 for rate in (TEXTS_PER_S, IMAGES_PER_S))
    texts = workload.text_requests(num_texts, seed=36)
    images = workload.image_requests(num_images, side_px=side_px, seed=37)
    for kind, rate, requests in (("text", TEXTS_PER_S, texts), ("image", IMAGES_PER_S, images)):
        at_s = 0.0
        for number, request in enumerate(requests):
            at_s += rng.expovariate(rate)
            if at_s < MIXED_S * scale or number == 0:
                jobs.append(Job(at_s, kind, make_body(model, request)))
    return sorted(jobs, key=lambda job: job.at_s), len(jobs)


def measure_load(url: str, jobs: Sequence[Job], num_at_a_time: int, num_clients: int) -> dict[str, Any]:
    """Send the requests from several processes; return the figures."""
    result = load(Target(url=url), jobs, num_at_a_time, num_clients)
    figures = summarize(result.outcomes, result.seconds)
    return {**figures, "client_cores": round(result.most_cpu_s / result.seconds, 2)}


# --- the figures -----------------------------------------------------------------------------------------------------


def summarize(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Return the figures of a workload that took so long."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    figures: dict[str, Any] = {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(good),
        "seconds": round(seconds, 2),
        "req_per_s": round(len(good) / seconds, 2),
        "out_tok_per_s": round(sum(outcome.num_tokens for outcome in good) / seconds),
    }
    for kind in sorted({outcome.kind for outcome in good}):
        own = [outcome for outcome in good if outcome.kind == kind]
        first_s, token_s = [outcome.first_s for outcome in own], [outcome.token_s for outcome in own]
        figures[kind] = {
            "ttft_s_p50": round(percentile(first_s, 50), 4),
            "ttft_s_p99": round(percentile(first_s, 99), 4),
            "tpot_ms_p50": round(1e3 * percentile(token_s, 50), 2),
            "tpot_ms_p99": round(1e3 * percentile(token_s, 99), 2),
            "gap_ms_p99": round(1e3 * percentile([outcome.longest_gap_s for outcome in own], 99), 1),
        }
    in_time = [outcome.first_s <= IN_TIME_FIRST_S and outcome.token_s <= IN_TIME_TOKEN_S for outcome in good]
    figures["in_time"] = round(sum(in_time) / len(outcomes), 3)
    if len(good) < len(outcomes):
        figures["first_error"] = next(outcome.error for outcome in outcomes if outcome.error is not None)
    return figures


def make_panels(records: Sequence[Mapping[str, Any]]) -> list[Panel]:
    by_kind = [
        {"window": name if name == kind else f"{name}: {kind}", **record[kind]}
        for record in records
        for name in [str(record["what"])]
        for kind in ("small", "text", "image", "shared")
        if kind in record
    ]
    return [
        make_bars("answers per second", records, "what", {"req_per_s": "answers"}),
        make_bars("time to the first token, s", by_kind, "window", {"ttft_s_p50": "median", "ttft_s_p99": "p99"}),
        make_bars("time per token, ms", by_kind, "window", {"tpot_ms_p50": "median", "tpot_ms_p99": "p99"}),
        make_bars("longest gap in an answer, ms", by_kind, "window", {"gap_ms_p99": "p99"}),
        make_bars("share of requests in time", records, "what", {"in_time": "share"}),
    ]


def measure(url: str, names: Sequence[str], *, scale: float, side_px: int, num_clients: int) -> list[dict[str, Any]]:
    """Warm the server up as the peers' were, and print the figures of each workload."""
    model = model_name_of(url)
    for name, share in (("text", 0.1), ("image", 0.05)):
        measure_load(url, *make_jobs(name, model, scale=share * min(1.0, scale), side_px=side_px), num_clients)
    return [
        report(what=name, **measure_load(url, *make_jobs(name, model, scale=scale, side_px=side_px), num_clients))
        for name in names
    ]


def main(argv: Sequence[str] | None = None) -> None:
    own, server_options = _split(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", default=",".join(WORKLOADS), help="names of workloads, with commas")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--side-px", type=int, default=1024, help="of the pictures; the figures are for 1024")
    parser.add_argument("--clients", type=int, default=6, help="client processes; the figures are for 6")
    parser.add_argument("--url", help="a server that runs, in place of one that is started")
    add_plot_option(parser)
    args = parser.parse_args(own)
    names = args.only.split(",")
    if unknown := set(names) - set(WORKLOADS):
        parser.error(f"--only {args.only}: {', '.join(sorted(unknown))} is none of {', '.join(WORKLOADS)}")
    if args.scale <= 0 or args.side_px < 1 or args.clients < 1:
        parser.error("--scale must be above 0, --side-px and --clients at least 1")
    if args.url is not None and server_options:
        parser.error("options behind -- are for the server that is started, not for that at --url")
    started_s = time.perf_counter()
    server = running_server(args.model, [*SERVER_OPTIONS, *server_options])
    with server if args.url is None else nullcontext((args.url, 0)) as (url, _):
        if args.url is None:
            report(what="server_start", seconds=round(time.perf_counter() - started_s, 1))
        records = measure(url, names, scale=args.scale, side_px=args.side_px, num_clients=args.clients)
    if args.plot is not None:
        save_plot(args.plot, f"seesay over HTTP, {args.model} {' '.join(server_options)}".strip(), make_panels(records))


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split at the first `--`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


if __name__ == "__main__":
    main()
