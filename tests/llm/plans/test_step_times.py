"""Predicted durations of steps: positive and monotone whatever was observed, and soon those of the machine."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import num_examples

from seesay.llm.plans.step_plan import Row
from seesay.llm.plans.step_times import StepCosts, StepTimes, StepWork, count_pairs, measure_work
from seesay.llm.running.step_sizes import fill_up, token_sizes

FLOPS_PER_TOKEN = 1e8
GUESS = StepCosts.guess(FLOPS_PER_TOKEN)
SIZES = token_sizes(1024)
MEASURED = StepCosts(
    sizes=SIZES,
    seconds=[4e-3 + 2e-5 * size for size in SIZES],
    context_s=2e-8,
    pair_s=1e-9,
    is_padded=True,
    spread=0.2,
)
works = st.builds(
    StepWork,
    st.integers(0, 512),
    st.integers(0, 1 << 20),
    st.integers(1, 20_000),
    st.floats(0, 1e9),
)
observations = st.lists(st.tuples(works, st.floats(0, 1e4)), max_size=30)
UNPADDED = replace(MEASURED, is_padded=False)
starts = st.sampled_from([GUESS, MEASURED])


@dataclass(frozen=True)
class MadeUp:
    """A machine whose steps take a linear time, with noise, and sometimes stall."""

    constant_s: float
    token_s: float
    context_s: float
    pair_s: float
    stall_share: float = 0.02

    def seconds(self, work: StepWork) -> float:
        return (
            self.constant_s
            + self.token_s * (work.num_decode_rows + work.num_prompt_tokens)
            + self.context_s * work.num_decode_context
            + self.pair_s * work.num_prompt_pairs
        )

    def run(self, work: StepWork, rng: random.Random) -> float:
        stall = rng.uniform(3, 100) if rng.random() < self.stall_share else 1
        return self.seconds(work) * rng.lognormvariate(0, 0.03) * stall


def draw_work(rng: random.Random) -> StepWork:
    num_rows, num_tokens = rng.choice((0, 1, 4, 16, 64)), rng.choice((2, 7, 16, 64, 128, 256, 500))
    pairs = count_pairs(rng.choice((0, 0, 300, 1000)), num_tokens)
    return StepWork(num_rows, num_rows * rng.choice((100, 500, 1500)), num_tokens, pairs)


def find_errors(times: StepTimes, machine: MadeUp, factor: float = 1.0) -> list[float]:
    """Relative errors of predictions, ascending."""
    rng = random.Random(1)
    works = [draw_work(rng) for _ in range(200)]
    return sorted(abs(times.predict(work) / (factor * machine.seconds(work)) - 1) for work in works)


def learn(times: StepTimes, machine: MadeUp, num_steps: int, rng: random.Random, factor: float = 1.0) -> None:
    """The last steps do not stall."""
    calm = replace(machine, stall_share=0)
    for index in range(num_steps):
        work = draw_work(rng)
        times.observe(work, factor * (machine if index < num_steps - 10 else calm).run(work, rng))


def test_the_work_of_a_plan_is_that_of_its_rows() -> None:
    rows = [
        Row(seq_id=index, start=start, num_tokens=count, samples=True)
        for index, (start, count) in enumerate([(9, 1), (19, 1), (0, 100), (50, 10)])
    ]
    assert measure_work(rows) == StepWork(2, 10 + 20, 110, 100 * 50 + 10 * 55)


@given(starts, observations, works, works)
def test_more_work_never_takes_less_time(
    costs: StepCosts, observed: list[tuple[StepWork, float]], work: StepWork, more: StepWork
) -> None:
    times = StepTimes(costs)
    for each, seconds in observed:
        times.observe(each, seconds)
    both = StepWork(
        work.num_decode_rows + more.num_decode_rows,
        work.num_decode_context + more.num_decode_context,
        work.num_prompt_tokens + more.num_prompt_tokens,
        work.num_prompt_pairs + more.num_prompt_pairs,
    )
    assert 0 < times.predict(StepWork(num_prompt_tokens=1)) <= times.predict(work) <= times.predict(both) < 1e12


@given(starts, observations)
def test_more_tokens_are_always_predicted_to_take_longer(
    costs: StepCosts, observed: list[tuple[StepWork, float]]
) -> None:
    """A step can be made shorter, whatever was observed."""
    times = StepTimes(costs)
    for each, seconds in observed:
        times.observe(each, seconds)
    durations = [times.predict(StepWork(8, 800, 64 * count)) for count in range(1, 40)]
    assert all(fewer < more for fewer, more in pairwise(durations))


machines = st.builds(
    MadeUp,
    constant_s=st.floats(1e-3, 2e-2),
    token_s=st.floats(2e-4, 1e-2),
    context_s=st.floats(0, 1e-6),
    pair_s=st.floats(0, 1e-6),
)


@settings(deadline=None, max_examples=num_examples(30))
@given(machines, st.integers(0, 1000))
def test_a_crude_guess_becomes_the_machine_within_200_steps(machine: MadeUp, seed: int) -> None:
    """With noise of 3 % and a stall in every fiftieth step."""
    times = StepTimes(GUESS)
    learn(times, machine, 200, random.Random(seed))
    errors = find_errors(times, machine)
    assert errors[100] < 0.12 and errors[-1] < 0.7


@settings(deadline=None, max_examples=num_examples(30))
@given(machines, st.integers(0, 1000), st.sampled_from([0.5, 2.0]))
def test_a_machine_that_becomes_slower_or_faster_is_known_within_60_steps(
    machine: MadeUp, seed: int, factor: float
) -> None:
    times, rng = StepTimes(GUESS), random.Random(seed)
    learn(times, machine, 200, rng)
    learn(times, machine, 60, rng, factor)
    assert find_errors(times, machine, factor)[100] < 0.15


def test_a_measured_start_is_corrected_within_20_steps() -> None:
    machine = MadeUp(4.8e-3, 2.4e-5, 2.4e-8, 1.2e-9, stall_share=0)  # 20 % slower
    times = StepTimes(UNPADDED)
    before = find_errors(times, machine)[100]
    learn(times, machine, 20, random.Random(0))
    assert find_errors(times, machine)[100] < 0.05 < 0.1 < before


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_one_stalled_step_changes_little(seconds: float) -> None:
    machine, times = MadeUp(4e-3, 2e-5, 2e-8, 1e-9), StepTimes(UNPADDED)
    learn(times, machine, 50, random.Random(0))
    work = StepWork(16, 8000, 512, count_pairs(0, 512))
    before = times.predict(work)
    times.observe(work, seconds)
    assert times.predict(work) == pytest.approx(before, rel=0.1)


def test_a_first_compilation_is_soon_forgotten() -> None:
    machine, times = MadeUp(2e-3, 1e-3, 1e-7, 1e-7), StepTimes(GUESS)
    times.observe(StepWork(0, 0, 64, count_pairs(0, 64)), 40.0)
    learn(times, machine, 30, random.Random(3))
    assert find_errors(times, machine)[100] < 0.15


def test_what_no_step_tells_anything_about_stays_what_it_was() -> None:
    machine, times = MadeUp(4e-3, 2e-5, 2e-8, 1e-9), StepTimes(UNPADDED)
    learn(times, machine, 100, random.Random(0))
    long_context = StepWork(256, 256 * 2000, 64, 64 * 32)
    before = times.predict(long_context)
    for _ in range(5000):
        work = StepWork(1, 10, 64, 64 * 32)
        times.observe(work, machine.seconds(work))
    assert times.predict(long_context) == pytest.approx(before, rel=0.1)


def test_the_same_observations_give_the_same_predictions() -> None:
    first, second = StepTimes(GUESS), StepTimes(GUESS)
    for times in (first, second):
        learn(times, MadeUp(5e-3, 3e-3, 0, 0), 100, random.Random(5))
    rng = random.Random(6)
    assert all(first.predict(work) == second.predict(work) for work in (draw_work(rng) for _ in range(100)))


def test_padding_takes_the_time_of_tokens() -> None:
    times = StepTimes(MEASURED)
    for count in (1, 3, 65, 700, 1024):
        padded = fill_up(count, SIZES)
        assert times.predict(StepWork(0, 0, count)) == pytest.approx(4e-3 + 2e-5 * padded)
    assert times.predict(StepWork(64, 0, 640)) == times.predict(StepWork(0, 0, 704))
    assert times.predict(StepWork(0, 0, 5000)) == pytest.approx(4e-3 + 2e-5 * 5000)  # beyond what was measured


def test_steps_that_are_not_padded_grow_with_every_token() -> None:
    durations = [StepTimes(GUESS).predict(StepWork(0, 0, count)) for count in (1, 2, 3, 500, 1024, 3000)]
    expected = [1e-3 + count * FLOPS_PER_TOKEN / 5e10 for count in (1, 2, 3, 500, 1024, 3000)]
    assert durations == pytest.approx(expected)


def test_a_larger_step_that_was_measured_to_be_faster_counts_as_fast_as_the_smaller() -> None:
    costs = StepCosts(
        sizes=(64, 128, 256), seconds=(5e-3, 4e-3, 6e-3), context_s=1e-8, pair_s=1e-9, is_padded=True, spread=0.2
    )
    times = StepTimes(costs)
    assert [times.predict(StepWork(0, 0, count)) for count in (64, 128, 256)] == pytest.approx([5e-3, 5e-3, 6e-3])
