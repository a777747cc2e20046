"""How long callers wait beside an engine process that has stopped.

    python benchmarks/stalled_engine.py [MODEL] [--pictures 250] [--side-px 512] [--seconds 5]

The engine process is stopped (SIGSTOP), and as many requests with a picture each are submitted. While they are prepared
and sent, for `--seconds`, an unknown id is aborted again and again, as the routes of the server do in their event loop.
Then a request that waits is aborted, the process goes on, and all answers are read.

Prints a line `RESULT {JSON}`: milliseconds of the calls (median and longest), of the submission, and until the request
that waits has its final output. Ends with status 1 when a call took longer than `--max-ms`, or an answer is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import statistics
import sys
import time
from collections.abc import Callable

from seesay import EngineConfig, GenerationConfig
from seesay.bench.workload import make_picture
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.process.remote_core import ProcessCore
from seesay.values import GenerationRequest, OutputDelta
from seesay.vl.prompts.conversation_parts import parse_prompts


def measure_ms(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo")
    parser.add_argument("--pictures", type=int, default=250)
    parser.add_argument("--side-px", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--max-ms", type=float, default=5.0)
    options = parser.parse_args()
    pictures = [make_picture(options.side_px, options.side_px, seed) for seed in range(options.pictures)]
    config = GenerationConfig(max_new_tokens=4)
    parsed, _ = parse_prompts([("what is this?", picture) for picture in pictures], config)
    requests = [request for request in parsed if isinstance(request, GenerationRequest)]
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    with AsyncEngine(options.model, backend_config=EngineConfig(engine_process=True)) as engine:
        assert isinstance(engine.core, ProcessCore)
        pid = engine.core.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            ids: list[int] = []
            submit_ms = measure_ms(lambda: ids.extend(engine.submit_batch(requests, arrived.put)))
            waits_ms, until_s = [], time.monotonic() + options.seconds
            while time.monotonic() < until_s:
                waits_ms.append(measure_ms(lambda: engine.abort(1 << 39)))
                time.sleep(0.001)
            begun = time.perf_counter()
            known_ms = measure_ms(lambda: engine.abort(ids[-1]))
            while (first := arrived.get(timeout=30)).request_id != ids[-1]:
                pass
            ended_ms = 1000 * (time.perf_counter() - begun)
            num_left = len(engine._preparation.open.waiting)
        finally:
            os.kill(pid, signal.SIGCONT)
        left = set(ids) - {first.request_id}
        while left:
            delta = arrived.get(timeout=300)
            if delta.finish_reason is not None:
                left.remove(delta.request_id)
    result = {
        "pictures": options.pictures,
        "calls": len(waits_ms),
        "abort_unknown_median_ms": round(statistics.median(waits_ms), 3),
        "abort_unknown_longest_ms": round(max(waits_ms), 3),
        "abort_waiting_ms": round(known_ms, 3),
        "waiting_ended_ms": round(ended_ms, 3),
        "submit_ms": round(submit_ms, 3),
        "preparing_at_the_end": num_left,
    }
    print("RESULT", json.dumps(result))
    return int(max(*waits_ms, known_ms) > options.max_ms)


if __name__ == "__main__":
    sys.exit(main())
