"""Linear models of step times, and the file in which times are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.made_up_times import TRUE, make_recording
from policy import RECORDED
from step_model import Errors, LinearTimes, RecordedTimes, Recording, StepShape, StepTime, load_recording


def test_a_fit_finds_the_coefficients_that_made_the_times() -> None:
    recording = make_recording(TRUE)
    found = recording.fit()
    for name in ("decode", "mixed", "encode"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert recording.find_errors(found) == {name: Errors(0, 0) for name in ("decode", "mixed", "encode")}


def test_no_coefficient_is_negative() -> None:
    odd = LinearTimes(decode=(4.0, 0.02, -1e-6), mixed=TRUE.mixed, encode=TRUE.encode)
    recording = make_recording(odd)
    found = recording.fit()
    assert found.decode[2] == 0 and min(found.decode[:2]) > 0
    assert 0 < recording.find_errors(found)["decode"].mean <= recording.find_errors(found)["decode"].largest < 0.1


def test_errors_are_relative() -> None:
    slower = make_recording(TRUE.slow_down(1.25))
    assert slower.find_errors(TRUE) == {name: Errors(0.2, 0.2) for name in ("decode", "mixed", "encode")}


def test_recorded_times_know_which_sizes_are_fast() -> None:
    shape = StepShape(num_prompt_tokens=768, prompt_context=372)
    recording = make_recording(TRUE, more=(StepTime(shape, 0.9 * TRUE.step_ms(shape)),))
    times = RecordedTimes(recording)
    assert times.step_ms(shape) == pytest.approx(0.9 * TRUE.step_ms(shape))
    assert times.linear.step_ms(shape) > 0.95 * TRUE.step_ms(shape)
    between = times.step_ms(shape._replace(num_prompt_tokens=896)) / TRUE.step_ms(shape._replace(num_prompt_tokens=896))
    assert 0.92 < between < 0.98
    beyond = shape._replace(num_prompt_tokens=20_000)
    assert times.step_ms(beyond) == pytest.approx(TRUE.step_ms(beyond), rel=0.02)
    assert times.encode_ms(5476) == pytest.approx(TRUE.encode_ms(5476))


def test_a_model_without_a_tower_takes_no_time_for_pictures() -> None:
    recording = make_recording(TRUE)
    textual = Recording(device="", model="", source="", steps=recording.steps, encodes=())
    assert textual.fit().encode_ms(5476) == 0


def test_a_recording_is_the_same_after_a_file(tmp_path: Path) -> None:
    recording = make_recording(TRUE, more=(StepTime(StepShape(3, 7, 5, 2.5), 1.25, host_ms=0.5),))
    recording.save(tmp_path / "times.json")
    assert load_recording(tmp_path / "times.json") == recording


def test_the_recording_that_is_kept_has_all_that_is_simulated() -> None:
    recording = load_recording(RECORDED)
    times = recording.fit()
    assert recording.device and recording.source
    assert times.decode[0] > 0 and times.decode[1] > 0 and times.mixed[3] > 0 and times.encode[1] > 0
    assert min(step.ms for step in recording.steps) > 0 and min(encode.ms for encode in recording.encodes) > 0
