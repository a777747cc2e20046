"""The requests of a loop: those that it computes, those that wait for something before, and their outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seesay.engine.core.live_request import LiveRequest
from seesay.engine.core.live_requests import Awaited, LiveRequests
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.launched_step import PositionOutputs, RowResult
from seesay.llm.scheduling.step_commit import SequenceUpdate
from seesay.values import MultimodalInput


def processor(_ids: Any, logits: Any) -> Any:
    return logits


def make_live(request_id: int, *, processors: Any = (), **fields: Any) -> LiveRequest:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    request = TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(), **fields)
    return LiveRequest.make(request, processors)


@pytest.fixture
def requests() -> LiveRequests:
    """1 and 2 are live; 3 waits for commands, 4 and 5 for a grammar, 6 for an adapter."""
    made = LiveRequests()
    made.add(make_live(1, processors=(processor,)))
    made.add(make_live(2))
    for request_id, awaited in (
        (3, Awaited.COMMANDS),
        (4, Awaited.GRAMMAR),
        (5, Awaited.GRAMMAR),
        (6, Awaited.ADAPTER),
    ):
        made.add(make_live(request_id, processors=(processor,)), awaited)
    return made


def ids_of(requests: Any) -> list[int]:
    return sorted(request.request_id for request in requests)


def test_all_that_have_not_ended(requests: LiveRequests) -> None:
    assert ids_of(requests.iterate()) == [1, 2, 3, 4, 5, 6]
    assert ids_of(requests.iterate(but=Awaited.GRAMMAR)) == [1, 2, 3, 6]
    assert sorted(requests.by_id) == [1, 2] and list(requests.processors) == [1], "those that wait are not computed"


def test_those_that_waited_for_one_thing_are_taken_together(requests: LiveRequests) -> None:
    assert ids_of(requests.take_held(Awaited.GRAMMAR)) == [4, 5]
    assert requests.take_held(Awaited.GRAMMAR) == [] and ids_of(requests.iterate()) == [1, 2, 3, 6]


def test_one_is_taken_wherever_it_waits(requests: LiveRequests) -> None:
    for request_id in (1, 3, 4, 6):
        found = requests.take(request_id)
        assert found is not None and found.request_id == request_id
    assert requests.take(9) is None
    assert ids_of(requests.iterate()) == [1, 2, 5], "it waits for nothing more; what is live stays"


def test_tokens_make_an_output_unless_they_wait_for_the_end(requests: LiveRequests) -> None:
    deferring = make_live(7, defers_tokens=True)
    requests.add(deferring)
    for request in (requests.by_id[1], deferring):
        update = SequenceUpdate(request.sequence, (5, 6))
        requests.add_tokens(request, update, [{5: -0.5}, {6: -0.25}, {7: -0.125}])
    outputs = requests.take_outputs()
    assert [(each.request_id, each.token_ids, each.logprobs) for each in outputs] == [
        (1, (5, 6), ({5: -0.5}, {6: -0.25}))
    ]
    requests.add_tokens(requests.by_id[1], SequenceUpdate(requests.by_id[1].sequence, (8,), "stop"), [])
    assert requests.take_outputs() == []
    for request_id, expected in ((1, (8,)), (7, (5, 6))):
        requests.end(requests.take(request_id) or deferring, "stop", stop_token_id=8)
        [output] = requests.take_outputs()
        assert (output.token_ids, output.finish_reason, output.stop_token_id) == (expected, "stop", 8)


def test_what_ended_is_known_no_more(requests: LiveRequests) -> None:
    requests.end(requests.by_id[1], "error", error=ValueError("odd"), failed_item=3)
    assert sorted(requests.by_id) == [2] and not requests.processors
    [output] = requests.take_outputs()
    assert isinstance(output.error, RequestError) and output.error.code is ErrorCode.INTERNAL
    assert (output.failed_item, output.finish_reason) == (3, "error")


def test_one_that_was_never_live_is_refused(requests: LiveRequests) -> None:
    error = RequestError(ErrorCode.INVALID_REQUEST, "no")
    requests.refuse(40, error)
    [output] = requests.take_outputs()
    assert (output.request_id, output.finish_reason, output.error) == (40, "error", error)
    assert output.report is not None


def test_nothing_is_left_where_all_is_forgotten(requests: LiveRequests) -> None:
    requests.refuse(40, RequestError(ErrorCode.INVALID_REQUEST, "no"))
    requests.clear()
    assert not list(requests.iterate()) and not requests.processors and requests.take_outputs() == []


def test_values_of_rows_go_to_those_that_are_still_computed(requests: LiveRequests) -> None:
    ended = requests.by_id[2]
    ended.end = lambda: None
    values = PositionOutputs(start=0, values=np.ones((1, 2)))  # type: ignore[arg-type]
    requests.add_rows([RowResult(seq_id=seq_id, start=0, logits=values) for seq_id in (1, 2, 9)])
    assert requests.by_id[1].logits.as_array() is not None and ended.logits.as_array() is None


def test_the_first_launch_of_a_sequence_is_noted(requests: LiveRequests) -> None:
    begun: Any = [type("Begun", (), {"seq_id": seq_id}) for seq_id in (1, 9)]
    plan = StepPlan(rows=(), begun=tuple(begun))
    requests.note_launch(plan)
    first = requests.by_id[1].computing_at
    assert first is not None and requests.by_id[2].computing_at is None
    requests.note_launch(plan)
    assert requests.by_id[1].computing_at == first
