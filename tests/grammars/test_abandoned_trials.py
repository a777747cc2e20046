"""A trial that nobody waits for any more is ended, and says nothing about its grammar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from held_trials import HeldTrials, begin_endless
from waiting import wait_until

from seesay.config.grammar import Grammar
from seesay.errors import ErrorCode, RequestError
from seesay.grammars import trial_child
from seesay.grammars.compile import TokenTable
from seesay.grammars.trials import GrammarTrials
from seesay.grammars.verdicts import SharedVerdicts
from seesay.system.cancellation import Cancellation
from seesay.system.fair_threads import FairThreads

TOKENS = [*(bytes([i]) for i in range(256)), b""]


def regex(source: str) -> Grammar:
    return Grammar(kind="regex", source=source)


class Parts:
    """Trials of which some are held, verdicts that other processes would find, and threads that ask."""

    def __init__(self, folder: Path) -> None:
        self.verdicts = folder / "verdicts"
        self.verdicts.mkdir()
        self.held = HeldTrials(folder)
        self.trials = GrammarTrials(lambda: TOKENS, self.held.command, shared=SharedVerdicts(self.verdicts))
        self.threads = FairThreads(8, name="ask")


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    parts = Parts(tmp_path)
    yield parts
    parts.trials.close()
    parts.threads.close()


def test_a_trial_is_ended_when_the_last_who_waits_has_left(parts: Parts) -> None:
    trials, held, grammar = parts.trials, parts.held, regex("held [ab]")
    first, second, third = Cancellation(), Cancellation(), Cancellation()
    asked = parts.threads.submit(None, trials.check, grammar, first)
    wait_until(lambda: held.list_running() == ["held [ab]"])
    beside = parts.threads.submit(None, trials.check, grammar, second)
    joined = trials.join(grammar, third)
    assert joined is not None
    wait_until(lambda: trials._known[next(iter(trials._known))].waiting._num_waiting == 3)
    for left, future in ((second, beside), (first, None)):
        left.leave()
        if future is not None:
            assert _code_of(future.exception(60)) is ErrorCode.ABORTED
        assert trials.check(regex("small")).kind == "lark", "the process has read what came before"
        assert "held [ab]" in held.list_running() and not joined.done()
    third.leave()
    assert _code_of(joined.exception(60)) is ErrorCode.ABORTED
    assert _code_of(asked.exception(60)) is ErrorCode.ABORTED
    wait_until(lambda: not held.list_running())
    assert not trials.is_known(grammar) and trials.join(grammar, Cancellation()) is None
    assert len(list(parts.verdicts.iterdir())) == 1, "that of the small one"

    again = parts.threads.submit(None, trials.check, grammar, Cancellation())
    wait_until(lambda: held.list_running() == ["held [ab]"])
    held.release()
    assert again.result(60).kind == "lark" and trials.is_known(grammar)
    assert len(list(parts.verdicts.iterdir())) == 2


def test_a_trial_that_waits_for_a_fork_never_begins(parts: Parts) -> None:
    trials, held = parts.trials, parts.held
    others, last = Cancellation(trial_child.MAX_QUICK), Cancellation()
    running = [parts.threads.submit(None, trials.check, regex(f"held {i}"), others) for i in range(4)]
    wait_until(lambda: len(held.list_running()) == 4)
    queued = parts.threads.submit(None, trials.check, regex("held last"), last)
    wait_until(lambda: len(trials._find_child()._waiting) == 5)
    last.leave()
    assert _code_of(queued.exception(60)) is ErrorCode.ABORTED
    held.release()
    assert all(one.result(60).kind == "lark" for one in running)
    assert trials.check(regex("small")).kind == "lark"
    assert sorted(held.list_begun()) == [*(f"held {i}" for i in range(4)), "small"]


def test_one_who_has_left_before_asks_nothing(parts: Parts) -> None:
    with pytest.raises(RequestError) as caught:
        parts.trials.check(regex("small"), Cancellation(0))
    assert caught.value.code is ErrorCode.ABORTED and parts.trials._child is None
    assert parts.trials.check(regex("small")).kind == "lark"
    known = parts.trials.join(regex("small"), Cancellation())
    assert known is not None and known.done()


def test_what_is_known_when_all_have_left_stays_known(parts: Parts) -> None:
    cancellation = Cancellation()
    parts.trials.check(regex("small"), cancellation)
    cancellation.leave()
    parts.trials.check(regex("small"))
    assert parts.held.list_begun() == ["small"]


def test_a_trial_that_was_put_back_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = begin_endless(TokenTable(TOKENS), 7, monkeypatch)
    assert not list(trials.advance(())) and not trials.running
    trials.take((7,))
    monkeypatch.setattr(trial_child, "MAX_SLOW", 1)
    trials.begin()
    assert not trials.running
    wait_until(lambda: not list(trials.advance(())) and not trials._leaving)


def _code_of(error: BaseException | None) -> ErrorCode:
    assert isinstance(error, RequestError)
    return error.code
