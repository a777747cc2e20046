"""Requests whose process may end: each is handed exactly one final output, the first."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from seesay.engine.process import kinds
from seesay.engine.process.remote.requests import Requests
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import FinishReason, MultimodalInput


class Listener:
    """Takes what is handed out; `fails` is raised then."""

    def __init__(self) -> None:
        self.calls: list[list[TokenOutput]] = []
        self.fails: Exception | None = None

    def on_outputs(self, outputs: Any) -> None:
        self.calls.append(list(outputs))
        if self.fails is not None:
            raise self.fails

    def take(self) -> list[list[tuple[int, FinishReason | None]]]:
        calls, self.calls = self.calls, []
        return [[(each.request_id, each.finish_reason) for each in outputs] for outputs in calls]


class Parts:
    """Three live requests."""

    def __init__(self) -> None:
        self.aborted: list[list[int]] = []
        listener: Any = Listener()
        self.listener = listener
        self.requests = Requests(threading.Condition(), lambda ids: self.aborted.append(list(ids)))
        self.requests.listener = self.listener
        prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3, items=())
        for number in (1, 2, 3):
            self.requests.ledger.add(TokenRequest(request_id=number, prompt=prompt, params=SamplingParams()))


@pytest.fixture
def parts() -> Parts:
    return Parts()


def made(request_id: int, reason: FinishReason | None = None) -> kinds.Output:
    """An output of the process."""
    return kinds.Output.of(TokenOutput(request_id=request_id, token_ids=(7,), finish_reason=reason), request_id)


def test_outputs_of_live_requests_are_handed_out_in_one_call(parts: Parts) -> None:
    parts.requests.take_outputs([made(1), made(2), made(9), made(1, "stop"), made(1), made(1, "stop")])
    assert parts.listener.take() == [[(1, None), (2, None), (1, "stop")]]
    assert parts.requests.ledger.all_ids() == [2, 3]
    parts.requests.take_outputs([made(1), made(9, "stop")])
    parts.requests.take_outputs([])
    assert parts.listener.take() == [], "nobody is called for nothing"


def test_a_request_that_ends_without_the_process_ends_once(parts: Parts) -> None:
    error = RequestError(ErrorCode.INTERNAL, "lost")
    parts.requests.end(1, "error", error)
    assert parts.listener.take() == [], "not before it is handed out"
    parts.requests.end(1, "abort")
    parts.requests.end(2, "abort")
    parts.requests.end(9, "abort")
    parts.requests.take_outputs([made(1, "stop"), made(3)])
    parts.requests.hand_out()
    assert parts.listener.calls[1][0].error is error
    assert parts.listener.take() == [[(3, None)], [(1, "error"), (2, "abort")]]
    parts.requests.hand_out()
    assert parts.listener.take() == []


def test_a_request_that_the_process_ended_does_not_end_again(parts: Parts) -> None:
    parts.requests.take_outputs([made(1, "length")])
    parts.requests.end(1, "abort")
    parts.requests.hand_out()
    assert parts.listener.take() == [[(1, "length")]]


def test_requests_whose_receiver_fails_are_aborted_unless_they_have_ended(parts: Parts) -> None:
    parts.listener.fails = ValueError("no receiver")
    parts.requests.take_outputs([made(1), made(2, "stop"), made(3)])
    assert parts.aborted == [[1, 3]]
    parts.requests.end(1, "abort")
    parts.requests.hand_out()
    assert parts.aborted == [[1, 3], []] and len(parts.listener.calls) == 2


def test_outputs_are_dropped_while_nobody_listens(parts: Parts) -> None:
    parts.requests.listener = None
    parts.requests.take_outputs([made(1, "stop")])
    assert parts.requests.ledger.all_ids() == [2, 3]


def test_an_end_and_the_output_of_another_thread_are_one_final_output() -> None:
    """Whoever is first, many times."""
    for _ in range(50):
        parts = Parts()
        barrier = threading.Barrier(2)

        def end(parts: Parts = parts, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            parts.requests.end(1, "abort")
            parts.requests.hand_out()

        thread = threading.Thread(target=end)
        thread.start()
        barrier.wait()
        parts.requests.take_outputs([made(1, "stop")])
        thread.join()
        finals = [each for call in parts.listener.take() for each in call]
        assert len(finals) == 1 and finals[0] in [(1, "abort"), (1, "stop")]
