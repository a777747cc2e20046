"""Latency and throughput of the offline pipeline by the steps by which the peers' figures were measured.

    python benchmarks/h200.py MODEL_DIR [--only single,text,image,shared,small] [--scale 1.0] [--max-batch-size 256]
        [--max-step-ms 40] [--engine-process both] [--tp N] [--encoder-device cuda:1] [--plot FILE.png]
    python benchmarks/h200.py MODEL_DIR --trace FOLDER [--only single,text,image,shared,small] [--scale 1.0]

*start*: seconds from the import of seesay to a pipeline that answers. *single*: milliseconds to the first token of one
request with one picture, and per token after it. *text*, *image*, *shared*, *small* (2,000 prompts of 12 words, 16
tokens out): all requests given at once, until the last answer is complete; *stages* in their figures says where the
time went, as described in stages.py. `--scale` takes that share of the requests. `--engine-process both` measures
everything with the engine in a thread, then in a process of its own.

With `--trace` a profile is taken instead. *gaps*: for 1 to 256 text answers at once, of a window of steps in which each
grows by one token: the share of the window in which the GPU computed or copied, and the longest time in which it did
neither. *where*, for what `--only` names: the same of the whole workload, and how many milliseconds each stream and
the costliest kernels took. The traces (for Perfetto or chrome://tracing) stay in the folder.

Prints a line `RESULT {JSON}` per figure.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forms import FORMS, add_form_option, name_forms
from placement import add_placement_options, engine_placement, vision_placement
from stages import StageWatch, sum_up_spent

from seesay.bench import workload
from seesay.bench.plotting import Panel, add_plot_option, make_bars, save_plot
from seesay.bench.workload import Request

if TYPE_CHECKING:
    from seesay import Pipeline, Response

os.environ.setdefault("HF_HUB_OFFLINE", "1")

WORKLOADS = ("single", "text", "image", "shared", "small")
TRACED_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TRACED_STEPS, UNTRACED_STEPS = 40, 12
LONG_ANSWER_TOKENS = 4000
NUM_KERNELS, NAME_LENGTH = 16, 60


def report(**figures: Any) -> dict[str, Any]:
    """Print the figures; returns them."""
    print("RESULT " + json.dumps({"engine": "seesay", **figures}), flush=True)
    return figures


def open_pipeline(model: str, vision: Mapping[str, Any] | None = None, **options: Any) -> Pipeline:
    """The pipeline as all figures are measured, importing seesay first; `options` are more of `EngineConfig`'s, and
    `vision` has those of `VisionConfig`."""
    from seesay import PytorchEngineConfig, VisionConfig, pipeline

    config = PytorchEngineConfig(**{"session_len": 16384, "max_batch_size": 256, **options})
    return pipeline(model, config, vision_config=VisionConfig(**(vision or {})))


def given(**options: Any) -> dict[str, Any]:
    """Those of the options that are not None: the others keep the engine's default."""
    return {name: value for name, value in options.items() if value is not None}


def run(pipe: Pipeline, requests: Sequence[Request]) -> list[Response]:
    """Answer all requests. Raises `RuntimeError` when one of them failed."""
    from seesay import GenerationConfig

    configs = [
        GenerationConfig(do_sample=False, max_new_tokens=n, min_new_tokens=n, ignore_eos=True) for _, _, n in requests
    ]
    answers = pipe([(text, images) if images else text for text, images, _ in requests], gen_config=configs)
    for answer in answers:
        if answer.finish_reason == "error":
            raise RuntimeError(answer.text[:500])
    return answers


# --- speed -----------------------------------------------------------------------------------------------------------


def measure_single(pipe: Pipeline, side_px: int) -> dict[str, Any]:
    """One request at a time; every picture is new. `spent_s` is of the requests for a first token."""
    answers: list[Response] = []

    def times_of(num_output_tokens: int, seeds: Iterable[int]) -> Callable[[], object]:
        work = iter(
            [
                workload.image_requests(1, side_px=side_px, num_output_tokens=num_output_tokens, seed=seed)
                for seed in seeds
            ]
        )
        return lambda: answers.extend(run(pipe, next(work)))

    first_s = workload.median_time_s(times_of(1, range(20, 26)), 5, 1)
    spent = sum_up_spent([answer.timings for answer in answers[1:] if answer.timings is not None])
    whole_s = workload.median_time_s(times_of(129, range(40, 44)), 3, 1)
    return {
        "ttft_ms": round(1e3 * first_s, 1),
        "tpot_ms": round(1e3 * (whole_s - first_s) / 128, 2),
        "spent_s": spent,
    }


def measure_queue(pipe: Pipeline, requests: Sequence[Request]) -> dict[str, Any]:
    """All requests at once, and where their time went."""
    watch = StageWatch(pipe)
    with watch.watching():
        started_s = time.perf_counter()
        answers = run(pipe, requests)
        seconds = time.perf_counter() - started_s
    num_in = sum(answer.input_token_len for answer in answers)
    num_out = sum(answer.generate_token_len for answer in answers)
    return {
        "requests": len(requests),
        "seconds": round(seconds, 2),
        "req_per_s": round(len(requests) / seconds, 2),
        "in_tok_per_s": round(num_in / seconds),
        "out_tok_per_s": round(num_out / seconds),
        "stages": watch.summarize(answers),
    }


def make_figures(pipe: Pipeline, scale: float, side_px: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Map each workload to the function that measures it."""

    def share(num: int) -> int:
        return max(1, int(num * scale))

    return {
        "single": lambda: measure_single(pipe, side_px),
        "text": lambda: measure_queue(pipe, workload.text_requests(share(512))),
        "image": lambda: measure_queue(pipe, workload.image_requests(share(256), side_px=side_px)),
        "shared": lambda: measure_queue(pipe, workload.shared_image_requests(share(16), side_px=side_px)),
        "small": lambda: measure_queue(pipe, workload.text_requests(share(2000), 12, 16)),
    }


def warm_up(pipe: Pipeline, side_px: int) -> None:
    run(pipe, workload.text_requests(8, 100, 16, seed=9))
    run(pipe, workload.image_requests(4, side_px=side_px, num_output_tokens=16, seed=10))


def measure_each(
    figures: Mapping[str, Callable[[], dict[str, Any]]], names: Iterable[str], form: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Print the figures of each name, with `form`; where one fails, that is said, and the next is measured."""
    records = []
    for name in names:
        try:
            records.append(report(what=name, **form, **figures[name]()))
        except Exception as error:
            records.append(report(what=name, **form, error=repr(error)[:400]))
    return records


def make_panels(records: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the plots of what `measure_each` or `trace_all` measured."""
    records = name_forms(records, "what", "window")
    return [
        make_bars(
            "one request with a picture, ms", records, "what", {"ttft_ms": "first token", "tpot_ms": "per token"}
        ),
        make_bars("requests/s", records, "what", {"req_per_s": "requests/s"}),
        make_bars("tokens/s", records, "what", {"in_tok_per_s": "in", "out_tok_per_s": "out"}),
        make_bars("milliseconds of a step, by answers at once", records, "batch", {"step_ms": "step"}),
        make_bars("share of the time in which the GPU is busy", records, "window", {"busy_share": "busy"}),
        make_bars("longest time in which the GPU waits, us", records, "window", {"longest_gap_us": "gap"}),
    ]


# --- traces ----------------------------------------------------------------------------------------------------------


def on_gpu(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The kernels, copies and fills of a trace, in the order in which they began."""
    events = (event for event in trace["traceEvents"] if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    return sorted(events, key=lambda event: float(event["ts"]))


def summarize_gaps(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How busy the GPU was from the first event to the end of the last."""
    started_us = ended_us = events[0]["ts"]
    busy_us = longest_us = 0.0
    for event in events:
        first_us, last_us = event["ts"], event["ts"] + event["dur"]
        longest_us = max(longest_us, first_us - ended_us)
        busy_us += max(0.0, last_us - max(first_us, ended_us))
        ended_us = max(ended_us, last_us)
    return {"busy_share": round(busy_us / (ended_us - started_us), 4), "longest_gap_us": round(longest_us, 1)}


def summarize_time(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Milliseconds by stream and by what ran, the largest first. A stream's work may run beside another's."""
    streams, names = Counter[str](), Counter[str]()
    for event in events:
        streams[str(event["args"]["stream"])] += event["dur"] / 1e3
        names[event["name"][:NAME_LENGTH]] += event["dur"] / 1e3
    return {
        "streams_ms": {stream: round(ms, 1) for stream, ms in streams.most_common()},
        "kernels_ms": {name: round(ms, 1) for name, ms in names.most_common(NUM_KERNELS)},
    }


@contextmanager
def profiled(path: Path) -> Iterator[dict[str, Any]]:
    """Profile the GPU during the block. The trace goes to `path`, and into what was given after the block."""
    from torch.profiler import ProfilerActivity, profile

    trace: dict[str, Any] = {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        yield trace
    profiler.export_chrome_trace(str(path))
    trace.update(json.loads(path.read_text()))


def trace_decode(pipe: Pipeline, batch_size: int, path: Path) -> dict[str, float]:
    """Profile `TRACED_STEPS` steps in which `batch_size` answers grow by one token each; the trace goes to `path`."""
    from seesay import GenerationConfig
    from seesay.engine.front.request_batch import RequestBatch
    from seesay.vl.prompts.conversation_parts import parse_prompts

    prompts = [request.text for request in workload.text_requests(batch_size, 60, seed=100 + batch_size)]
    requests, _ = parse_prompts(prompts, GenerationConfig(max_new_tokens=LONG_ANSWER_TOKENS, ignore_eos=True))
    batch = RequestBatch(pipe.engine, requests, streams=False)
    answering = threading.Thread(target=lambda: list(batch.deltas()))

    def num_steps() -> int:
        return dict(pipe.engine.stats().step_sizes).get(batch_size, 0)

    def wait_for_steps(num: int) -> None:
        goal = num_steps() + num
        while num_steps() < goal:
            if not answering.is_alive():
                raise RuntimeError("the answers ended before the window did")
            time.sleep(1e-3)

    answering.start()
    try:
        wait_for_steps(UNTRACED_STEPS)
        with profiled(path) as trace:
            started_s = time.perf_counter()
            wait_for_steps(TRACED_STEPS)
            seconds = time.perf_counter() - started_s
    finally:
        batch.abort()
        answering.join()
    return {"step_ms": round(1e3 * seconds / TRACED_STEPS, 2), **summarize_gaps(on_gpu(trace))}


def trace_workload(measure: Callable[[], object], path: Path) -> dict[str, Any]:
    """Profile all that a workload does."""
    with profiled(path) as trace:
        measure()
    events = on_gpu(trace)
    return {**summarize_gaps(events), **summarize_time(events)}


def trace_all(pipe: Pipeline, folder: Path, figures: Mapping[str, Callable[[], object]]) -> list[dict[str, Any]]:
    """Print how busy the GPU is while answers grow, for each batch size, and during the workloads."""
    folder.mkdir(parents=True, exist_ok=True)
    trace_decode(pipe, 1, folder / "warm_up.json")  # the first window waits for the profiler to start
    records = []
    for batch_size in TRACED_BATCHES:
        figures_of = trace_decode(pipe, batch_size, folder / f"decode_{batch_size}.json")
        records.append({"window": f"{batch_size} answers", **report(what="gaps", batch=batch_size, **figures_of)})
    for name, measure in figures.items():
        traced = trace_workload(measure, folder / f"{name}.json")
        records.append({"window": name, **report(what="where", workload=name, **traced)})
    return records


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", help="names of workloads, with commas; without --trace all of them")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--side-px", type=int, default=1024, help="of the pictures; the figures are for 1024")
    parser.add_argument("--max-batch-size", type=int, default=256, help="256 is the peers' setting")
    parser.add_argument("--max-step-ms", type=int, help="as of EngineConfig")
    parser.add_argument("--trace", type=Path, metavar="FOLDER")
    add_form_option(parser)
    add_placement_options(parser)
    add_plot_option(parser)
    args = parser.parse_args(argv)
    asked = None if args.only is None else args.only.split(",")
    if unknown := set(asked or ()) - set(WORKLOADS):
        parser.error(f"--only {args.only}: {', '.join(sorted(unknown))} is none of {', '.join(WORKLOADS)}")
    if not 0 < args.scale <= 1 or args.side_px < 1:
        parser.error("--scale is a share, more than 0 and at most 1, and --side-px at least 1")
    if args.trace is not None and args.engine_process not in (None, "no"):
        parser.error("--trace profiles this process, where no engine process can be seen: use --engine-process no")
    forms = (False,) if args.trace is not None else FORMS[args.engine_process]
    records = [record for form in forms for record in measure_form(args, asked, form)]
    if args.plot is not None:
        save_plot(args.plot, f"seesay, {args.model}", make_panels(records))


def measure_form(args: argparse.Namespace, asked: Sequence[str] | None, form: bool | None) -> list[dict[str, Any]]:
    """Start the engine in one form (None: the default), and measure or trace what is asked for (None: the default)."""
    said = given(engine_process=form)
    started_s = time.perf_counter()
    options = given(max_step_ms=args.max_step_ms, engine_process=form) | engine_placement(args)
    with open_pipeline(args.model, vision_placement(args), max_batch_size=args.max_batch_size, **options) as pipe:
        report(what="start", **said, seconds=round(time.perf_counter() - started_s, 1))
        figures = make_figures(pipe, args.scale, args.side_px)
        warm_up(pipe, args.side_px)
        if args.trace is None:
            return measure_each(figures, asked or WORKLOADS, said)
        return trace_all(pipe, args.trace, {name: figures[name] for name in asked or ()})


if __name__ == "__main__":
    main()
