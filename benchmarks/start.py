"""How long it takes until something happens: the import, the command line's help, a model's first answers.

    python benchmarks/start.py [MODEL] [--rounds 5] [--side-px 1024] [--plot FILE.png]

*import*: seconds of importing seesay's pipeline in a new interpreter, and whether that imported torch. *help*: seconds
of `seesay --help`, the interpreter's start included. *model*: seconds from the import of seesay to a pipeline that
answers; *first_text* and *first_image*: milliseconds of the first request with text and of the first with a picture,
beside those of the second ones, which nothing delays.

Prints a line `RESULT {JSON}` per figure; medians of the rounds, and of a model one start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from h200 import open_pipeline, report, run

from seesay.bench import workload
from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.bench.workload import Request

IMPORT = """
import json, sys, time
started_s = time.perf_counter()
from seesay import pipeline
print(json.dumps([time.perf_counter() - started_s, "torch" in sys.modules]))
"""


def run_python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout


def measure_import(rounds: int) -> dict[str, Any]:
    results = [json.loads(run_python("-c", IMPORT)) for _ in range(rounds)]
    return {
        "seconds": round(statistics.median(seconds for seconds, _ in results), 3),
        "imports_torch": any(has_torch for _, has_torch in results),
    }


def measure_help(rounds: int) -> dict[str, Any]:
    seconds = workload.median_time_s(lambda: run_python("-m", "seesay", "--help"), rounds)
    return {"seconds": round(seconds, 3)}


def measure_model(model: str, side_px: int) -> list[dict[str, Any]]:
    """Print a model's figures. To be called in an interpreter that has not imported torch."""
    started_s = time.perf_counter()
    with open_pipeline(model) as pipe:
        records = [report(what="model", seconds=round(time.perf_counter() - started_s, 2))]

        def time_ms(request: Request) -> float:
            started_s = time.perf_counter()
            run(pipe, [request])
            return round(1e3 * (time.perf_counter() - started_s), 1)

        texts = workload.text_requests(2, 100, 4)
        images = workload.image_requests(2, side_px=side_px, num_output_tokens=4)
        for what, requests in (("text", texts), ("image", images)):
            first_ms, second_ms = map(time_ms, requests)
            records.append(report(what=f"first_{what}", ms=first_ms, second_ms=second_ms))
    return records


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side-px", type=int, default=1024, help="of the pictures; the figures are for 1024")
    add_plot_option(parser)
    args = parser.parse_args(argv)
    records = [
        report(what="import", **measure_import(args.rounds)),
        report(what="help", **measure_help(args.rounds)),
    ]
    if args.model is not None:
        records += measure_model(args.model, args.side_px)
    if args.plot is not None:
        panels = [
            make_bars("seconds until something happens", records, "what", {"seconds": "seconds"}),
            make_bars("milliseconds of a request", records, "what", {"ms": "the first", "second_ms": "the second"}),
        ]
        save_plot(args.plot, f"seesay, {args.model or 'without a model'}: start", panels)


if __name__ == "__main__":
    main()
