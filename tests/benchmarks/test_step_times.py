"""Step times, recorded for a moment on whatever device is there; and which steps are recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import step_times
from step_model import StepShape, load_recording
from step_times import Point, make_grid, make_panels

from seesay.bench.plotting import Lines
from seesay.llm.running.step_sizes import token_sizes


def test_a_small_grid_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "times.json"
    limits = [
        "--rounds",
        "2",
        "--max-rows",
        "4",
        "--max-tokens",
        "128",
        "--max-context",
        "128",
        "--sides-px",
        "224,168",
    ]
    step_times.main(["seesay-demo", *limits, "--out", str(path)])
    lines = [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]
    recording = load_recording(path)
    grid = make_grid(max_rows=4, max_tokens=128, max_context=128)
    assert [time.shape for time in recording.steps] == sorted(point.shape() for point in grid)
    assert all(time.ms > 0 and time.host_ms is not None and time.host_ms > 0 for time in recording.steps)
    steps, calls = make_panels(recording)
    assert isinstance(steps, Lines) and {name: len(xs) for name, (xs, _) in steps.series.items()} == {
        "decode rows alone": 2,
        "with prompts": len(grid) - 2,
    }
    assert isinstance(calls, Lines) and len(calls.series["tower"][0]) == 2
    assert [time.num_patches for time in recording.encodes] == [144, 256]
    assert all(time.ms > 0 for time in recording.encodes)
    assert lines[0]["what"] == "recording" and lines[0]["device"] == recording.device
    assert (lines[0]["steps"], lines[0]["left_out"]) == (len(grid), 0)
    assert [line["model"] for line in lines[1:-1]] == ["decode", "mixed", "encode"]
    assert [len(line["coefficients_ms"]) for line in lines[1:-1]] == [3, 5, 2]
    assert lines[-1]["what"] == "at start" and lines[-1]["seconds"] >= 0
    assert all(0 <= line["mean"] <= line["largest"] for line in lines[1:])


def test_the_grid_covers_decode_steps_prompts_and_both() -> None:
    grid = make_grid(max_rows=512, max_tokens=8192, max_context=4096)
    assert len(grid) == len(set(grid))
    assert {point.num_rows for point in grid if not point.num_prompt_tokens} == {1, 4, 16, 64, 128, 256, 512}
    assert any(not point.num_rows and point.num_prompt_tokens == 8192 for point in grid)
    assert any(point.num_rows == 256 and point.num_prompt_tokens for point in grid)
    assert any(point.start == 4096 for point in grid)
    sizes = token_sizes(8192)
    assert all(point.num_rows + point.num_prompt_tokens in sizes for point in grid if point.num_prompt_tokens)


def test_limits_leave_larger_steps_out() -> None:
    grid = make_grid(max_rows=16, max_tokens=512, max_context=1024)
    assert grid and all(point.num_rows <= 16 and point.num_rows + point.num_prompt_tokens <= 512 for point in grid)
    assert all(max(point.context, point.start) <= 1024 for point in grid)


def test_a_step_of_several_prompts_counts_what_each_token_attends_to() -> None:
    point = Point(num_rows=3, context=65, num_prompt_tokens=500, start=100, max_chunk=200)
    assert point.chunks() == [200, 200, 100]
    assert point.shape() == StepShape(3, 65, 500, (200 * 200 + 200 * 200 + 100 * 150) / 500)
    assert point.num_blocks() == 3 * 2 + 5 + 5 + 4
