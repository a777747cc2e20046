"""The ends of requests: one final output each, with or without the scheduler, at once or when the tower has told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.engine.core.request_ends import RequestEnds
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.step_commit import SequenceUpdate
from seesay.values import MultimodalInput

BROKEN = RequestError(ErrorCode.INVALID_REQUEST, "broken")


class Part:
    """Ends of the requests 1 and 2, which are live, and 3, which waits; and what others are told."""

    def __init__(self) -> None:
        self.requests = LiveRequests()
        self.finished: list[tuple[Any, ...]] = []
        self.dropped: list[int] = []
        scheduler: Any = SimpleNamespace(finish=lambda *given: self.finished.append(given))
        self.ends = RequestEnds(scheduler, self.requests, self.dropped.append)
        for request_id in (1, 2, 3):
            self.requests.add(make_live(request_id), Awaited.GRAMMAR if request_id == 3 else None)

    def deliver(self, request: LiveRequest, *token_ids: int, logprobs: Any = (), **update: Any) -> Any:
        """Return the outputs of a step."""
        self.ends.deliver(request, SequenceUpdate(request.sequence, token_ids, **update), logprobs)
        return self.requests.take_outputs()


def make_live(request_id: int, **params: Any) -> LiveRequest:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    return LiveRequest.make(TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(**params)))


@pytest.fixture
def part() -> Part:
    return Part()


def test_tokens_are_handed_out_until_the_end(part: Part) -> None:
    request = part.requests.by_id[1]
    [output] = part.deliver(request, 5, logprobs=[{5: -0.5}])
    assert (output.token_ids, output.logprobs, output.finish_reason) == ((5,), ({5: -0.5},), None)
    assert not part.dropped and 1 in part.requests.by_id
    [output] = part.deliver(request, 6, finish_reason="stop", stop_token_id=6)
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ((6,), "stop", 6)
    assert output.error is None and part.dropped == [1] and list(part.requests.by_id) == [2]
    assert not part.finished, "the scheduler has ended it"


def test_an_end_with_an_error_tells_it(part: Part) -> None:
    [output] = part.deliver(part.requests.by_id[1], finish_reason="error", error=BROKEN)
    assert (output.finish_reason, output.error) == ("error", BROKEN) and part.dropped == [1]


def test_steps_of_several_are_delivered_in_their_order(part: Part) -> None:
    one, other = part.requests.by_id.values()
    part.ends.deliver_all(
        [(other, SequenceUpdate(other.sequence, (7,)), ()), (one, SequenceUpdate(one.sequence, (8,), "length"), ())]
    )
    outputs = part.requests.take_outputs()
    assert [(each.request_id, each.token_ids) for each in outputs] == [(2, (7,)), (1, (8,))]


def test_a_lent_embedding_is_awaited_with_the_end(part: Part) -> None:
    request = part.requests.by_id[1]
    request.lent_items.add(0)
    assert part.deliver(request, 6, finish_reason="stop", stop_token_id=6) == []
    assert not part.dropped and request.end is not None and 1 in part.requests.by_id
    request.end()
    [output] = part.requests.take_outputs()
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ((6,), "stop", 6)
    assert part.dropped == [1] and request.end is None


@pytest.mark.parametrize(("error", "reason"), [(None, "stop"), (BROKEN, "error")])
def test_a_pooled_request_ends_with_its_prompt_and_has_no_token(error: Any, reason: str, part: Part) -> None:
    request = make_live(4, pooling="last", max_new_tokens=1)
    part.requests.add(request)
    given: Any = "error" if error else "length"
    [output] = part.deliver(request, 9, finish_reason=given, stop_token_id=9, error=error)
    assert (output.token_ids, output.finish_reason, output.stop_token_id) == ((), reason, None)
    assert output.error == error and part.dropped == [4]


def test_an_end_from_outside_is_the_schedulers_too_and_comes_once(part: Part) -> None:
    for _ in range(2):
        part.ends.end(1, "abort")
    [output] = part.requests.take_outputs()
    assert (output.request_id, output.finish_reason, output.error) == (1, "abort", None)
    assert part.finished == [(1, "abort", None)] and part.dropped == [1]
    part.ends.end(3, "error", BROKEN)
    [output] = part.requests.take_outputs()
    assert (output.finish_reason, output.error) == ("error", BROKEN)
    assert part.finished[1:] == [(3, "error", BROKEN)] and not part.requests.held[Awaited.GRAMMAR]


def test_a_failure_ends_those_that_still_compute(part: Part) -> None:
    waits = part.requests.by_id[2]
    waits.lent_items.add(0)
    part.deliver(waits, 6, finish_reason="stop")
    for request_id in (1, 2, 3, 9):
        part.ends.fail(request_id, BROKEN)
    outputs = part.requests.take_outputs()
    assert [(each.request_id, each.finish_reason, each.error) for each in outputs] == [
        (1, "error", BROKEN),
        (3, "error", BROKEN),
    ]
    assert part.finished == [(1, "error", BROKEN), (3, "error", BROKEN)] and list(part.requests.by_id) == [2]


def test_a_failure_is_explained(part: Part) -> None:
    part.ends.fail(1, ZeroDivisionError("odd"))
    part.ends.fail_item(part.requests.by_id[2], ZeroDivisionError("a bad picture"), 3)
    one, other = part.requests.take_outputs()
    assert one.error is not None and one.error.code is ErrorCode.INTERNAL and "odd" in str(one.error)
    assert other.error is not None and "a bad picture" in str(other.error) and other.failed_item == 3
    assert other.finish_reason == "error" and one.failed_item is None and part.dropped == [1, 2]
    assert [given[0] for given in part.finished] == [1], "the scheduler has no more what the tower failed for"
