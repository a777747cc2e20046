"""Where the host's time to the first token of a picture goes, over a core that computes nothing. Needs no GPU.

    python benchmarks/first_token_host.py [MODEL] [--side-px 1024] [--requests 60] [--only text,object,file]

One request at a time, from `pipe(...)` to its answer of one token. The core is in another process and takes decoded
frames, as one on a GPU does: it copies them once, as into pinned memory, and answers. Kinds of requests: *text*, forty
words; *object*, the same with a new PIL image; *file*, with the bytes of a new JPEG.

Prints a JSON line per kind: median milliseconds. *prepare*: until the request is handed to the core. *cross*: until
the core has it. *copy*: the core's copy of the pixels. *return*: from then until the answer is there. *decode* and
*preprocess* are within *prepare*. *cpu*: processor time of this process per request.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
from frontend import FACTS

from seesay.bench.workload import make_picture, make_text
from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.listener import accept_connection, open_listener

if TYPE_CHECKING:
    from seesay import Pipeline

KINDS = ("text", "object", "file")
NUM_WORDS = 40
NUM_UNTIMED = 8
TIMEOUT_S = 300.0
_NO_NEWS = kinds.News((), (), None)
_BEAT_S = 0.5


def run_core(pipe: Connection) -> None:
    """Serve one frontend: each of its requests gets one token at once. Its report says when the request came, and when
    its pixels had been copied."""
    listener, address = open_listener()
    pipe.send(address)
    found = accept_connection(listener, receives=kinds.ToCore)
    assert found is not None, "the frontend cannot connect"
    link, _ = found
    link.send(kinds.Hello())
    assert link.wait(TIMEOUT_S) and isinstance(link.receive(), kinds.Join)
    link.send(kinds.Started(replace(FACTS, resizes_on_device=True), ModelStatus()))
    pinned = np.empty(1 << 26, dtype=np.uint8)
    pinned.fill(1)
    while not link.is_cut():
        if not link.wait(_BEAT_S):
            link.send(kinds.Beat({}, _NO_NEWS))
            continue
        message = link.receive()
        if isinstance(message, kinds.Submit):
            request = message.request.restore()
            received_s = time.perf_counter()
            for item in request.prompt.items:
                frames = item.features["frames"]
                pinned[: frames.nbytes] = frames.reshape(-1)
            report = kinds.Report(0, 0.0, 0.0, None, None, received_s, time.perf_counter(), (), None, None, None, 0, 0)
            output = kinds.Output(request.request_id, (65,), None, "length", None, None, None, report)
            link.send(kinds.Outputs((output,), _NO_NEWS))
        del message


@contextmanager
def running_pipeline(model: str) -> Iterator[Pipeline]:
    """Start the core; yield a pipeline that is joined to it."""
    from seesay import EngineConfig, Pipeline
    from seesay.engine.front.engine import AsyncEngine

    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=run_core, args=(theirs,))
    process.start()
    try:
        config = EngineConfig(device_type="cpu", engine_process=True)
        with Pipeline.from_engine(AsyncEngine(model, backend_config=config, engine_address=ours.recv())) as pipe:
            yield pipe
    finally:
        process.terminate()
        process.join()


def make_prompt(kind: str, side_px: int, seed: int) -> Any:
    """Return what `pipe` takes."""
    text = make_text(NUM_WORDS, random.Random(seed))
    if kind == "text":
        return text
    picture = make_picture(side_px, side_px, seed)
    if kind == "object":
        return text, picture
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=88)
    return text, file.getvalue()


def measure(pipe: Pipeline, kind: str, *, side_px: int, num: int, seed: int) -> dict[str, float]:
    """Return milliseconds of one request."""
    from seesay import GenerationConfig

    config, found = GenerationConfig(max_new_tokens=1), list[dict[str, float]]()
    handed_s: list[float] = []
    core: Any = pipe.engine.core
    submit = core.submit

    def note_and_submit(requests: Any) -> None:
        handed_s.append(time.perf_counter())
        submit(requests)

    core.submit = note_and_submit
    try:
        for index in range(NUM_UNTIMED + num):
            prompt = make_prompt(kind, side_px, seed + index)
            cpu_s, asked_s = time.process_time(), time.perf_counter()
            answer = pipe(prompt, gen_config=config)
            done_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
            times = answer.timings
            assert times is not None, answer.text
            copied_s = done_s - times.total_s + times.time_to_first_token_s  # nearly: the last stage is short
            received_s = copied_s - times.prefill_s
            spans = {
                "total": done_s - asked_s,
                "prepare": handed_s[-1] - asked_s,
                "decode": times.decode_media_s,
                "preprocess": times.preprocess_s,
                "cross": received_s - handed_s[-1],
                "copy": times.prefill_s,
                "return": done_s - copied_s,
                "cpu": cpu_s,
            }
            found.append({name: 1e3 * seconds for name, seconds in spans.items()})
    finally:
        core.submit = submit
    return {name: round(statistics.median(one[name] for one in found[NUM_UNTIMED:]), 2) for name in found[0]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo")
    parser.add_argument("--side-px", type=int, default=1024)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of requests, with commas")
    args = parser.parse_args(argv)
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(KINDS):
        parser.error(f"--only {args.only}: {', '.join(sorted(unknown))} is none of {', '.join(KINDS)}")
    with running_pipeline(args.model) as pipe:
        for number, kind in enumerate(chosen):
            figures = measure(pipe, kind, side_px=args.side_px, num=args.requests, seed=1000 * number)
            print(json.dumps({"what": kind, "requests": args.requests, "ms": figures}), flush=True)


if __name__ == "__main__":
    main()
