"""The window of a live video: which frames and turns the prompt has, what is evicted, and what is computed when."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from PIL import Image

from seesay.values import MediaPart, Message, TextPart
from seesay.vl.prompts.live_conversation import LiveConversation, Messages

QUESTION = (Message(role="user", parts=(TextPart(text="what now?"),)),)


def make_frame(number: int) -> Image.Image:
    return Image.new("RGB", (8, 8), ("red", "green", "blue")[number % 3])


def times_of(messages: Messages) -> list[float]:
    """The times in a conversation, each of which stands in front of a picture."""
    found = []
    for message in messages:
        for part, following in zip(message.parts, message.parts[1:]):
            if isinstance(part, TextPart) and part.text.startswith("<"):
                assert isinstance(following, MediaPart)
                found.append(float(part.text[1:].partition(" ")[0]))
    return found


def computed(conversation: LiveConversation) -> Messages:
    """The messages that are computed now."""
    request = conversation.make_prefill()
    assert request is not None and isinstance(request.prompt, tuple)
    return tuple(message for message in request.prompt if isinstance(message, Message))


def test_an_hour_of_frames_takes_the_memory_of_a_window() -> None:
    """An hour at four frames a second, with a question every minute."""
    conversation = LiveConversation(64, (Message(role="system", parts=(TextPart(text="look"),)),))
    sizes: list[int] = []
    for number in range(4 * 3600):
        conversation.push(make_frame(number), number / 4)
        assert conversation.num_frames <= 64 and conversation.messages[0].role == "system"
        if number > 1200 and number % 8 != 7:  # after five minutes, what is computed is looked at every two seconds
            continue
        times = times_of(computed(conversation))
        assert times == [round((number - len(times) + 1 + i) / 4, 1) for i in range(len(times))], "the newest, in order"
        assert len(times) == conversation.num_frames > (31 if number > 64 else 0)
        if number % 240 == 239:
            assert times_of(conversation.begin_turn(QUESTION)) == times
            conversation.end_turn("a circle")
            assert conversation.make_prefill() is None, "there is nothing new to compute"
        if number % 1800 == 1799:
            gc.collect()
            if not sizes:
                tracemalloc.start()
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert len(conversation.messages) <= 5 and max(sizes) < 2_000_000, sizes


def test_what_is_evicted_takes_the_turns_before_it_along() -> None:
    conversation = LiveConversation(4)
    for number in range(4):
        conversation.push(make_frame(number), number)
        conversation.begin_turn((Message(role="user", parts=(TextPart(text=f"question {number}"),)),))
        conversation.end_turn(f"answer {number}")
    conversation.push(make_frame(4), 4)
    assert times_of(conversation.messages) == [3.0] and conversation.num_frames == 2
    parts = [part for message in conversation.messages for part in message.parts]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    assert texts == ["<3.0 seconds>", "question 3", "answer 3"]


@pytest.mark.parametrize("answer", [None, "a circle"])
def test_frames_that_come_while_an_answer_is_written_are_bounded_too(answer: str | None) -> None:
    conversation = LiveConversation(4)
    conversation.push(make_frame(0), 0)
    conversation.begin_turn(QUESTION)
    for number in range(1, 50):
        conversation.push(make_frame(number), number)
        assert conversation.make_prefill() is None, "the answer is written"
    assert conversation.num_frames <= 5
    conversation.end_turn(answer)
    prompt = conversation.begin_turn(QUESTION)
    assert times_of(prompt)[-1] == 49 and len(times_of(prompt)) == conversation.num_frames <= 4


def test_a_turn_that_is_not_kept_leaves_its_frames_to_the_next() -> None:
    conversation = LiveConversation()
    conversation.push(make_frame(0), 1)
    first = conversation.begin_turn(QUESTION)
    conversation.push(make_frame(1), 2)
    conversation.end_turn(None)
    second = conversation.begin_turn(QUESTION)
    assert (times_of(first), times_of(second), conversation.messages) == ([1], [1, 2], ())


@pytest.mark.parametrize("max_frames", [0, 1, 5000, -3, True, 2.5])
def test_windows_that_are_none_are_refused(max_frames: int) -> None:
    with pytest.raises(ValueError, match=r"max_frames must be in \[2, 4096\]"):
        LiveConversation(max_frames)


def test_times_go_forward() -> None:
    conversation = LiveConversation()
    conversation.push(make_frame(0), 5)
    conversation.push(make_frame(1), 5)
    for time_s in (4.9, float("nan"), True, "7", 1e12):
        with pytest.raises(ValueError, match="time_s must be seconds, at least 5, got"):
            conversation.push(make_frame(2), time_s)  # type: ignore[arg-type]
    assert conversation.num_frames == 2
