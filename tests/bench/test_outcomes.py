"""What is made of the times of answers, and when requests arrive."""

from __future__ import annotations

import csv
import json
import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seesay.bench import report
from seesay.bench.arrivals import arrival_times_s
from seesay.bench.outcomes import Outcome, make_figures, percentile


def outcome(first_s: float, token_s: float, num_tokens: int = 11) -> Outcome:
    made = Outcome("x", started_at=5.0, num_prompt_tokens=100, num_tokens=num_tokens, is_complete=True)
    for number in range(num_tokens):
        made.note_piece(5.0 + first_s + number * token_s)
    return made


def test_figures_of_answers() -> None:
    outcomes = [outcome(1.0, 0.1), outcome(3.0, 0.02), Outcome("x", error="status 429")]
    figures = make_figures(outcomes, 4.0, percentiles=(99.0,), goodput_ms={"ttft": 2000, "tpot": 200})
    assert (figures["completed"], figures["failed"], figures["first_error"]) == (2, 1, "status 429")
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (200, 22)
    assert figures["request_throughput"] == 0.5 and figures["request_per_minute"] == 30
    assert figures["output_throughput"] == 5.5 and figures["total_token_throughput"] == 55.5
    assert figures["request_goodput"] == 0.25, "the second one was late"
    assert figures["mean_ttft_ms"] == pytest.approx(2000) and figures["p99_ttft_ms"] == pytest.approx(2980)
    assert figures["mean_tpot_ms"] == pytest.approx(60) and figures["max_itl_ms"] == pytest.approx(100)
    assert figures["min_e2el_ms"] == pytest.approx(2000) and figures["max_e2el_ms"] == pytest.approx(3200)


@given(
    values=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=30), percent=st.one_of(st.just(50.0), st.floats(0, 100))
)
def test_percentiles_are_interpolated(values: list[float], percent: float) -> None:
    """Interpolated linearly, as numpy does by default, so that p90 and p99 are those of other tools."""
    position = (len(values) - 1) * percent / 100
    below, ordered = int(position), sorted(values)
    above = min(below + 1, len(values) - 1)
    expected = ordered[below] + (ordered[above] - ordered[below]) * (position - below)
    assert percentile(values, percent) == pytest.approx(expected)
    assert percentile(values, 50) == pytest.approx(statistics.median(values))


def test_the_median_is_the_same_under_both_names() -> None:
    figures = make_figures([outcome(first_s, 0.1) for first_s in (1.0, 2.0, 3.5, 9.0)], 1.0, percentiles=(50.0, 90.0))
    assert figures["median_ttft_ms"] == figures["p50_ttft_ms"] == pytest.approx(2750)
    assert figures["p90_ttft_ms"] == pytest.approx(7350)


def test_only_the_wanted_times_are_described() -> None:
    figures = make_figures([outcome(1.0, 0.1)], 1.0, metrics=("ttft", "e2el"))
    assert {name.split("_")[1] for name in figures if name.endswith("_ms")} == {"ttft", "e2el"}


@pytest.mark.parametrize("choice", [{"delta": {"content": "a"}}, {"delta": {"reasoning": "a"}}, {"text": "a"}], ids=str)
def test_streams_of_chat_completions_and_completions(choice: dict[str, Any]) -> None:
    read = Outcome("x", started_at=1.0)
    empty = {name: {} if name == "delta" else "" for name in choice}
    for now, event in enumerate([{"choices": [empty]}, {"choices": [choice]}, {"choices": [choice]}], start=2):
        read.read(json.dumps(event).encode(), float(now))
    read.read(json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode(), 5.0)
    read.read(b"[DONE]", 5.0)
    read.end()
    assert read.error is None and (read.first_s, read.gaps_s, read.num_tokens) == (2.0, [1.0], 2)


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    figures = make_figures([outcome(1.0, 0.0, 1)], 1.0)
    assert "mean_tpot_ms" not in figures and figures["mean_ttft_ms"] == pytest.approx(1000)
    assert make_figures([Outcome("x", error="e")], 1.0)["request_throughput"] == 0


def test_requests_arrive_at_the_rate_and_as_steadily_as_asked_for() -> None:
    assert arrival_times_s(3) == [0, 0, 0] == arrival_times_s(3, rate=math.inf, burstiness=9)
    spread = {}
    for burstiness in (0.25, 1.0, 100.0):
        times = arrival_times_s(4000, rate=8, burstiness=burstiness, seed=1)
        gaps = [after - before for before, after in pairwise(times)]
        assert times[0] == 0 and statistics.fmean(gaps) == pytest.approx(1 / 8, rel=0.1)
        spread[burstiness] = statistics.pstdev(gaps) * 8
    assert spread[0.25] == pytest.approx(2, rel=0.1) and spread[1.0] == pytest.approx(1, rel=0.1)
    assert spread[100.0] == pytest.approx(0.1, rel=0.1)


def test_files_have_the_figures(tmp_path: Path) -> None:
    figures = make_figures([outcome(1.0, 0.1)], 2.0)
    records: list[dict[str, Any]] = [
        {"label": "a", "concurrency": 4, **figures},
        {"label": "b", "concurrency": 8, **figures, "request_goodput": 1.0},
    ]
    report.write_json(tmp_path / "f.json", records)
    assert json.loads((tmp_path / "f.json").read_text()) == records
    report.write_csv(tmp_path / "f.csv", records)
    rows = list(csv.DictReader((tmp_path / "f.csv").read_text().splitlines()))
    assert [(row["batch"], row["RPM"], row["FTL(ave)(s)"], row["50%(s)"]) for row in rows] == [
        ("4", "30", "1", "0.1"), ("8", "30", "1", "0.1"),
    ]  # fmt: skip
    assert [row["request_goodput"] for row in rows] == ["-", "1"]
    assert "time to the first token, ms: mean 1000.00" in report.make_table(records[0])
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "f.png", "title", records)
    assert (tmp_path / "f.png").stat().st_size > 10_000
