from __future__ import annotations

import sys
import threading

import pytest

from seesay.quick_switches import INTERVAL_S, QuickSwitches


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


def test_an_interval_that_is_shorter_already_stays() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(INTERVAL_S / 4)
    try:
        with QuickSwitches():
            assert sys.getswitchinterval() == pytest.approx(INTERVAL_S / 4, rel=0.2)
    finally:
        sys.setswitchinterval(before)
