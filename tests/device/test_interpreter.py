from __future__ import annotations

import sys
import threading

import pytest

from seesay.device import interpreter
from seesay.device.interpreter import INTERVAL_S, Precedence, QuickSwitches


def test_switches_are_quick_until_the_last_user_is_done() -> None:
    before, quick_switches = sys.getswitchinterval(), QuickSwitches()
    sys.setswitchinterval(0.005)
    with pytest.raises(KeyError), quick_switches:
        entered, leave = threading.Event(), threading.Event()

        def stay() -> None:
            with quick_switches:
                entered.set()
                leave.wait(10)

        other = threading.Thread(target=stay)
        other.start()
        assert entered.wait(10)
        raise KeyError
    assert sys.getswitchinterval() == pytest.approx(INTERVAL_S, rel=0.2)
    leave.set()
    other.join()
    assert sys.getswitchinterval() == pytest.approx(0.005)
    sys.setswitchinterval(before)


def test_an_interval_that_somebody_sets_meanwhile_stays() -> None:
    before = sys.getswitchinterval()
    with QuickSwitches():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002)
    sys.setswitchinterval(before)


def test_a_forked_child_has_left() -> None:
    before, quick_switches = sys.getswitchinterval(), QuickSwitches()
    sys.setswitchinterval(0.005)
    quick_switches.__enter__()
    quick_switches.leave_to_parent()  # what a fork calls in the child
    assert sys.getswitchinterval() == pytest.approx(0.005)
    with quick_switches:
        assert sys.getswitchinterval() == pytest.approx(INTERVAL_S, rel=0.2)
    assert sys.getswitchinterval() == pytest.approx(0.005)
    sys.setswitchinterval(before)


def test_an_interval_that_is_shorter_already_stays() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL_S / 4)
    try:
        with QuickSwitches():
            assert sys.getswitchinterval() == pytest.approx(INTERVAL_S / 4, rel=0.2)
    finally:
        sys.setswitchinterval(before)


def test_others_give_way_until_all_launches_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MAX_WAIT_S", 60.0)
    precedence, done = Precedence(), threading.Event()
    precedence.yield_to_launches()

    def prepare() -> None:
        precedence.yield_to_launches()
        done.set()

    with precedence:
        with precedence:
            thread = threading.Thread(target=prepare)
            thread.start()
            assert not done.wait(0.05)
        assert not done.wait(0.05)
    assert done.wait(10)
    thread.join()


def test_nobody_gives_way_for_ever() -> None:
    precedence, went_on = Precedence(), threading.Event()

    def prepare() -> None:
        precedence.yield_to_launches()
        went_on.set()

    thread = threading.Thread(target=prepare)
    with precedence:
        thread.start()
        assert went_on.wait(10), "it waits as long as somebody launches"
    thread.join()
