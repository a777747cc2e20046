"""Each request has one final output, whoever ends it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from seesay.engine.core.outbox import Outbox
from seesay.engine.token_messages import TokenOutput
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import ErrorCode, RequestError
from seesay.values import FinishReason

BROKEN = RequestError(ErrorCode.INTERNAL, "broken")


class Listener:
    """Notes the outputs: (request, how it ended, why)."""

    def __init__(self) -> None:
        self.outputs: list[tuple[int, FinishReason | None, str]] = []
        self.has_output = threading.Event()

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        self.outputs += [(each.request_id, each.finish_reason, str(each.error or "")) for each in outputs]
        self.has_output.set()


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def outbox(listener: Listener) -> Outbox:
    outbox = Outbox()
    outbox.listener = listener  # type: ignore[assignment]
    assert outbox.open([1, 2, 3])
    return outbox


def test_nothing_follows_the_final_output(outbox: Outbox, listener: Listener) -> None:
    outbox.send([TokenOutput(request_id=1), TokenOutput(request_id=2, finish_reason="stop"), TokenOutput(request_id=9)])
    outbox.send([TokenOutput(request_id=2), TokenOutput(request_id=1, finish_reason="length")])
    outbox.fail([1, 2], BROKEN)
    assert listener.outputs == [(1, None, ""), (2, "stop", ""), (1, "length", "")]
    outbox.fail_all(BROKEN)
    assert listener.outputs[3:] == [(3, "error", "broken")]
    outbox.fail_all(BROKEN)
    assert len(listener.outputs) == 4


def test_requests_that_have_not_begun_outlive_a_failure(outbox: Outbox, listener: Listener) -> None:
    for request_id in (3, 1, 9):
        outbox.take(request_id)
    outbox.fail_taken(BROKEN)
    assert listener.outputs == [(1, "error", "broken"), (3, "error", "broken")]
    outbox.send([TokenOutput(request_id=2, finish_reason="stop")])
    assert listener.outputs[2:] == [(2, "stop", "")]


def test_a_request_that_failed_is_forgotten(outbox: Outbox, listener: Listener) -> None:
    outbox.take(1)
    outbox.fail([1], BROKEN)
    assert outbox.open([1])
    outbox.fail_taken(BROKEN)
    assert len(listener.outputs) == 1, "it has not begun again"


def test_what_is_given_up_takes_no_more(outbox: Outbox, listener: Listener, caplog: pytest.LogCaptureFixture) -> None:
    outbox.give_up(Fault(ENGINE, "it hangs"))
    outbox.give_up(Fault(ENGINE, "it was closed"))
    assert [number for number, *_ in listener.outputs] == [1, 2, 3]
    assert outbox.fault == Fault(ENGINE, "it hangs")
    assert "it hangs; its requests end" in caplog.text and "it was closed" not in caplog.text
    listener.has_output.clear()
    assert not outbox.open([4, 5])
    assert listener.has_output.wait(60), "from a thread of its own"
    reason = "it hangs; the model must be loaded again"
    assert listener.outputs[3:] == [(4, "error", reason), (5, "error", reason)]


def test_a_receiver_that_fails_is_asked_once(outbox: Outbox, caplog: pytest.LogCaptureFixture) -> None:
    outbox.listener = None
    outbox.fail([1], BROKEN)  # nobody to tell
    outbox.send([TokenOutput(request_id=3)])
    outbox.listener = object()  # type: ignore[assignment]
    outbox.fail([2], BROKEN)
    assert "the receiver of the engine's outputs failed" in caplog.text
    with pytest.raises(AttributeError):
        outbox.send([TokenOutput(request_id=3)])
