"""How much running text answers suffer while pictures arrive, by the steps by which the peers were measured.

    python benchmarks/interference.py MODEL_DIR [--scale 1.0] [--side-px 1024] [--lead-s 1.5] [--max-step-ms 40]
        [--engine-process both] [--plot FILE.png]

16 text answers of 800 tokens stream. After 1.5 s, 32 different 1024x1024 pictures arrive, 20 a second, each with a
short question and 8 tokens to answer. Prints one line `RESULT {JSON}`: the longest gap between two deliveries of any
text stream from its tenth token on, the same before the pictures, the mean pace during the pictures as a share of the
pace before, and the median time to the first token of the requests with pictures. `--scale` takes that share of the
texts and the pictures. `--engine-process both` prints two lines: for the engine in a thread, and in a process.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from forms import FORMS, add_form_option
from h200 import given, open_pipeline, report

from seesay.bench import workload
from seesay.bench.plotting import Bars, Lines, Panel, add_plot_option, save_plot
from seesay.bench.workload import Request

if TYPE_CHECKING:
    from seesay import Pipeline

IMAGES_PER_S = 20
UNCOUNTED_TOKENS = 10
# How long each text streams from its tenth token on before the first picture arrives, however slow the machine is.
MIN_BEFORE_S = 0.05


@dataclass
class Marks:
    """When pieces of answers arrived, by `time.perf_counter`."""

    texts: list[list[float]]
    first_images_at: float = 0.0
    images_done_at: float = 0.0
    first_token_s: list[float] = field(default_factory=list)


def stream(pipe: Pipeline, request: Request, on_piece: Callable[[float], object]) -> None:
    from seesay import GenerationConfig

    text, images, num_output_tokens = request
    config = GenerationConfig(do_sample=False, max_new_tokens=num_output_tokens, ignore_eos=True)
    for piece in pipe.stream_infer((text, images) if images else text, gen_config=config):
        if piece.finish_reason == "error":
            raise RuntimeError(piece.text[:500])
        on_piece(time.perf_counter())


def stream_all(pipe: Pipeline, texts: Sequence[Request], images: Sequence[Request], lead_s: float) -> Marks:
    """Stream the texts, after `lead_s` the pictures at their pace, each in a thread of its own; wait for all. On a slow
    machine the pictures wait until each text has streamed for `MIN_BEFORE_S`."""
    marks = Marks(texts=[[] for _ in texts])

    def stream_image(request: Request) -> None:
        started_s, arrived = time.perf_counter(), list[float]()
        stream(pipe, request, arrived.append)
        marks.first_token_s.append(arrived[0] - started_s)
        marks.images_done_at = max(marks.images_done_at, time.perf_counter())

    threads = [
        threading.Thread(target=stream, args=(pipe, request, arrived.append))
        for request, arrived in zip(texts, marks.texts)
    ]
    for thread in threads:
        thread.start()
    time.sleep(lead_s)
    for thread, arrived in zip(threads, marks.texts):
        while thread.is_alive() and not _has_streamed(arrived):
            time.sleep(0.001)
    marks.first_images_at = time.perf_counter()
    for index, request in enumerate(images):
        time.sleep(max(0.0, marks.first_images_at + index / IMAGES_PER_S - time.perf_counter()))
        threads.append(threading.Thread(target=stream_image, args=(request,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return marks


def _has_streamed(arrived: Sequence[float]) -> bool:
    return len(arrived) > UNCOUNTED_TOKENS and arrived[-1] - arrived[UNCOUNTED_TOKENS] >= MIN_BEFORE_S


def summarize(marks: Marks) -> dict[str, Any]:
    """A gap belongs to the time before the pictures when it ends there, to the pictures when it begins while one of
    them is being answered."""
    before, during = list[float](), list[float]()
    for arrived in marks.texts:
        for earlier, later in pairwise(arrived[UNCOUNTED_TOKENS:]):
            if later < marks.first_images_at:
                before.append(later - earlier)
            elif earlier < marks.images_done_at:
                during.append(later - earlier)
    if not before or not during:
        raise RuntimeError("the texts ended before the pictures came: give them less time with --lead-s")
    return {
        "longest_gap_ms": round(1e3 * max(during), 1),
        "longest_gap_before_ms": round(1e3 * max(before), 1),
        "pace_share": round(statistics.mean(before) / statistics.mean(during), 4),
        "image_ttft_ms_median": round(1e3 * statistics.median(marks.first_token_s), 1),
    }


def make_panels(marks: Marks, figures: Mapping[str, Any]) -> list[Panel]:
    """The longest gaps, and every gap of every text when it ended."""
    form = ", process" if figures.get("engine_process") else ""
    ends_s, gaps_ms = list[float](), list[float]()
    for arrived in marks.texts:
        for earlier, later in pairwise(arrived[UNCOUNTED_TOKENS:]):
            ends_s.append(later - marks.first_images_at)
            gaps_ms.append(1e3 * (later - earlier))
    longest = {
        "before the pictures": {"gap": figures["longest_gap_before_ms"]},
        "while they arrive": {"gap": figures["longest_gap_ms"]},
    }
    return [
        Bars(title=f"longest gap in a text answer, ms{form}", values=longest),
        Lines(
            title=f"gaps between the pieces of text answers, ms{form}",
            x_title="seconds since the first picture arrived",
            series={"gap": (ends_s, gaps_ms)},
            is_scattered=True,
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--side-px", type=int, default=1024, help="of the pictures; the figures are for 1024")
    parser.add_argument("--lead-s", type=float, default=1.5, help="time that the texts have to themselves")
    parser.add_argument("--max-step-ms", type=int, help="as of EngineConfig")
    add_form_option(parser)
    add_plot_option(parser)
    args = parser.parse_args(argv)

    def share(num: int) -> int:
        return max(1, int(num * args.scale))

    def make_work(num_tokens: int, num_images: int, seed: int) -> tuple[list[Request], list[Request]]:
        texts = workload.text_requests(share(16), 60, num_tokens, seed=seed)
        images = workload.image_requests(
            share(num_images), side_px=args.side_px, num_output_tokens=8, num_words=10, seed=seed + 1
        )
        return texts, images

    work, warm_up = make_work(800, 32, seed=5), make_work(40, 4, seed=7)
    panels: list[Panel] = []
    for form in FORMS[args.engine_process]:
        with open_pipeline(args.model, **given(max_step_ms=args.max_step_ms, engine_process=form)) as pipe:
            stream_all(pipe, *warm_up, args.lead_s)
            marks = stream_all(pipe, *work, args.lead_s)
        panels += make_panels(marks, report(what="interference", **given(engine_process=form), **summarize(marks)))
    if args.plot is not None:
        save_plot(args.plot, f"seesay, {args.model}: text answers while pictures arrive", panels)


if __name__ == "__main__":
    main()
