"""Policies that size steps by time; what is made of simulated answers."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import policy
import pytest
from benchmarks.made_up_times import TRUE
from plotting import Bars
from policies import LEAST_TOKENS, AgedSteps, DeadlineSteps, find_base_ms, fit_tokens
from policy import IMAGE, RECORDED, TEXT, draw_arrivals, make_clients, make_panels, parse_policy, summarize
from simulator import Answer
from step_model import StepShape, load_recording

from seesay.engine import loading
from seesay.llm.step_policy import FixedChunks, StepLoad, StepPolicy, WaitingPrompt
from seesay.llm.step_sizes import token_sizes

SIZES = token_sizes(8192)


def make_load(*prompts: WaitingPrompt, num_rows: int = 64, is_streamed: bool = True) -> StepLoad:
    return StepLoad(
        num_decode_rows=num_rows,
        num_decode_context=500 * num_rows,
        is_streamed=is_streamed,
        is_encoding=False,
        prompts=iter(prompts),
    )


def waiting(num: int, wait_s: float) -> list[WaitingPrompt]:
    return [WaitingPrompt(0, 744, wait_s)] * num


def predict_ms(num_tokens: int, start: int = 0) -> float:
    """A step of 64 decode rows and the beginnings of prompts of 744 tokens."""
    whole, rest = divmod(num_tokens, 744)
    pairs = whole * 744 * (start + 372) + rest * (start + rest / 2)
    return TRUE.step_ms(StepShape(64, 500, num_tokens, pairs / num_tokens))


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_ms", [12.0, 25.0, 40.0, 90.0])
@pytest.mark.parametrize("start", [0, 30_000])
def test_a_step_has_as_many_tokens_as_its_duration_allows(max_ms: float, start: int) -> None:
    prompts = [WaitingPrompt(start, 744, 0.0)] * 20
    found = fit_tokens(TRUE, make_load(), prompts, max_ms)
    assert found + 64 in SIZES and predict_ms(found, start) <= max_ms
    assert predict_ms(SIZES[SIZES.index(found + 64) + 1] - 64, start) > max_ms


def test_a_step_has_all_that_waits_when_there_is_time() -> None:
    assert fit_tokens(TRUE, make_load(), [*waiting(1, 0.0), WaitingPrompt(100, 77, 0.0)], 40.0) == 744 + 77


def test_a_step_computes_something_however_little_time_there_is() -> None:
    assert fit_tokens(TRUE, make_load(), waiting(3, 0.0), 1.0) == LEAST_TOKENS
    assert fit_tokens(TRUE, make_load(), [], 1.0) == LEAST_TOKENS
    assert find_base_ms(TRUE, make_load()) > 1.0


def test_steps_are_not_limited_while_nobody_reads() -> None:
    for limited in (AgedSteps(times=TRUE), DeadlineSteps(times=TRUE)):
        assert limited.limit_prompt_tokens(make_load(*waiting(9, 9.0), is_streamed=False)) is None


def list_durations(timed: StepPolicy, num_prompts: int, waits_s: Sequence[float]) -> list[float]:
    limits = [timed.limit_prompt_tokens(make_load(*waiting(num_prompts, wait_s))) for wait_s in waits_s]
    return [predict_ms(limit) for limit in limits if limit is not None]


def test_steps_grow_as_prompts_age() -> None:
    aged = AgedSteps(times=TRUE, min_step_ms=12, max_step_ms=40, young_s=0.2, old_s=1.0)
    durations = list_durations(aged, 20, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 5.0])
    assert all(earlier <= later for earlier, later in pairwise(durations))
    assert 10 < durations[0] <= durations[1] <= 12 < durations[3] < durations[5] <= 40 and durations[5] > 35
    assert durations[5] == durations[6]


def test_steps_are_as_short_as_deadlines_allow() -> None:
    deadline = DeadlineSteps(times=TRUE, target_s=1.0, min_step_ms=10, max_step_ms=40)
    few = list_durations(deadline, 2, [0.0, 0.5, 0.96, 0.966, 2.0])
    many = list_durations(deadline, 100, [0.0, 0.5])
    assert few[0] == few[1] <= 10 < few[2] < few[3] < few[4] == predict_ms(2 * 744)
    assert few[4] < many[0] == many[1] <= 40 and many[0] > 35  # 100 prompts take more than a second


def test_a_share_of_the_time_is_what_a_deadline_asks_for() -> None:
    """Prompts that take 0.3 s of the 0.6 s that they have need half of each step."""
    load = make_load(*waiting(20, 0.4))
    num_ms = 20 * (TRUE.step_ms(StepShape(64, 500, 744, 372)) - find_base_ms(TRUE, load))
    deadline = DeadlineSteps(times=TRUE, target_s=0.4 + 2 * num_ms / 1e3, min_step_ms=1.0, max_step_ms=1e3)
    limit = deadline.limit_prompt_tokens(load)
    assert limit is not None
    assert predict_ms(limit) <= 2 * find_base_ms(TRUE, load) < predict_ms(SIZES[SIZES.index(limit + 64) + 1] - 64)


# --- options ---------------------------------------------------------------------------------------------------------


def test_the_policy_named_chunk_is_the_engines() -> None:
    chunk = FixedChunks(max_streamed_tokens=loading._STREAMED_TOKENS, max_encoding_tokens=loading._ENCODING_TOKENS)
    assert parse_policy("chunk")(TRUE) == chunk
    assert parse_policy("chunk:max_streamed_tokens=768")(TRUE) == FixedChunks(
        max_streamed_tokens=768, max_encoding_tokens=loading._ENCODING_TOKENS
    )


def test_fields_of_a_policy_follow_its_name() -> None:
    assert parse_policy("deadline:target_s=0.5,max_step_ms=33")(TRUE) == DeadlineSteps(
        times=TRUE, target_s=0.5, max_step_ms=33
    )
    assert parse_policy("aged:old_s=2")(TRUE) == AgedSteps(times=TRUE, old_s=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("best", "must be chunk, aged or deadline, got 'best'"),
        ("deadline:speed=3", "speed is none of target_s, max_step_ms, min_step_ms"),
        ("aged:times=3", "times is none of"),
        ("chunk:400", "name=value"),
        ("chunk:max_streamed_tokens=4,400", "name=value"),
        ("deadline:target_s=soon", "could not convert"),
    ],
)
def test_a_policy_that_is_not_known_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_policy(text)


# --- workloads -------------------------------------------------------------------------------------------------------


def test_requests_arrive_as_in_the_http_benchmark() -> None:
    arrivals = draw_arrivals(1.0)
    assert sum(request.tag == "text" for request in arrivals) == 345
    assert sum(request.tag == "image" for request in arrivals) == 129
    digest = hashlib.sha256("".join(f"{each.tag}{each.at_s:.6f}" for each in arrivals).encode()).hexdigest()
    assert digest[:16] == "cb6827d50b0bdfd0"


def test_six_clients_share_the_requests() -> None:
    clients = make_clients("text", 1.0)
    assert [client.at_a_time for client in clients] == [43] * 6
    assert sum(len(client.requests) for client in clients) == 512
    assert [client.at_a_time for client in make_clients("image", 1.0)] == [22] * 6
    texts, images = make_clients("interference", 1.0)
    assert (len(texts.requests), len(images.requests)) == (16, 32)
    assert images.requests[1].at_s - images.requests[0].at_s == pytest.approx(0.05)
    assert sum(client.at_a_time for client in make_clients("offline-text", 1.0)) >= 512


# --- figures ---------------------------------------------------------------------------------------------------------


def test_figures_of_answers() -> None:
    even = Answer(request=TEXT, sent_at_s=0.0, tokens_at_s=[1.0, 1.02, 1.04, 1.06])
    slow = Answer(request=TEXT, sent_at_s=1.0, tokens_at_s=[1.5, 1.51, 1.76, 1.8])
    late = Answer(request=IMAGE, sent_at_s=0.5, tokens_at_s=[3.5, 3.51, 3.52, 4.0])
    figures = summarize("mixed", [even, slow, late])
    assert figures == {
        "req_per_s": 0.75,
        "text": {"ttft_s_p50": 1.0, "ttft_s_p99": 1.0, "tpot_ms_p50": 100.0, "gap_ms_p99": 250.0, "gap_ms_max": 250.0},
        "image": {"ttft_s_p50": 3.0, "ttft_s_p99": 3.0, "tpot_ms_p50": 166.7, "gap_ms_p99": 480.0, "gap_ms_max": 480.0},
        "goodput": 0.333,
    }


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> list[dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["policy.py", *arguments])
    policy.main()
    return [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]


def test_figures_of_each_workload_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, *lines = run_main(monkeypatch, capsys, "--scale", "0.1", "--policy", "chunk", "--policy", "aged")
    assert machine["times"] == load_recording(RECORDED).source and machine["slowdown"] == 1.2
    assert [(line["policy"], line["what"]) for line in lines] == [
        (name, workload) for name in ("chunk", "aged") for workload in policy.WORKLOADS
    ]
    for line in lines:
        if line["what"] == "interference":
            assert 0 < line["pace_share"] < 1 and line["longest_gap_ms"] > line["longest_gap_before_ms"] > 0
        else:
            assert line["req_per_s"] > 0 and 0 <= line["goodput"] <= 1


def test_figures_have_panels() -> None:
    text = {"what": "text", "policy": "chunk", "goodput": 0.2, "text": {"ttft_s_p50": 3.0}}
    panels = make_panels([text, text | {"policy": "aged", "goodput": 1}])
    assert [(panel.title, panel.values) for panel in panels if isinstance(panel, Bars)] == [
        ("goodput", {"text": {"chunk": 0.2, "aged": 1}}),
        ("ttft_s_p50", {"text, texts": {"chunk": 3.0, "aged": 3.0}}),
    ]


@pytest.mark.parametrize(
    "arguments", [("--policy", "best"), ("--only", "texts"), ("--scale", "2"), ("--slowdown", "0")]
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_main(monkeypatch, capsys, *arguments)
    assert arguments[1] in capsys.readouterr().err or arguments[0] in ("--scale", "--slowdown")


def test_deadlines_share_the_gpu_better_than_fixed_chunks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, chunk, deadline = run_main(monkeypatch, capsys, "--only", "text", "--slowdown", "1.0")
    assert deadline["goodput"] > chunk["goodput"] + 0.3
    assert deadline["text"]["ttft_s_p50"] < 0.6 * chunk["text"]["ttft_s_p50"]
    assert deadline["req_per_s"] > 0.97 * chunk["req_per_s"]


def test_a_policy_that_predicts_too_little_makes_longer_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gaps_ms = []
    for factor in ("0.7", "1.0"):
        options = ("--only", "text", "--policy", "deadline", "--misprediction", factor, "--scale", "0.5")
        _, figures = run_main(monkeypatch, capsys, *options)
        gaps_ms.append(figures["text"]["gap_ms_max"])
    assert gaps_ms[0] > 1.2 * gaps_ms[1]
