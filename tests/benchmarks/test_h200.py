"""The offline figures, for a moment on the CPU; and what is made of a profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h200
import pytest
from h200 import on_gpu, summarize_gaps, summarize_time

from seesay.bench.plotting import Bars

RunBenchmark = Callable[..., list[dict[str, Any]]]


@pytest.mark.slow
def test_all_figures_are_printed(run_benchmark: RunBenchmark) -> None:
    start, single, *queues = run_benchmark(h200, "--scale", "0.005", "--side-px", "56")
    assert "engine_process" not in start
    assert start["what"] == "start" and start["seconds"] > 0
    assert single["what"] == "single" and single["ttft_ms"] > 0 and single["tpot_ms"] > 0
    assert single["ttft_ms"] > 1e3 * single["spent_s"]["encode"]["median"] > 0
    assert [(figures["what"], figures["requests"]) for figures in queues] == [
        ("text", 2), ("image", 1), ("shared", 8), ("small", 10)
    ]  # fmt: skip
    for figures, num_output_tokens in zip(queues, (256, 128, 64, 16), strict=True):
        num_tokens = figures["requests"] * num_output_tokens
        assert abs(figures["out_tok_per_s"] * figures["seconds"] / num_tokens - 1) < 0.1
        assert figures["engine"] == "seesay" and figures["in_tok_per_s"] > 0
        passed, spent = figures["stages"]["passed_s"], figures["stages"]["spent_s"]
        assert ("encoded" in passed) == (figures["what"] in ("image", "shared")) == ("encode" in spent)
        assert {"prepared", "launched", "first_token", "complete"} <= passed.keys()
        assert passed["launched"]["last"] <= passed["first_token"]["last"] <= passed["complete"]["last"]
        assert passed["complete"]["last"] <= figures["seconds"] + 0.01
        assert spent["decode"]["median"] <= spent["decode"]["longest"] <= passed["complete"]["last"] + 0.01
        assert figures["stages"]["engine"]["steps"] >= num_output_tokens
        assert figures["stages"]["cpu_s"]["front"] > 0
    assert [figures["stages"]["engine"]["encoder_items"] for figures in queues] == [0, 1, 1, 0]


@pytest.mark.slow
def test_both_forms_are_measured_in_one_run(run_benchmark: RunBenchmark, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    options = ("--scale", "0.005", "--side-px", "56", "--only", "text", "--engine-process", "both", "--plot", str(plot))
    records = run_benchmark(h200, *options)
    assert "engine" not in records[1]["stages"]["cpu_s"] and records[3]["stages"]["cpu_s"]["engine"] > 0
    found = [(figures["what"], figures["engine_process"]) for figures in records]
    assert found == [("start", False), ("text", False), ("start", True), ("text", True)]
    assert plot.stat().st_size > 0


def test_plots_tell_the_forms_apart() -> None:
    records = [{"what": "text", "req_per_s": 1.0, **form} for form in ({}, {"engine_process": True})]
    panel = h200.make_panels(records)[1]
    assert isinstance(panel, Bars) and list(panel.values) == ["text", "text, process"]


def test_a_trace_is_taken_of_this_process_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        h200.main(["seesay-demo", "--trace", str(tmp_path), "--engine-process", "both"])
    assert "--engine-process no" in capsys.readouterr().err


def event(cat: str, ts: float, dur: float, stream: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": cat, "ts": ts, "dur": dur, "args": {"stream": stream}}


EVENTS = [
    {"ph": "M", "name": "process_name"},
    event("gpu_memcpy", 160.0, 40.0),  # ends the window; 10 idle before it
    event("kernel", 100.0, 20.0),
    event("kernel", 110.0, 30.0, stream=8),  # beside the one before
    event("kernel", 115.0, 5.0),  # inside
    event("cuda_runtime", 90.0, 500.0),  # the host's time is not the GPU's
    event("gpu_memset", 145.0, 5.0),  # 5 idle before it
]


def test_a_profile_is_busy_where_kernels_and_copies_are() -> None:
    assert summarize_gaps(on_gpu({"traceEvents": EVENTS})) == {"busy_share": 0.85, "longest_gap_us": 10.0}


def test_a_profile_tells_what_took_the_time() -> None:
    long = [{**event, "dur": 1e3 * event["dur"]} for event in on_gpu({"traceEvents": EVENTS})]
    assert summarize_time(long) == {
        "streams_ms": {"7": 70.0, "8": 30.0},
        "kernels_ms": {"kernel": 55.0, "gpu_memcpy": 40.0, "gpu_memset": 5.0},
    }
