"""The timeline of an answer's stages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from seesay.ui.timeline import draw_timeline, format_seconds, make_timeline
from seesay.values import StageTimings


def spans(**timings: float) -> dict[str, Any]:
    stages = make_timeline(timings)
    return {stage.name: (pytest.approx(stage.start_s), pytest.approx(stage.end_s)) for stage in stages}


def test_stages_follow_each_other_and_prefill_ends_with_the_first_token() -> None:
    assert spans(fetch_s=1, encode_s=2, prefill_s=3, decode_s=4, time_to_first_token_s=7, total_s=11) == {
        "fetch": (0, 1), "encode": (1, 3), "wait": (3, 4), "read prompt": (4, 7), "write": (7, 11),
    }  # fmt: skip


def test_a_prefill_that_began_while_the_encoder_ran_overlaps_it() -> None:
    assert spans(encode_s=2, prefill_s=2.5, decode_s=1, time_to_first_token_s=3) == {
        "encode": (0, 2), "read prompt": (0.5, 3), "write": (3, 4),
    }  # fmt: skip


def test_media_that_went_through_a_stage_together_end_by_the_first_token() -> None:
    stages = make_timeline({"decode_media_s": 6, "encode_s": 2, "prefill_s": 1, "time_to_first_token_s": 4})
    assert [(stage.name, stage.end_s, stage.duration_s) for stage in stages] == [
        ("read file", 3, 6), ("encode", 4, 2), ("read prompt", 4, 1),
    ]  # fmt: skip
    html = draw_timeline(stages)
    assert (
        "read file: from 0 ms to 3.00 s, 6.00 s in total for several at once" in html and "<span>3.00 s</span>" in html
    )
    assert 'read prompt: from 3.00 s to 4.00 s"' in html


def test_stages_that_took_no_time_are_left_out() -> None:
    assert list(spans(fetch_s=0.0004, prefill_s=1, decode_s=0.0004, time_to_first_token_s=1)) == ["read prompt"]
    assert make_timeline({}) == make_timeline(asdict(StageTimings())) == ()
    assert draw_timeline(()) == ""


def test_every_stage_of_the_engine_is_drawn() -> None:
    names = [name for name in asdict(StageTimings()) if name not in ("time_to_first_token_s", "total_s")]
    timings = dict.fromkeys(names, 1.0) | {"time_to_first_token_s": 6.0}
    assert len(make_timeline(timings)) == len(names)


def test_bars_are_shares_of_the_whole() -> None:
    html = draw_timeline(make_timeline({"prefill_s": 1, "decode_s": 3, "time_to_first_token_s": 1}))
    assert "left:0.00%;width:25.00%" in html and "left:25.00%;width:75.00%" in html
    assert html.count('role="listitem"') == 2 and "3.00 s" in html


def test_seconds_are_short() -> None:
    assert [format_seconds(s) for s in (0.004, 0.0996, 1.5, 9.996)] == ["4 ms", "0.10 s", "1.50 s", "10.0 s"]
