"""A simulated engine: when tokens come, by hand-made step times."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from benchmarks.made_up_times import TRUE, make_recording
from simulator import Answer, Client, Host, Machine, Request, Simulation
from step_model import RecordedTimes, StepShape

from seesay.llm.scheduling.step_policy import FixedChunks

TIMES = RecordedTimes(make_recording(TRUE))
TODAY = FixedChunks(max_streamed_tokens=368, max_encoding_tokens=1024)
TEXT = Request("text", num_prompt_tokens=704, num_output_tokens=5)
IMAGE = Request("image", num_prompt_tokens=1424, num_output_tokens=3, num_media_tokens=1369, num_patches=5476)


def simulate(
    *clients: Client, host: Host | None = None, slowdown: float = 1.0, is_streamed: bool = True
) -> list[Answer]:
    machine = Machine(times=TIMES, host=host or Host(), slowdown=slowdown)
    return Simulation(machine, clients, TODAY, is_streamed=is_streamed).run()


def gaps_ms(answer: Answer) -> list[float]:
    return [1e3 * (later - earlier) for earlier, later in pairwise(answer.tokens_at_s)]


def decode_ms(context: int) -> float:
    return TRUE.step_ms(StepShape(1, context))


def approx(ms: float | Sequence[float]) -> Any:
    return pytest.approx(ms, rel=1e-3)


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_a_request_takes_its_prompt_and_a_step_per_token(slowdown: float) -> None:
    [answer] = simulate(Client(requests=[TEXT]), slowdown=slowdown)
    first_ms = TRUE.step_ms(StepShape(0, 0, 704, 352))
    assert 1e3 * answer.tokens_at_s[0] == approx(slowdown * first_ms)
    assert gaps_ms(answer) == approx([slowdown * decode_ms(705 + index) for index in range(4)])


def test_steps_are_padded_as_in_the_engine() -> None:
    [answer] = simulate(Client(requests=[TEXT._replace(num_prompt_tokens=650)]))
    pairs = 650 * 325
    assert 1e3 * answer.tokens_at_s[0] == approx(TRUE.step_ms(StepShape(0, 0, 704, pairs / 704)))


def test_launches_are_hidden_behind_the_step_before_until_they_take_longer() -> None:
    hidden, [exposed] = (simulate(Client(requests=[TEXT]), host=Host(graph_launch_ms=ms)) for ms in (3.0, 9.0))
    assert gaps_ms(hidden[0])[1:] == approx([decode_ms(706 + index) for index in range(3)])
    assert gaps_ms(exposed)[1:-1] == approx([9.0] * 2)


def test_a_front_in_the_same_process_holds_launches_up() -> None:
    clients = [Client(requests=[TEXT._replace(num_prompt_tokens=64, num_output_tokens=30)] * 40)]
    medians_ms = []
    for shares_gil in (False, True):
        host = Host(graph_launch_ms=5.0, launch_ms=5.0, token_ms=0.1, shares_gil=shares_gil)
        medians_ms.append(statistics.median(gaps_ms(simulate(*clients, host=host)[-1])))
    assert medians_ms == approx([5.0, 9.0])


def test_a_client_has_no_more_unanswered_requests_than_it_may() -> None:
    answers = simulate(*(Client(requests=[TEXT] * 6, at_a_time=2) for _ in range(3)))
    assert len(answers) == 18
    for answer in answers:
        num_unanswered = sum(other.sent_at_s <= answer.sent_at_s < other.tokens_at_s[-1] for other in answers)
        assert num_unanswered <= 6
    assert [len(answer.tokens_at_s) for answer in answers] == [5] * 18
    assert sum(answer.sent_at_s == 0 for answer in answers) == 6


def test_requests_are_sent_at_their_time() -> None:
    first, second = simulate(Client(requests=[TEXT, TEXT._replace(at_s=3.0)]))
    assert second.sent_at_s == 3.0
    assert second.tokens_at_s[0] - 3.0 == pytest.approx(first.tokens_at_s[0], rel=1e-3)


def test_a_picture_is_encoded_before_its_prompt() -> None:
    [answer] = simulate(Client(requests=[IMAGE]))
    prompt_ms = TRUE.step_ms(StepShape(0, 0, 1472, 1424 * 712 / 1472))  # 1,424 tokens are padded to 1,472
    assert 1e3 * answer.tokens_at_s[0] == approx(TRUE.encode_ms(5476) + prompt_ms)


def test_small_pictures_share_a_call_of_the_tower() -> None:
    small = Request("image", num_prompt_tokens=300, num_output_tokens=1, num_media_tokens=256, num_patches=1024)
    simulation = Simulation(Machine(times=TIMES), [Client(requests=[small] * 8)], TODAY)
    simulation.run()
    assert 1e3 * simulation.encode_s == pytest.approx(TRUE.encode_ms(8 * 1024), rel=1e-6)


def test_calls_of_the_tower_and_steps_take_turns_while_answers_are_streamed() -> None:
    stream = TEXT._replace(num_output_tokens=100)
    streamed, *images = simulate(Client(requests=[stream]), Client(requests=[IMAGE._replace(at_s=0.1)] * 6))
    call_ms = TRUE.encode_ms(5476)
    longest_step_ms = TRUE.step_ms(StepShape(8, 1424, 384, 1424))
    assert call_ms + decode_ms(720) < max(gaps_ms(streamed)) < call_ms + longest_step_ms < 2 * call_ms
    assert all(len(image.tokens_at_s) == 3 for image in images)


def test_steps_are_longer_when_nothing_is_streamed() -> None:
    answers = simulate(Client(requests=[TEXT] * 4 + [IMAGE] * 4), is_streamed=False)
    streamed = simulate(Client(requests=[TEXT] * 4 + [IMAGE] * 4))
    assert max(max(gaps_ms(answer)) for answer in answers) > max(max(gaps_ms(answer)) for answer in streamed)


def test_the_same_input_gives_the_same_figures() -> None:
    clients = [Client(requests=[TEXT, IMAGE] * 5, at_a_time=3) for _ in range(2)]
    assert simulate(*clients) == simulate(*clients)
