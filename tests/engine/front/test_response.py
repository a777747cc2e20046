"""Answers made of deltas: each piece, and the whole."""

from __future__ import annotations

from PIL import Image

from seesay.engine.front.response import AnswerBuilder, Response
from seesay.errors import ErrorCode, RequestError
from seesay.values import MediaReport, Modality, OutputDelta, Usage


def test_pieces_and_the_whole() -> None:
    answer = AnswerBuilder(3, 8, choice_index=1)
    first = answer.add(
        OutputDelta(request_id=5, prompt_tokens=7, text="a b", token_ids=(1, 2), logprobs=({1: -0.5}, {2: -0.25}))
    )
    assert (first.text, first.token_ids, first.logprobs) == ("a b", [1, 2], [{1: -0.5}, {2: -0.25}])
    assert (first.input_token_len, first.generate_token_len, first.finish_reason) == (7, 2, None)
    usage = Usage(prompt_tokens=7, completion_tokens=4)
    last = answer.add(
        OutputDelta(
            request_id=5, prompt_tokens=7, text=" c", token_ids=(3,), logprobs=({3: -1.0},), finish_reason="stop",
            stop_reason="c", usage=usage, mean_logprob=-0.6,
        )
    )  # fmt: skip
    assert (last.text, last.token_ids, last.generate_token_len, last.finish_reason) == (" c", [3], 4, "stop")
    whole = answer.complete()
    assert (whole.text, whole.token_ids) == ("a b c", [1, 2, 3])
    assert whole.logprobs == [{1: -0.5}, {2: -0.25}, {3: -1.0}] and whole.prompt_logprobs is None
    assert (whole.index, whole.choice_index, whole.session_id) == (3, 1, 8)
    assert (whole.finish_reason, whole.stop_reason, whole.usage, whole.mean_logprob) == ("stop", "c", usage, -0.6)


def test_without_log_probabilities_there_are_none() -> None:
    answer = AnswerBuilder(0)
    assert answer.add(OutputDelta(request_id=5, text="a", token_ids=(1,), finish_reason="length")).logprobs is None
    assert answer.complete().logprobs is None and answer.complete().session_id == 5


def test_an_error_is_the_text_of_the_answer() -> None:
    error = RequestError(ErrorCode.INVALID_REQUEST, "no room")
    answer = AnswerBuilder(0)
    answer.add(OutputDelta(request_id=5, text="half", token_ids=(1,)))
    assert answer.add(OutputDelta(request_id=5, finish_reason="error", error=error)).text == str(error)
    whole = answer.complete()
    assert (whole.text, whole.token_ids, whole.error) == (str(error), [1], error)


def test_a_text_alone_is_an_answer() -> None:
    """Users make some for their tests: the only one, of no session."""
    answer = Response(text="a")
    assert (answer.index, answer.choice_index, answer.session_id) == (0, 0, -1)
    assert (answer.input_token_len, answer.generate_token_len, answer.finish_reason) == (0, 0, None)
    assert answer.choices == [answer] and answer.token_ids == [] and answer.media == ()


def test_how_it_is_shown() -> None:
    answer = Response(text="a", generate_token_len=1, input_token_len=2, finish_reason=None, index=4)
    assert repr(answer) == "Response(index=4, text='a', input_token_len=2, generate_token_len=1)"
    assert (answer.index, answer.choice_index, answer.session_id) == (4, 0, -1)
    answer.finish_reason = "stop"
    other = Response(text="b", generate_token_len=1, input_token_len=2, finish_reason="stop")
    assert other.index == 0
    answer.other_choices = [other]
    assert repr(answer).endswith("generate_token_len=1, finish_reason='stop', choices=2)")
    assert answer.choices == [answer, *answer.other_choices]


def test_boxes_are_those_of_the_text_in_the_picture() -> None:
    report = MediaReport(
        modality=Modality.IMAGE, num_frames=1, height=50, width=100, resized_height=100, resized_width=200, num_tiles=1,
        num_patches=1, num_tokens=1, is_cached=False, coordinates="pixel",
    )  # fmt: skip
    text = '[{"bbox_2d": [20, 40, 60, 80], "label": "cat"}, {"point_2d": [10, 30], "label": "dog"}]'
    answer = Response(text=text, generate_token_len=1, input_token_len=2, finish_reason="stop", media=(report,))
    [box], [point] = answer.boxes, answer.points
    assert (box.left, box.top, box.right, box.bottom, box.label) == (10, 20, 30, 40, "cat")
    assert (point.x, point.y, point.label) == (5, 15, "dog") and not answer.polygons and not answer.timestamps
    drawn = answer.draw(Image.new("RGB", (100, 50)))
    assert drawn.size == (100, 50) and drawn.crop((8, 18, 32, 42)).getbbox() is not None
