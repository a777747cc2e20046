"""From a frame of a running session to the first token of an answer about it.

    python benchmarks/live.py MODEL_DIR [--seconds 30] [--rate 4] [--side-px 640] [--max-frames 64] [--device auto]

A session takes frames of side-px by 3/4 of side-px pixels at a steady rate, as from a camera. Behind each eighth frame
a question of a dozen words is asked at once, and its answer of 8 tokens streamed, while frames keep coming. The time is
that from the moment the frame is given to the first piece of text. The first two questions are not counted.

Prints a JSON line: the number of questions, milliseconds to the first piece (median, 90th percentile, longest), the
most frames of a prompt, and those of which the newest one was in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline

QUESTION = "What has changed in the newest picture since the one before it?"
EVERY = 8
UNTIMED = 2
ANSWER = GenerationConfig(max_new_tokens=8, min_new_tokens=8, temperature=0)


def make_frame(number: int, side_px: int) -> Image.Image:
    """Return a new picture: colors that run over it, and some noise, as of a camera."""
    rng = np.random.default_rng(number)
    height, width = side_px * 3 // 4, side_px
    across, down = np.linspace(0, 200, width)[None, :, None], np.linspace(0, 40, height)[:, None, None]
    pixels = (across + down + 5 * number + rng.integers(0, 16, (height, width, 3))) % 256
    return Image.fromarray(pixels.astype(np.uint8))


def measure(pipe: Pipeline, *, seconds: float, rate: float, side_px: int, max_frames: int) -> dict[str, Any]:
    """Return the figures of one session."""
    frames = [make_frame(number, side_px) for number in range(max(EVERY, round(seconds * rate)))]
    session = pipe.session(max_frames=max_frames)
    times_ms, most_frames, num_newest = list[float](), 0, 0

    def ask(pushed_at: float, time_s: float) -> None:
        nonlocal most_frames, num_newest
        pieces = pipe.chat(QUESTION, session, ANSWER, stream_response=True)
        next(iter(pieces))
        times_ms.append(1e3 * (time.perf_counter() - pushed_at))
        for _ in pieces:
            pass
        shown = [each for report in session.response.media for each in report.timestamps_s]
        most_frames = max(most_frames, len(shown))
        num_newest += bool(shown) and shown[-1] >= time_s - 0.05

    asking: threading.Thread | None = None
    started_at = time.perf_counter()
    for number, frame in enumerate(frames):
        time.sleep(max(0.0, started_at + number / rate - time.perf_counter()))
        pushed_at = time.perf_counter()
        session.push(frame, time_s=number / rate)
        if number % EVERY == EVERY - 1:
            if asking is not None:
                asking.join()
            asking = threading.Thread(target=ask, args=(pushed_at, number / rate))
            asking.start()
    if asking is not None:
        asking.join()
    counted = times_ms[UNTIMED:] or times_ms
    return {
        "what": "live",
        "questions": len(times_ms),
        "median_ms": round(statistics.median(counted), 1),
        "p90_ms": round(float(np.percentile(counted, 90)), 1),
        "longest_ms": round(max(counted), 1),
        "most_frames": most_frames,
        "with_the_newest": num_newest,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=4, help="frames per second")
    parser.add_argument("--side-px", type=int, default=640)
    parser.add_argument("--max-frames", type=int, default=64)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    with pipeline(options.model, EngineConfig(device_type=options.device)) as pipe:
        figures = measure(
            pipe,
            seconds=options.seconds,
            rate=options.rate,
            side_px=options.side_px,
            max_frames=options.max_frames,
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
