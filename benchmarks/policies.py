"""What the engine's policy for the length of steps knows at start of a machine whose step times are known."""

from __future__ import annotations

from step_model import LinearTimes

from seesay.llm.plans.step_times import StepCosts, StepTimes
from seesay.llm.running.step_sizes import token_sizes

MEASURED_TOKENS = 4096
SPREAD = 0.2
"""As the engine measures it at start."""


def make_step_times(times: LinearTimes) -> StepTimes:
    """Return what the engine would have measured at start."""
    constant_ms, _, context_ms, token_ms, pair_ms = times.mixed
    sizes = token_sizes(MEASURED_TOKENS)
    costs = StepCosts(
        sizes=sizes,
        seconds=[(constant_ms + token_ms * size) / 1e3 for size in sizes],
        context_s=context_ms / 1e3,
        pair_s=pair_ms / 1e3,
        is_padded=True,
        spread=SPREAD,
    )
    return StepTimes(costs)
