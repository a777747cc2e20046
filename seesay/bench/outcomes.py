"""What came of each request of a measurement, and the figures of all of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0)
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(slots=True)
class Outcome:
    """The times of one answer in seconds of `time.perf_counter`, or its error. `gaps_s`: between pieces of its text."""

    kind: str
    started_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    ended_at: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    is_complete: bool = False
    error: str | None = None

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.first_at - self.started_at

    @property
    def token_s(self) -> float:
        """Time per token after the first."""
        return (self.last_at - self.first_at) / max(1, self.num_tokens - 1)

    @property
    def whole_s(self) -> float:
        """Time to the end of the answer."""
        return self.last_at - self.started_at

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two pieces."""
        return max(self.gaps_s, default=0.0)

    def note_piece(self, now: float) -> None:
        """Note a piece of text that has come."""
        if self.first_at:
            self.gaps_s.append(now - self.last_at)
        else:
            self.first_at = now
        self.last_at = now

    def read(self, data: bytes, now: float) -> None:
        """Note an event of the stream of a chat completion or of a completion."""
        if data == b"[DONE]":
            self.is_complete = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = f"in the stream: {str(event['error'])[:200]}"
            return
        if usage := event.get("usage"):
            self.num_prompt_tokens, self.num_tokens = usage.get("prompt_tokens", 0), usage["completion_tokens"]
        if any(_has_text(choice.get("delta", choice)) for choice in event.get("choices", ())):
            self.note_piece(now)

    def end(self) -> None:
        """Say what is missing in an answer that ended without an error."""
        if self.error is None and not (self.is_complete and self.first_at and self.num_tokens):
            self.error = "the stream had no content, no usage or no end"


def _has_text(delta: Mapping[str, Any]) -> bool:
    return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "text"))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile as numpy, vLLM and SGLang have it: interpolated between the two values around it. `values`
    must not be empty."""
    return float(np.percentile(values, percent))


def make_figures(
    outcomes: Sequence[Outcome],
    seconds: float,
    *,
    percentiles: Sequence[float] = PERCENTILES,
    goodput_ms: Mapping[str, float] | None = None,
    metrics: Sequence[str] = METRICS,
) -> dict[str, Any]:
    """Return the figures of requests that took so long together. Times are in milliseconds.

    ttft: to the first token. tpot: per token after it, by request. itl: between two pieces. e2el: to the end.
    goodput_ms: the most that a request may take of any of ttft, tpot and e2el to count as good. metrics: the times that
    are described.
    """
    good = [outcome for outcome in outcomes if outcome.error is None]
    figures: dict[str, Any] = {
        "num_prompts": len(outcomes),
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        **_count(good, seconds),
    }
    if goodput_ms:
        figures["request_goodput"] = sum(_is_in_time(outcome, goodput_ms) for outcome in good) / seconds
    for name in metrics:
        figures |= _describe(name, [*chain.from_iterable(_values_ms(outcome, name) for outcome in good)], percentiles)
    if errors := [outcome.error for outcome in outcomes if outcome.error is not None]:
        figures["first_error"] = errors[0]
    return figures


def _count(good: Sequence[Outcome], seconds: float) -> dict[str, float]:
    num_in, num_out = sum(o.num_prompt_tokens for o in good), sum(o.num_tokens for o in good)
    return {
        "duration_s": seconds,
        "total_input_tokens": num_in,
        "total_output_tokens": num_out,
        "request_throughput": len(good) / seconds,
        "request_per_minute": 60 * len(good) / seconds,
        "output_throughput": num_out / seconds,
        "total_token_throughput": (num_in + num_out) / seconds,
    }


def _is_in_time(outcome: Outcome, limits_ms: Mapping[str, float]) -> bool:
    times = _times_ms(outcome)
    return all(times[name] <= limit_ms for name, limit_ms in limits_ms.items())


def _times_ms(outcome: Outcome) -> dict[str, float]:
    return {"ttft": 1e3 * outcome.first_s, "tpot": 1e3 * outcome.token_s, "e2el": 1e3 * outcome.whole_s}


def _values_ms(outcome: Outcome, name: str) -> Sequence[float]:
    if name == "itl":
        return [1e3 * gap_s for gap_s in outcome.gaps_s]
    return [] if name == "tpot" and outcome.num_tokens < 2 else [_times_ms(outcome)[name]]


def _describe(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    figures = {
        f"mean_{name}_ms": statistics.fmean(values),
        f"median_{name}_ms": percentile(values, 50),
        f"std_{name}_ms": statistics.pstdev(values),
        f"min_{name}_ms": min(values),
        f"max_{name}_ms": max(values),
    }
    return figures | {f"p{percent:g}_{name}_ms": percentile(values, percent) for percent in percentiles}
