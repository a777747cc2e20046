"""What frontends share, without their processes: the shared state, the sums of figures, the limits."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from seesay.errors import ConfigError
from seesay.serving.errors import ApiError
from seesay.serving.frontends import state_messages as messages
from seesay.serving.frontends.limits import divide_limits
from seesay.serving.frontends.state_server import StateServer
from seesay.serving.settings import ServerSettings
from seesay.serving.stored.response_store import StoredResponse
from seesay.serving.stored.sessions import EMPTY
from seesay.serving.traffic.metric_sums import Family, Figures, Sample, add_up, keep_totals, read_families
from seesay.values import MediaPart, MediaPlace, Message, Modality, TextPart

KEY = (b"owner", 7)
SAID = (
    Message(
        role="user",
        parts=(
            MediaPart(
                modality=Modality.VIDEO,
                source=["data:a", "https://b"],
                options={"fps": 2.0, "size": [1, None]},
                place=MediaPlace(source="session_id"),
            ),
            TextPart(text="ä"),
        ),
        extra={"tool_calls": [{"id": "x"}], "name": "n"},
    ),
    Message(role="assistant", parts=()),
)


class Frontends:
    """A shared state of three frontends, of which two listen, and what it has sent to them."""

    def __init__(self, **limits: float) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.num_engine_restarts = 0
        self.shared_state = StateServer(
            3,
            2,
            lambda index, message: self.sent.append((index, message)),
            count_engine_restarts=lambda: self.num_engine_restarts,
            **limits,
        )
        for index in (0, 1):
            self.shared_state.join(index)
            self.shared_state.take(index, messages.Listening())
        self.shared_state.join(2)  # is being started

    def take(self, index: int, message: messages.ToSupervisor) -> list[tuple[int, Any]]:
        self.sent.clear()
        self.shared_state.take(index, message)
        return list(self.sent)

    def answer(self, index: int, question: messages.Asked) -> Any:
        [(asker, answer)] = self.take(index, question)
        assert asker == index and answer.number == question.number
        return answer

    def leave(self, index: int) -> list[tuple[int, Any]]:
        self.sent.clear()
        self.shared_state.leave(index)
        return list(self.sent)

    def figures(self, asker: int = 0) -> dict[tuple[str, str], float]:
        """The sums that a frontend gets, when all that are asked answer with their latest."""
        sent = self.take(asker, messages.GatherFigures(99, self.shared_state._frontends[asker].figures))
        for index, message in sent:
            if isinstance(message, messages.WantFigures):
                sent = self.take(index, messages.Figures(self.shared_state._frontends[index].figures, message.number))
        [(index, gathered)] = sent
        assert index == asker and gathered.number == 99
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in add_up(gathered.figures)
            for sample in family.samples
        }


def history(*said: Message) -> messages.History:
    return messages.History.of(EMPTY.extended(said, num_tokens=3, num_prompt_tokens=2))


def test_conversations_survive_the_way() -> None:
    stored = StoredResponse(body={"id": "r", "usage": None, "user": "\ud800"}, messages=SAID)
    assert messages.decode_response(messages.encode_response(stored)) == stored
    conversation = EMPTY.extended(SAID, num_tokens=3, num_prompt_tokens=2)
    assert messages.History.of(conversation).restore() == conversation
    assert messages.History.of(EMPTY).restore() == EMPTY
    part = messages.decode_response(messages.encode_response(stored)).messages[0].parts[0]
    assert isinstance(part, MediaPart) and part.place == MediaPlace(source="session_id")


def test_responses_are_kept_for_all_within_limits() -> None:
    frontends = Frontends()
    for number, name in enumerate("abc"):
        asked = messages.StoreResponse(number, b"o", name, name.encode(), 10)
        assert frontends.take(0, asked) == [(0, messages.Done(number))]
    assert frontends.take(1, messages.FindResponse(7, b"o", "a")) == [(1, messages.FoundResponse(7, None))], "evicted"
    assert frontends.take(1, messages.FindResponse(8, b"o", "c")) == [(1, messages.FoundResponse(8, b"c"))]
    assert frontends.take(1, messages.FindResponse(9, b"p", "c")) == [(1, messages.FoundResponse(9, None))], (
        "a stranger"
    )
    frontends.take(1, messages.DeleteResponse(10, b"o", "c"))
    assert frontends.take(0, messages.FindResponse(11, b"o", "c")) == [(0, messages.FoundResponse(11, None))]


def test_events_are_kept_for_all() -> None:
    frontends = Frontends()
    frontends.take(0, messages.StoreResponse(1, b"o", "a", b"a", 10))
    assert frontends.answer(1, messages.ReadEvents(2, b"o", "a", 0)) == messages.FoundEvents(2, [], False)
    frontends.take(0, messages.AddEvents(3, b"o", "a", [b"1", b"2"], False))
    assert frontends.answer(1, messages.ReadEvents(4, b"o", "a", 1)) == messages.FoundEvents(4, [b"2"], False)
    frontends.take(1, messages.AddEvents(5, b"o", "a", [], True))
    assert frontends.answer(0, messages.ReadEvents(6, b"o", "a", 2)) == messages.FoundEvents(6, [], True)
    assert frontends.answer(0, messages.ReadEvents(7, b"p", "a", 0)) == messages.FoundEvents(7, None, True)


def test_what_an_ended_front_was_computing_has_failed() -> None:
    """Unless it, or another one that cancelled it, has stored it again."""
    frontends = Frontends()
    frontends.take(0, messages.StoreResponse(1, b"o", "a", b"queued", 10, b"failed"))
    frontends.take(0, messages.AddEvents(2, b"o", "a", [b"1"], False))
    frontends.take(1, messages.StoreResponse(3, b"o", "b", b"queued", 10, b"failed"))
    frontends.leave(0)
    assert frontends.answer(1, messages.FindResponse(4, b"o", "a")).stored == b"failed"
    assert frontends.answer(1, messages.ReadEvents(5, b"o", "a", 0)) == messages.FoundEvents(5, [b"1"], True)
    assert frontends.answer(1, messages.FindResponse(6, b"o", "b")).stored == b"queued", "the other one goes on"
    frontends.shared_state.join(0)
    frontends.take(0, messages.StoreResponse(7, b"o", "b", b"cancelled", 10))
    frontends.leave(1)
    assert frontends.answer(0, messages.FindResponse(8, b"o", "b")).stored == b"cancelled"


def test_a_response_that_was_deleted_does_not_come_back() -> None:
    frontends = Frontends()
    frontends.take(0, messages.StoreResponse(1, b"o", "a", b"queued", 10, b"failed"))
    frontends.take(1, messages.DeleteResponse(2, b"o", "a"))
    frontends.leave(0)
    assert frontends.answer(1, messages.FindResponse(3, b"o", "a")).stored is None


def test_a_turn_is_of_one_front_at_a_time() -> None:
    frontends = Frontends()
    begun = frontends.answer(0, messages.BeginTurn(1, KEY))
    assert begun.history.restore() == EMPTY
    refused = frontends.answer(1, messages.BeginTurn(1, KEY))
    error = refused.restore()
    assert isinstance(error, ApiError) and (error.status_code, error.code) == (409, "session_busy")
    assert frontends.take(1, messages.CancelSession(2, KEY)) == [(0, messages.CancelTurn(1)), (1, messages.Done(2))]
    said = history(SAID[1])
    assert frontends.take(0, messages.EndTurn(2, 1, said)) == [(0, messages.Done(2))]
    begun = frontends.answer(1, messages.BeginTurn(3, KEY))
    assert begun.history == said
    assert frontends.take(0, messages.ForgetSession(3, KEY)) == [(1, messages.CancelTurn(3)), (0, messages.Done(3))]
    frontends.take(1, messages.EndTurn(4, 3, said))
    assert frontends.take(1, messages.BeginTurn(5, KEY))[0][1].history.restore() == EMPTY, "it was forgotten"


def test_turns_end_with_their_front() -> None:
    frontends = Frontends()
    frontends.take(0, messages.BeginTurn(1, KEY))
    frontends.take(0, messages.EndTurn(2, 1, history(SAID[1])))
    frontends.take(0, messages.BeginTurn(3, KEY))
    frontends.leave(0)
    begun = frontends.answer(1, messages.BeginTurn(1, KEY))
    assert begun.history == history(SAID[1]), "as before the turn that was lost"
    assert frontends.take(1, messages.EndTurn(2, 77, None)) == [(1, messages.Done(2))], "one that never began"


def counted(value: float) -> list[Family]:
    return [
        Family("n", "counter", "", [Sample("n_total", {"a": "x"}, value)]),
        Family("g", "gauge", "", [Sample("g", {}, value)]),
    ]


def test_figures_of_ended_fronts_stay_without_their_gauges() -> None:
    frontends = Frontends()
    frontends.take(0, messages.Figures(counted(1.0)))
    frontends.take(1, messages.Figures(counted(10.0)))
    found = frontends.figures(asker=0)
    assert found["n_total", "x"] == found["g", ""] == 11
    assert [found["seesay_front_up", index] for index in "012"] == [1, 1, 0]
    for restarts in (1, 2):
        frontends.num_engine_restarts += 1
        frontends.leave(1)
        frontends.shared_state.join(1)
        frontends.take(1, messages.Listening())
        found = frontends.figures(asker=0)
        assert found["n_total", "x"] == 1 + 10 * restarts and found["g", ""] == 1
        assert found["seesay_front_restarts_total", ""] == found["seesay_engine_restarts_total", ""] == restarts
        frontends.take(1, messages.Figures(counted(10.0)))
    assert frontends.figures(asker=0)["n_total", "x"] == 31


def test_nobody_waits_for_a_front_that_does_not_answer() -> None:
    frontends = Frontends(gather_s=0.0, reset_s=0.0)
    frontends.take(1, messages.Figures(counted(5.0)))
    [(asked, wanted)] = frontends.take(0, messages.GatherFigures(1, []))
    assert asked == 1
    assert frontends.shared_state.next_deadline_s < float("inf")
    frontends.sent.clear()
    frontends.shared_state.end_late_rounds()
    [(asker, gathered)] = frontends.sent
    assert asker == 0
    assert counted(5.0) in gathered.figures and frontends.shared_state.next_deadline_s == float("inf")
    assert frontends.take(1, messages.Figures(counted(6.0), wanted.number)) == [], "too late"
    assert [index for index, _ in frontends.take(0, messages.ResetCaches(2))] == [0, 1], "the one that asks, too"
    frontends.sent.clear()
    frontends.shared_state.end_late_rounds()
    assert frontends.sent == [(0, messages.Done(2))]


def test_requests_are_ended_in_all_fronts() -> None:
    frontends, key = Frontends(), messages.Turn.of(b"key")
    assert [messages.Turn.of(turn).restore() for turn in (b"key", "::1")] == [b"key", "::1"]
    sent = frontends.take(1, messages.AbortRequests(1, key, "mine"))
    number = sent[0][1].number
    assert sent == [(index, messages.DoAbort(number, key, "mine")) for index in (0, 1)]
    assert frontends.take(0, messages.RequestsAborted(number, 2)) == []
    assert frontends.take(1, messages.RequestsAborted(number, 1)) == [(1, messages.AbortedRequests(1, 3))]
    assert frontends.take(1, messages.RequestsAborted(number, 1)) == [], "too late"
    frontends.take(1, messages.AbortRequests(2, messages.Turn.of("127.0.0.1"), None))
    frontends.take(1, messages.RequestsAborted(number + 1, 1))
    assert frontends.leave(0) == [(1, messages.AbortedRequests(2, 1))]


def test_a_reset_ends_with_the_last_front_or_its_end() -> None:
    frontends = Frontends()
    sent = frontends.take(0, messages.ResetCaches(1))
    assert frontends.take(0, messages.CachesReset(sent[0][1].number)) == []
    assert frontends.leave(1) == [(0, messages.Done(1))]
    frontends.take(0, messages.ResetCaches(2))
    assert frontends.leave(0) == [], "nobody asks any more"


def test_sums_are_what_one_process_would_count() -> None:
    def make(num_frontends: int) -> list[CollectorRegistry]:
        registries = [CollectorRegistry() for _ in range(num_frontends)]
        counters = [Counter("c", "text", ("k",), registry=own) for own in registries]
        histograms = [Histogram("h", "text", buckets=(1, 5), registry=own) for own in registries]
        gauges = [Gauge("g", "text", registry=own) for own in registries]
        for number in range(6):
            counters[number % num_frontends].labels(str(number % 3)).inc(number)
            histograms[number % num_frontends].observe(number)
            gauges[number % num_frontends].inc()
        return registries

    def write(figures: list[Family]) -> list[str]:
        total = CollectorRegistry()
        total.register(Figures(figures))
        return [line for line in generate_latest(total).decode().splitlines() if "_created" not in line]

    [one], two = make(1), make(2)
    total = add_up(map(read_families, two))
    assert sorted(write(total)) == sorted(write(read_families(one)))
    assert write(read_families(one)) == [
        line for line in generate_latest(one).decode().splitlines() if "_created" not in line
    ]
    histograms = [read_families(own)[1].samples[-1] for own in two]
    assert histograms[0].name == "h_created" and histograms[0].value <= histograms[1].value
    assert total[1].samples[-1] == histograms[0], "the earliest"
    assert [family.name for family in keep_totals(total)] == ["c", "h"]


def test_limits_are_divided() -> None:
    settings = ServerSettings(
        num_frontends=3, max_concurrent_requests=10, max_queue=3, max_sequences_per_key=3, max_total_body_bytes=10**9
    )
    each = divide_limits(settings)
    assert (each.max_concurrent_requests, each.max_sequences_per_key, each.max_total_body_bytes) == (3, 1, 10**9 // 3)
    assert each.num_frontends == 1 and each.max_stored_responses == settings.max_stored_responses
    assert divide_limits(ServerSettings(num_frontends=3, max_queue=0)).max_queue == 0
    with pytest.raises(ConfigError, match="--max-queue is divided among the 3 processes"):
        divide_limits(ServerSettings(num_frontends=3, max_queue=2))
