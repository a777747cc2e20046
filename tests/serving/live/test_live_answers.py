"""Live video with the built-in model: answers about what was seen, and when; an hour of it takes no more memory than a
minute."""

from __future__ import annotations

import gc
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_client import encode, open_live
from live_server import LiveServer, make_settings, serve, wait_until
from PIL import Image

from seesay import Pipeline
from seesay.config import EngineConfig, GenerationConfig
from seesay.demo.scenes import make_example
from seesay.engine.front.engine import AsyncEngine


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    settings = make_settings()
    config = EngineConfig(device_type="cpu", engine_process=False)
    with AsyncEngine(backend_config=config, media_limits=settings.media) as opened:
        yield opened


@pytest.fixture(scope="module")
def demo(engine: AsyncEngine) -> Iterator[LiveServer]:
    with serve(engine, make_settings(model_name=None)) as server:
        yield server


def test_it_says_what_was_seen_last(demo: LiveServer) -> None:
    """Each question is about the newest frame, as the window holds two and the next question's are others."""
    with open_live(demo.url) as live:
        live.say(type="configure", max_frames=2)
        assert live.wait_for("ready")["max_frames"] == 2
        num_right = 0
        for number, seed in enumerate(range(2_000_000, 2_000_008)):
            example = make_example("describe", seed)
            question, expected = example.turns[0]
            for time_s in (2 * number, 2 * number + 1):
                assert live.push_and_wait(encode(example.images[0], "PNG"), time_s)["type"] == "frame"
            done = live.ask(question)
            assert done["frames_s"][-1] == 2 * number + 1 and len(done["frames_s"]) <= 2
            num_right += done["text"].replace("second ", "") == expected  # "the second picture shows"
    assert num_right >= 6, f"{num_right} of 8 right"


def test_the_stream_is_that_of_a_session_in_a_script(demo: LiveServer, engine: AsyncEngine) -> None:
    """The same frames and questions in `pipe.session()`: the same answers, tokens and times."""
    greedy = GenerationConfig(temperature=0, max_new_tokens=24)
    pipe = Pipeline.from_engine(engine)
    session = pipe.session(max_frames=4)
    with open_live(demo.url) as live:
        live.say(type="configure", max_frames=4)
        for turn, question in enumerate(["describe this image", "how many shapes are there?"]):
            for number in range(3 * turn, 3 * turn + 3):
                frame = encode(("red", "green", "blue")[number % 3], "PNG")
                live.push_and_wait(frame, number / 2)
                session.push(frame, number / 2)
            live.unread.clear()
            done = live.ask(question, max_tokens=24)
            response = pipe.chat(question, session, greedy).response
            assert done["text"] == response.text and done["finish_reason"] == response.finish_reason
            assert "".join(message["text"] for message in live.unread) == response.text, "the deltas are the answer"
            assert done["usage"]["prompt_tokens"] == response.input_token_len
            assert done["frames_s"] == [report.timestamps_s[0] for report in response.media]
    assert done["frames_s"] == [1.5, 2.0, 2.5], "the window was full meanwhile"


def test_what_was_pushed_is_computed_before_the_question(demo: LiveServer) -> None:
    with open_live(demo.url) as live:
        for number in range(6):
            live.push_and_wait(encode(("red", "green", "blue")[number % 3]), number)
        done = live.ask("describe this image")
        usage = done["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 64 - 40
        assert done["frames_s"] == [0, 1, 2, 3, 4, 5] and done["first_token_s"] < done["total_s"]


def test_an_answer_is_stopped_and_stays_in_the_conversation(demo: LiveServer) -> None:
    with open_live(demo.url) as live:
        live.push(encode("red"), 1)
        live.say(type="ask", text="describe this image", id="first", temperature=0)
        live.say(type="ask", text="describe this image", id="second", temperature=0)
        live.say(type="stop")
        for name in ("first", "second"):
            done = live.wait_for("answer.done")
            assert (done["id"], done["finish_reason"]) in ((name, "abort"), (name, "stop"))
        assert done["finish_reason"] == "abort", "the second waited when they were stopped"
        assert live.ask("describe this image")["finish_reason"] == "stop"


def _count_held(server: LiveServer) -> tuple[int, int, int]:
    gate = server.state.gate
    return gate.num_sessions, gate.num_bytes, server.state.answering.num_running


@pytest.mark.slow
def test_an_hour_in_a_few_minutes_takes_no_more_memory(demo: LiveServer) -> None:
    """3,600 frames, a question every ten minutes: half of the frames are pushed as fast as they are taken, the others
    faster."""
    rng = random.Random(0)
    sizes: list[int] = []
    frames = [encode(make_noise(rng), "JPEG") for _ in range(64)]
    with open_live(demo.url) as live:
        live.say(type="configure", max_frames=8)
        for second, frame in zip(range(3600), itertools.cycle(frames)):
            if second % 2:
                live.push(frame, second)
            else:
                assert live.push_and_wait(frame, second)["type"] == "frame"
            assert _count_held(demo)[1] <= 20 * max(map(len, frames)), "the frames of the window and the inbox"
            if second % 600 == 599:
                live.unread.clear()
                done = live.ask("describe this image", max_tokens=8)
                assert done["type"] == "answer.done" and 1 <= len(done["frames_s"]) <= 8
                assert second - 60 < done["frames_s"][-1] <= second
                gc.collect()
                sizes.append(int(re.findall(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())[0]) << 10)
    wait_until(lambda: _count_held(demo) == (0, 0, 0))
    assert max(sizes[2:]) - sizes[1] < 64 << 20, [size >> 20 for size in sizes]


def make_noise(rng: random.Random) -> Image.Image:
    return Image.frombytes("RGB", (56, 56), rng.randbytes(3 * 56 * 56))
