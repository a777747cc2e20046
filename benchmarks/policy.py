"""How a policy for the length of steps shares a GPU between waiting prompts and streamed answers; needs no GPU.

    python benchmarks/policy.py [--policy chunk] [--policy timed:max_step_ms=40] [--only text,image]
        [--times FILE.json] [--slowdown 1.2] [--host one-process] [--misprediction 1.0] [--scale 1.0] [--plot FILE.png]

Drives the real scheduler with a clock (simulator.py) and recorded step times (step_times.py writes such files). The
workloads are those by which servers are compared:

*small*: 2,000 chats of 36 tokens, 16 out, 512 at a time. *text*: 512 chats of 744 tokens, 256 out, 256 at a time.
*image*: 256 chats with a picture each, 1,424 tokens, 128 out, 128 at a time. *mixed*: 20 s of arrivals at random, 16
texts and 6 pictures a second. *interference*: what interference.py does: 16 texts of 800 tokens out, and after 1.5 s 32
pictures, 20 a second. *offline-text* and *offline-image*: the requests of *text* and *image* all at once, with nobody
reading meanwhile.

Policies, both the engine's (seesay/llm/scheduling/step_policy.py): `chunk`, a fixed number of prompt tokens beside
streamed answers, and `timed`, steps of at most `EngineConfig.max_step_ms` by their predicted duration; their fields
follow after a colon. --slowdown: how much longer everything takes on the GPU than was recorded. --host: what Python
costs; in `one-process`, HTTP and engine share one interpreter. --misprediction: the factor by which the durations that
`timed` predicts at start differ from the simulated ones; it observes the simulated ones.

Prints a line `RESULT {JSON}` per policy and workload. `goodput`: the share of requests whose first token comes within
2 s, and the others within 50 ms each on average.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import interference
from h200 import report
from policies import make_step_times
from simulator import UNLIMITED, Answer, Client, Host, Machine, Request, Simulation
from step_model import LinearTimes, RecordedTimes, load_recording

from seesay.bench.plotting import Bars, Panel, add_plot_option, save_plot
from seesay.llm.scheduling.step_policy import FixedChunks, StepPolicy, TimedSteps

RECORDED = Path(__file__).parent / "recorded" / "h200_qwen2.5_vl_7b.json"
WORKLOADS = ("small", "text", "image", "mixed", "interference", "offline-text", "offline-image")
OFFLINE = "offline-"
NUM_CLIENTS = 6
MIXED_S = 20.0
LEAD_S = 1.5
MAX_STEP_MS = 40.0
GOOD_FIRST_S, GOOD_TOKEN_S = 2.0, 0.05

SMALL = Request("small", num_prompt_tokens=36, num_output_tokens=16)
TEXT = Request("text", num_prompt_tokens=744, num_output_tokens=256)
IMAGE = Request("image", num_prompt_tokens=1424, num_output_tokens=128, num_media_tokens=1369, num_patches=5476)
STREAMED_TEXT = Request("text", num_prompt_tokens=110, num_output_tokens=800)
STREAMED_IMAGE = IMAGE._replace(num_prompt_tokens=1390, num_output_tokens=8)

HOSTS = {
    "none": Host(),
    "one-process": Host(
        launch_ms=5.0,
        graph_launch_ms=1.2,
        row_ms=0.01,
        prepare_ms=1.5,
        prepare_picture_ms=4.0,
        decode_picture_ms=15.0,
        token_ms=0.055,
        shares_gil=True,
    ),
    "two-processes": Host(
        launch_ms=5.0,
        graph_launch_ms=1.2,
        row_ms=0.01,
        prepare_ms=1.0,
        prepare_picture_ms=4.0,
        decode_picture_ms=15.0,
        token_ms=0.03,
    ),
}
"""One process: fitted to 310 short chats (12 words in, 16 tokens out) a second over HTTP. Two: what 670 a second by one
frontend would take."""


# --- workloads -------------------------------------------------------------------------------------------------------


def make_clients(workload: str, scale: float) -> list[Client]:
    """The clients of a workload, with that share of its requests."""
    kind = workload.removeprefix(OFFLINE)
    if kind == "small":
        return divide([SMALL] * max(1, int(2000 * scale)), 512)
    if kind in ("text", "image"):
        request, num, at_a_time = (TEXT, 512, 256) if kind == "text" else (IMAGE, 256, 128)
        return divide([request] * max(1, int(num * scale)), at_a_time if kind == workload else num)
    if workload == "mixed":
        return divide(draw_arrivals(scale))
    texts = [STREAMED_TEXT] * max(1, int(16 * scale))
    images = [
        STREAMED_IMAGE._replace(at_s=LEAD_S + index / interference.IMAGES_PER_S)
        for index in range(max(1, int(32 * scale)))
    ]
    return [Client(requests=texts), Client(requests=images)]


def divide(requests: Sequence[Request], at_a_time: int = UNLIMITED) -> list[Client]:
    """The requests in turn to `NUM_CLIENTS` clients, which have `at_a_time` unanswered ones together."""
    each = -(-at_a_time // NUM_CLIENTS)
    return [Client(requests=requests[index::NUM_CLIENTS], at_a_time=each) for index in range(NUM_CLIENTS)]


def draw_arrivals(scale: float) -> list[Request]:
    """Those of the HTTP benchmark, second for second."""
    rng = random.Random(35)
    requests = []
    for request, per_s in ((TEXT, 16), (IMAGE, 6)):
        at_s = 0.0
        for _ in range(int(24 * per_s * scale)):
            at_s += rng.expovariate(per_s)
            if at_s < MIXED_S * scale:
                requests.append(request._replace(at_s=at_s))
    return sorted(requests, key=lambda request: request.at_s)


# --- figures ---------------------------------------------------------------------------------------------------------


def summarize(workload: str, answers: Sequence[Answer]) -> dict[str, Any]:
    if workload == "interference":
        return summarize_interference(answers)
    seconds = max(answer.tokens_at_s[-1] for answer in answers)
    figures: dict[str, Any] = {"req_per_s": round(len(answers) / seconds, 2)}
    for tag in sorted({answer.request.tag for answer in answers}):
        own = [answer for answer in answers if answer.request.tag == tag]
        first_s, token_s = list(map(find_first_s, own)), list(map(find_token_s, own))
        gaps_s = [max((later - earlier for earlier, later in pairwise(each.tokens_at_s)), default=0.0) for each in own]
        figures[tag] = {
            "ttft_s_p50": round(find_quantile(first_s, 0.5), 3),
            "ttft_s_p99": round(find_quantile(first_s, 0.99), 3),
            "tpot_ms_p50": round(1e3 * find_quantile(token_s, 0.5), 1),
            "gap_ms_p99": round(1e3 * find_quantile(gaps_s, 0.99), 1),
            "gap_ms_max": round(1e3 * max(gaps_s), 1),
        }
    is_good = [find_first_s(each) <= GOOD_FIRST_S and find_token_s(each) <= GOOD_TOKEN_S for each in answers]
    return figures | {"goodput": round(statistics.mean(is_good), 3)}


def summarize_interference(answers: Sequence[Answer]) -> dict[str, Any]:
    """As interference.py does it."""
    images = [answer for answer in answers if answer.request.tag == "image"]
    marks = interference.Marks(texts=[answer.tokens_at_s for answer in answers if answer.request.tag == "text"])
    marks.first_images_at = LEAD_S
    marks.images_done_at = max(answer.tokens_at_s[-1] for answer in images)
    marks.first_token_s = list(map(find_first_s, images))
    return interference.summarize(marks)


def find_first_s(answer: Answer) -> float:
    return answer.tokens_at_s[0] - answer.sent_at_s


def find_token_s(answer: Answer) -> float:
    """Seconds per token after the first."""
    return (answer.tokens_at_s[-1] - answer.tokens_at_s[0]) / max(1, len(answer.tokens_at_s) - 1)


def find_quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def make_panels(records: Sequence[dict[str, Any]]) -> list[Panel]:
    """A panel per figure, with a group of bars per workload."""
    panels: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        what, name = record["what"], record["policy"]
        for key, value in record.items():
            nested = value if isinstance(value, dict) else {"": value} if isinstance(value, (int, float)) else {}
            for inner, number in nested.items():
                title, group = (inner, f"{what}, {key}s") if inner else (key, what)
                panels.setdefault(title, {}).setdefault(group, {})[name] = number
    return [Bars(title=title, values=values) for title, values in panels.items()]


# --- policies --------------------------------------------------------------------------------------------------------


def parse_policy(text: str) -> Callable[[LinearTimes], StepPolicy]:
    """`NAME` or `NAME:field=value,field=value`. Raises `ValueError` for what is not known."""
    name, _, options = text.partition(":")
    values: dict[str, str] = dict(option.split("=", 1) for option in options.split(",") if "=" in option)
    if options and len(values) != options.count(",") + 1:
        raise ValueError(f"--policy {text}: fields must be name=value with commas between them, got {options!r}")
    if name == "chunk":
        chunks = {"max_streamed_tokens": 368, "max_encoding_tokens": 1024}
        policy = FixedChunks(**chunks | {key: int(value) for key, value in pick_fields(text, values, chunks).items()})
        return lambda _: policy
    if name != "timed":
        raise ValueError(f"--policy {text}: must be chunk or timed, got {name!r}")
    known = [
        "max_step_ms",
        *(field.name for field in fields(TimedSteps) if field.name not in ("times", "max_step_s", "least_tokens")),
    ]
    timed_fields: dict[str, Any] = {key: float(value) for key, value in pick_fields(text, values, known).items()}
    max_step_s = timed_fields.pop("max_step_ms", MAX_STEP_MS) / 1e3
    return lambda times: TimedSteps(times=make_step_times(times), max_step_s=max_step_s, **timed_fields)


def pick_fields(text: str, values: dict[str, str], known: Sequence[str] | dict[str, int]) -> dict[str, str]:
    if unknown := set(values) - set(known):
        raise ValueError(f"--policy {text}: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    return values


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", action="append", help="may be given several times; without it chunk and timed")
    parser.add_argument("--only", help="names of workloads, with commas")
    parser.add_argument("--times", type=Path, default=RECORDED, metavar="FILE.json")
    parser.add_argument("--slowdown", type=float, default=1.2)
    parser.add_argument("--host", choices=HOSTS, default="two-processes")
    parser.add_argument("--misprediction", type=float, default=1.0)
    parser.add_argument("--scale", type=float, default=1.0)
    add_plot_option(parser)
    args = parser.parse_args(argv)
    asked = WORKLOADS if args.only is None else args.only.split(",")
    if unknown := set(asked) - set(WORKLOADS):
        parser.error(f"--only {args.only}: {', '.join(sorted(unknown))} is none of {', '.join(WORKLOADS)}")
    if min(args.slowdown, args.misprediction, args.scale) <= 0 or args.scale > 1:
        parser.error("--slowdown and --misprediction must be more than 0, --scale more than 0 and at most 1")
    try:
        policies = {text: parse_policy(text) for text in args.policy or ("chunk", "timed")}
    except ValueError as error:
        parser.error(str(error))
    recording = load_recording(args.times)
    machine = Machine(times=RecordedTimes(recording), slowdown=args.slowdown, host=HOSTS[args.host])
    settings = {"slowdown": args.slowdown, "host": args.host, "misprediction": args.misprediction}
    report(what="machine", device=recording.device, model=recording.model, times=recording.source, **settings)
    records: list[dict[str, Any]] = []
    for text, make_policy in policies.items():
        for workload in asked:
            predicted = machine.times.linear.slow_down(args.slowdown * args.misprediction)
            simulation = Simulation(
                machine,
                make_clients(workload, args.scale),
                make_policy(predicted),
                is_streamed=not workload.startswith(OFFLINE),
            )
            records.append({"what": workload, "policy": text, **summarize(workload, simulation.run())})
            report(**records[-1])
    if args.plot is not None:
        save_plot(args.plot, f"{recording.model} on {recording.device}, simulated", make_panels(records))


if __name__ == "__main__":
    main()
