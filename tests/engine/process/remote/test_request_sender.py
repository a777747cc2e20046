"""Requests on their way to a process: which wait for one, which are sent, and which end without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scripted_process import FACTS, ScriptedChild, ScriptedOrigin

from seesay.engine.commands import ModelStatus
from seesay.engine.process import kinds
from seesay.engine.process.remote.request_sender import RequestSender
from seesay.engine.process.remote.state import ProcessState
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import FinishReason, MediaItem, Modality, MultimodalInput

BROKEN = RequestError(ErrorCode.INVALID_REQUEST, "the picture cannot be read")
NO_MEMORY = MemoryError("no memory for a file")
HASH = bytes(32)


class Parts:
    """A sender whose listener and waker note what they are told."""

    def __init__(self, *, is_owner: bool = True) -> None:
        self.origin = ScriptedOrigin(is_owner=is_owner)
        self.state: Any = ProcessState(self.origin)
        self.num_wakes = 0
        waker: Any = self
        self.sender = RequestSender(self.state, waker)
        listener: Any = self
        self.sender.requests.listener = listener
        self.ledger = self.sender.requests.ledger
        self.outputs: list[TokenOutput] = []

    def wake(self) -> None:
        self.num_wakes += 1

    def on_outputs(self, outputs: Any) -> None:
        self.outputs.extend(outputs)

    def start(self, child: ScriptedChild | None = None) -> ScriptedChild:
        child = child or ScriptedChild()
        self.state.note_start(child, FACTS, ModelStatus())
        return child

    def add(self, request_id: int) -> Any:
        """Return the entry of a request that comes."""
        item = MediaItem(
            modality=Modality.IMAGE,
            span=(0, 2),
            slots=np.arange(2),
            hash=HASH,
            features={"pixels": np.zeros(3)},
            num_units=4,
        )
        prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3, items=(item,))
        return self.ledger.add(TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams()))

    def take_ends(self) -> list[tuple[int, FinishReason | None]]:
        self.sender.requests.hand_out()
        outputs, self.outputs = self.outputs, []
        return [(each.request_id, each.finish_reason) for each in outputs]


@pytest.fixture
def parts() -> Parts:
    return Parts()


def raises(error: Exception) -> Callable[[Any], object]:
    def fail(message: Any) -> None:
        raise error

    return fail


def test_a_request_is_sent_once_and_is_written_when_the_link_says_so(parts: Parts) -> None:
    child, entry = parts.start(), parts.add(1)
    parts.sender.send(entry)
    [message] = child.sent
    assert isinstance(message, kinds.Submit) and message.request.request_id == 1
    assert entry.receiver is child and not entry.is_written
    parts.sender.send(entry)
    assert len(child.sent) == 1
    child.dones[0](None)
    assert entry.is_written and parts.take_ends() == [] and parts.num_wakes == 0


def test_a_request_waits_where_there_is_no_process(parts: Parts) -> None:
    entry = parts.add(1)
    parts.sender.send(entry)
    assert parts.ledger.waiting() == [entry] and parts.take_ends() == [] and parts.num_wakes == 0


def test_one_that_has_ended_is_not_sent(parts: Parts) -> None:
    """Another may have its number now."""
    child, entry = parts.start(), parts.add(1)
    parts.ledger.remove(1)
    parts.sender.send(entry)
    again = parts.add(1)
    parts.sender.send(entry)
    assert child.sent == []
    parts.sender.send(again)
    assert len(child.sent) == 1


def test_a_request_whose_process_has_gone_waits_for_the_next(parts: Parts) -> None:
    child, entry = parts.start(), parts.add(1)
    child.is_broken = True
    parts.sender.send(entry)
    assert parts.state.deaf is child and parts.state.child is None and parts.num_wakes == 1
    assert parts.ledger.waiting() == [entry] and HASH not in parts.ledger.embeddings and parts.take_ends() == []


def test_a_request_goes_to_the_next_process_if_it_is_there_already(parts: Parts) -> None:
    first, second, entry = parts.start(), ScriptedChild(), parts.add(1)

    def replace(message: Any) -> None:
        parts.state.note_end(RuntimeError("it died"))
        parts.start(second)
        first.is_broken = True
        first.link.send(message)

    first.on_send = replace
    parts.sender.send(entry)
    assert len(second.sent) == 1 and entry.receiver is second and parts.state.child is second
    assert parts.num_wakes == 1


def test_what_cannot_be_sent_ends_its_request(parts: Parts) -> None:
    child = parts.start()
    child.on_send = raises(BROKEN)
    parts.sender.send(parts.add(1))
    assert parts.num_wakes == 1 and parts.outputs == [], "it is handed out by the thread"
    parts.sender.requests.hand_out()
    [output] = parts.outputs
    assert (output.request_id, output.finish_reason, output.error) == (1, "error", BROKEN)
    assert parts.state.child is child


def test_a_request_without_memory_for_its_arrays_ends(parts: Parts) -> None:
    child, entry = parts.start(), parts.add(1)
    parts.sender.send(entry)
    child.dones[0](NO_MEMORY)
    assert not entry.is_written
    parts.sender.requests.hand_out()
    [output] = parts.outputs
    assert output.request_id == 1 and output.finish_reason == "error"
    assert output.error is not None and output.error.code is ErrorCode.OUT_OF_MEMORY


def test_what_an_earlier_process_took_counts_no_more(parts: Parts) -> None:
    first, entry = parts.start(), parts.add(1)
    parts.sender.send(entry)
    parts.ledger.end_receiver(first)
    parts.start(second := ScriptedChild())
    parts.sender.send(entry)
    first.dones[0](None)
    assert not entry.is_written and entry.receiver is second


def test_messages_are_lost_with_the_process(parts: Parts) -> None:
    parts.sender.tell(kinds.EndGroup(1))
    child = parts.start()
    done = object()
    parts.sender.tell(kinds.EndGroup(2), done)  # type: ignore[arg-type]
    assert child.sent == [kinds.EndGroup(2)] and child.dones == [done] and parts.num_wakes == 0
    child.is_broken = True
    parts.sender.tell(kinds.EndGroup(3))
    assert parts.state.deaf is child and parts.state.child is None and parts.num_wakes == 1


def test_the_process_ends_what_it_has_when_it_is_aborted(parts: Parts) -> None:
    """One whose message waits ends at once, too; one that waits for a process ends without it."""
    child = parts.start()
    written, sent = parts.add(1), parts.add(2)
    parts.sender.send(written)
    parts.sender.send(sent)
    child.dones[0](None)
    parts.add(3)
    parts.sender.abort(iter([1, 2, 3, 9]))
    assert child.sent[2:] == [kinds.Abort((1, 2))]
    assert parts.take_ends() == [(2, "abort"), (3, "abort")] and parts.ledger.all_ids() == [1]


def test_nobody_is_told_of_nothing(parts: Parts) -> None:
    child = parts.start()
    parts.add(3)
    parts.sender.abort([9])
    parts.sender.abort([3])
    assert child.sent == [] and parts.take_ends() == [(3, "abort")]


def test_features_are_given_or_the_reason_why_not(parts: Parts) -> None:
    child = parts.start()
    parts.sender.give_features(1, 2, {"size": 3})
    parts.sender.give_features(4, 5, BROKEN)
    assert child.sent == [
        kinds.GiveFeatures(1, 2, {"size": 3}, None),
        kinds.GiveFeatures(4, 5, {}, kinds.Failure.of(BROKEN)),
    ]
    child.dones[0](None)
    assert len(child.sent) == 2


@pytest.mark.parametrize("is_late", [False, True])
def test_features_that_cannot_be_sent_are_an_error(parts: Parts, is_late: bool) -> None:
    child = parts.start()

    def fail(message: kinds.GiveFeatures) -> None:
        if message.features:
            raise NO_MEMORY

    if not is_late:
        child.on_send = fail
    parts.sender.give_features(1, 2, {"size": 3})
    if is_late:
        child.dones[0](NO_MEMORY)
    answer = child.sent[-1]
    assert (answer.request_id, answer.item_index, answer.features) == (1, 2, {})
    assert answer.error.code is ErrorCode.OUT_OF_MEMORY


def test_once_the_core_is_closed_ends_are_handed_out_at_once(parts: Parts) -> None:
    parts.add(1)
    parts.add(2)
    parts.sender.end(1, "abort")
    assert parts.outputs == [] and parts.num_wakes == 1
    parts.state.note_close()
    parts.sender.end(2, "error", BROKEN)
    assert [(each.request_id, each.error) for each in parts.outputs] == [(1, None), (2, BROKEN)]
    assert parts.num_wakes == 2


def test_nothing_waits_for_an_engine_that_sleeps_without_a_process() -> None:
    parts = Parts(is_owner=False)
    child = parts.start()
    parts.sender.send(parts.add(1))
    parts.add(2)
    parts.add(3)
    parts.state.note_deaf(child)
    parts.sender.refuse_waiting()
    assert parts.take_ends() == [], "the owner does not say that it sleeps"
    parts.origin.known = ModelStatus(asleep=("weights",), level=1)
    parts.sender.refuse_waiting()
    parts.sender.requests.hand_out()
    assert [each.request_id for each in parts.outputs] == [2, 3]
    for output in parts.outputs:
        assert output.finish_reason == "error" and output.error is not None
        assert output.error.code is ErrorCode.SLEEPING and "(weights)" in str(output.error)


def test_the_owner_is_not_asked_for_nobody() -> None:
    parts = Parts(is_owner=False)
    asked: list[int] = []
    parts.origin.read_status = lambda: asked.append(1)  # type: ignore[method-assign]
    parts.sender.refuse_waiting()
    assert not asked
    parts.add(1)
    parts.sender.refuse_waiting()
    assert asked == [1]
