"""Times of answers about videos, in seconds of the video that the user gave."""

from __future__ import annotations

import random
from typing import Any

import pytest

from seesay.engine.front.response import Response
from seesay.values import MediaReport, Modality
from seesay.values.shapes import Timestamp
from seesay.vl.timestamps import find_timestamps


def make_report(times_s: tuple[float, ...], modality: Modality = Modality.VIDEO) -> MediaReport:
    return MediaReport(
        modality=modality, num_frames=len(times_s), height=64, width=64, resized_height=64, resized_width=64,
        num_tiles=1, num_patches=1, num_tokens=1, is_cached=False, timestamps_s=times_s,
    )  # fmt: skip


VIDEO = make_report(tuple(0.5 * i for i in range(200)))  # of 100 seconds


def find(text: str, *media: MediaReport) -> list[tuple[float, float, str]]:
    return [(each.start_s, each.end_s, each.label) for each in find_timestamps(text, media or (VIDEO,))]


JUMPS = [(3.0, 5.5, "a man jumps")]
"""From 3 to 5.5 seconds of the video, in the forms in which models say it."""
FORMS = {
    "Qwen2.5-VL": '```json\n[{"start_time": "00:03.00", "end_time": "00:05.50", "description": "a man jumps"}]\n```',
    "Qwen3-VL": '[{"start": 3.0, "end": 5.5, "caption": "a man jumps"}]',
    "cut off": '[{"start": 3.0, "end": 5.5, "caption": "a man jumps"}, {"start": 7.0, "e',
    "a pair": '{"timestamp": [3, 5.5], "event": "a man jumps"}',
    "a range in a string": '{"time": "00:03 - 00:05.5", "event": "a man jumps"}',
    "with units": '{"start": "3.0 seconds", "end": "5.5s", "event": "a man jumps"}',
    "lines": "00:03.0 - 00:05.5: a man jumps",
    "hours": "* **0:00:03 to 0:00:05.500** a man jumps.",
    "spoken": "From 3 to 5.5 seconds, a man jumps.",
    "short": "[3.0s - 5.5s] a man jumps",
    "tags": "<3.0 seconds> to <5.5 seconds>: a man jumps",
    "between": "between 3.0 and 5.5 seconds: a man jumps",
    "a dash": "3\u20135.5 s: a man jumps",
    "frames": "Frame7-Frame12: a man jumps",
    "frames apart": "frames 7 to 12: a man jumps",
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_forms_that_say_the_same(text: str) -> None:
    assert find(text) == JUMPS


def test_moments_and_labels() -> None:
    assert find("the ball falls at 12.5 seconds\nand 1:02 it stops") == [
        (12.5, 12.5, "the ball falls at"),
        (62, 62, "it stops"),
    ]
    assert find('[{"timestamp": "01:02.5", "label": "x"}, {"time": 4, "label": "y"}]') == [
        (62.5, 62.5, "x"),
        (4, 4, "y"),
    ]


def test_frames_have_the_times_at_which_they_were_taken() -> None:
    """A model says the number of a frame; the user wants the time in the video."""
    assert find("Frame 2 shows it", make_report((0.0, 4.25, 8.5))) == [(4.25, 4.25, "shows it")]
    frames = [make_report((second,), Modality.IMAGE) for second in (1.0, 3.5, 9.0)]
    assert find("Frame3: it falls", *frames) == [(9.0, 9.0, "it falls")]
    assert find("Frame0 and Frame4", *frames) == []


def test_the_last_video_is_meant_or_the_one_that_is_named() -> None:
    one, other = make_report((0.0, 1.0)), make_report((0.0, 30.0))
    [found] = find_timestamps("at 20 seconds", (one, other))
    assert found == Timestamp(start_s=20, end_s=20, label="at", video=1, span=(3, 13))
    [found] = find_timestamps('{"start": 0, "end": 1, "video": 0}', (one, other))
    assert found.video == 0
    frames = [make_report((second,), Modality.IMAGE) for second in (0.0, 5.0, 0.0, 30.0)]
    assert find_timestamps("at 20 seconds", frames)[0].video == 1
    assert find('{"start": 0, "end": 1, "video": 7}', one, other) == []


@pytest.mark.parametrize(
    "text",
    ["", "12 cats", "at 3 o'clock", "the clock says 12:30", "1:2", "5 to 7 men", "at 300 seconds", "v1.2.3s", "a1:02",
     '{"start": true, "end": false}', '{"start": "x", "end": "y"}', '{"start": -3, "end": -1}', '{"time": [1, 2, 3]}',
     '{"start": 1e300, "end": 1e301}', "1:" * 5000, "3 to " * 5000, "frames" * 5000, "Frame 99999"],
    ids=lambda text: text[:20],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_texts_without_times(text: str) -> None:
    assert find(text) == []


def test_there_are_none_without_a_video() -> None:
    assert find("at 3 seconds", make_report((), Modality.IMAGE)) == []


@pytest.mark.timeout(120)
def test_random_texts_are_read() -> None:
    pieces = ["0:03", "3.5", " s", " seconds", " to ", "-", "<", ">", "frame ", "7", '{"start": ', '"end": ', "}", ",",
              "between ", " and ", "\n", "a cat", "```", '"', ":", "."]  # fmt: skip
    chance = random.Random(0)
    for _ in range(2000):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 60)))
        for each in find_timestamps(text, [VIDEO]):
            assert 0 <= each.start_s <= each.end_s <= 101 and 0 <= each.span[0] < each.span[1] <= len(text)


def test_a_response_has_them_with_their_places_in_the_text() -> None:
    fields: dict[str, Any] = {"text": "It falls from 0:03 to 0:04, slowly.", "media": (VIDEO,)}
    [found] = Response(**fields).timestamps
    assert fields["text"][slice(*found.span)] == "0:03 to 0:04"
