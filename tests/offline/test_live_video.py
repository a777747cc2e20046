"""Frames that are pushed into a running session: which are computed when."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from seesay import Pipeline, pipeline
from seesay.config import EngineConfig, GenerationConfig
from seesay.errors import RequestError
from seesay.values import MediaPart, Message, TextPart

COLORS = ("red", "green", "blue", "orange")
GREEDY = GenerationConfig(temperature=0, max_new_tokens=24)


def make_frame(number: int, size: int = 84) -> Image.Image:
    return Image.new("RGB", (size, size), COLORS[number % len(COLORS)])


def times_of(messages: tuple[Message, ...]) -> list[float]:
    """The times in a conversation, each of which stands in front of a picture."""
    found = []
    for message in messages:
        for part, following in zip(message.parts, message.parts[1:]):
            if isinstance(part, TextPart) and part.text.startswith("<"):
                assert isinstance(following, MediaPart)
                found.append(float(part.text[1:].partition(" ")[0]))
    return found


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    config = EngineConfig(device_type="cpu", engine_process=False)
    with pipeline("seesay-demo", backend_config=config) as opened:
        yield opened


def wait_until_computed(session: Any) -> None:
    deadline = time.monotonic() + 120
    while session._prefill._is_running.locked():
        assert time.monotonic() < deadline, "the frames are not computed"
        time.sleep(0.01)


def write_messages(times: list[float], question: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for time_s in times:
        content.append({"type": "text", "text": f"<{time_s:.1f} seconds>"})
        content.append({"type": "image", "image": make_frame(round(time_s * 2))})
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def test_the_stream_is_the_prompt_and_was_computed_before_the_question(pipe: Pipeline) -> None:
    session = pipe.session(max_frames=8)
    for number in range(9):
        session.push(make_frame(number), number / 2)
        wait_until_computed(session)
    assert session.num_frames == 4  # one more than eight came
    pipe.chat("describe this image", session, GREEDY)
    answer = session.response
    times = [2.5, 3.0, 3.5, 4.0]
    written = pipe(write_messages(times, "describe this image"), gen_config=GREEDY)
    assert answer.token_ids == written.token_ids and answer.input_token_len == written.input_token_len
    assert [report.timestamps_s for report in answer.media] == [(time_s,) for time_s in times]
    assert all(report.is_cached for report in answer.media), "no picture is encoded again"
    assert answer.usage is not None
    assert answer.usage.cached_tokens >= answer.usage.prompt_tokens - 64 - 40, "the frames were in the cache"
    session.push(make_frame(1), 9)
    pipe.chat("how many shapes are there?", session, GREEDY)
    assert len(session.messages) == 4 and times_of(session.messages) == [*times, 9.0]
    session.close()
    assert session.num_frames == 0


def test_times_of_an_answer_are_those_of_the_stream(pipe: Pipeline) -> None:
    session = pipe.session()
    for number in range(3):
        session.push(make_frame(number), 10 + number)
    text = "at 11 seconds it was green, not at 50 seconds"
    fixed = GenerationConfig(response_format={"type": "choice", "choice": [text]})
    stream = pipe.chat("when was it green?", session, fixed, stream_response=True)
    pieces = list(stream)
    [found] = session.response.timestamps
    assert (found.start_s, found.label) == (11, "it was green, not at")
    assert [report.timestamps_s for report in pieces[-1].media] == [(10.0,), (11.0,), (12.0,)]


def test_a_turn_that_fails_leaves_its_frames_to_the_next(pipe: Pipeline) -> None:
    session = pipe.session()
    session.push(make_frame(0), 1)
    pipe.chat(("what is it?", Image.new("RGB", (1, 1))), session, GenerationConfig(max_new_tokens=10**9))
    assert session.response.finish_reason == "error" and session.messages == () and session.num_frames == 1
    stream = pipe.chat("describe this image", session, GREEDY, stream_response=True)
    next(iter(stream))
    session.push(make_frame(1), 2)
    stream.close()  # it is left early
    pipe.chat("describe this image", session, GREEDY)
    assert times_of(session.messages) == [1.0, 2.0]


def test_frames_come_from_another_thread_while_answers_are_written(pipe: Pipeline) -> None:
    session, is_over = pipe.session(max_frames=4), threading.Event()
    failed: list[BaseException] = []

    def push() -> None:
        try:
            while not is_over.wait(0.02):
                session.push(make_frame(0))
        except BaseException as error:
            failed.append(error)

    camera = threading.Thread(target=push)
    camera.start()
    try:
        for _ in range(5):
            pipe.chat("describe this image", session, GREEDY)
            assert session.response.finish_reason in ("stop", "length"), session.response.text
    finally:
        is_over.set()
        camera.join(60)
    assert not failed and session.num_frames <= 8
    times = times_of(session.messages)
    assert times == sorted(times) and len(times) <= 4


def test_what_is_no_frame_is_refused(pipe: Pipeline) -> None:
    session = pipe.session()
    file = io.BytesIO()
    make_frame(0).save(file, "PNG")
    session.push(file.getvalue(), 5)
    with pytest.raises(RequestError):
        session.push(file.getvalue()[:40], 6)
    for time_s in (4.9, float("nan"), True, "7", 1e12):
        with pytest.raises(ValueError, match="time_s must be seconds, at least 5"):
            session.push(make_frame(0), time_s)  # type: ignore[arg-type]
    assert session.num_frames == 1
    session.close()
    with pytest.raises(ValueError, match="is closed"):
        session.push(make_frame(0), 8)
