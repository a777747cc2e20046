"""Where the time of a queue went: counters over time, and the timings of its answers."""

from __future__ import annotations

from stages import Sample, find_passed, sum_up_spent

from seesay.values import EngineStats, StageTimings


def sample(at_s: float, num_preparing: int, num_encoded: int) -> Sample:
    return Sample(at_s, EngineStats(num_preparing=num_preparing, total_encoder_items=num_encoded))


def test_a_stage_is_passed_when_nothing_of_it_is_missing_any_more() -> None:
    samples = [  # 8 requests, of which the first sample knows nothing; 5 pictures were encoded before
        sample(0.0, 0, 5),
        sample(0.1, 8, 5),
        sample(0.2, 5, 5),
        sample(0.3, 4, 7),
        sample(0.4, 1, 9),
        sample(0.5, 0, 12),
        sample(0.6, 0, 13),
        sample(0.7, 0, 13),
    ]
    assert find_passed(samples, 8) == {
        "prepared": {"half": 0.3, "last": 0.5},
        "encoded": {"half": 0.4, "last": 0.6},
    }


def test_a_queue_without_pictures_has_no_time_of_encoding() -> None:
    assert find_passed([sample(0.0, 0, 5), sample(0.1, 0, 5)], 3) == {"prepared": {"half": 0.0, "last": 0.0}}


def test_stages_that_no_request_had_are_left_out() -> None:
    timings = [StageTimings(prefill_s=prefill_s, decode_s=2.0, total_s=4.0) for prefill_s in (0.1, 0.7, 0.2)]
    assert sum_up_spent(timings) == {
        "prefill": {"median": 0.2, "longest": 0.7},
        "decode": {"median": 2.0, "longest": 2.0},
    }
