"""Work is cancelled when the last of those who wait for it has gone."""

from __future__ import annotations

import pytest

from seesay.errors import ErrorCode, RequestError
from seesay.system.cancellation import Cancellation


def test_work_is_cancelled_once_when_the_last_has_gone() -> None:
    calls: list[str] = []
    cancellation = Cancellation()
    assert cancellation.try_join()
    cancellation.on_leave(lambda: calls.append("kept"))
    cancellation.on_leave(lambda: calls.append("taken back"))()
    with cancellation.calling(lambda: calls.append("inside")):
        cancellation.leave()
        cancellation.check()
        assert not calls
        cancellation.leave()
        assert calls == ["kept", "inside"]
    cancellation.leave()  # twice by the same
    cancellation.on_leave(lambda: calls.append("late"))
    assert calls == ["kept", "inside", "late"] and not cancellation.try_join()
    with pytest.raises(RequestError) as caught:
        cancellation.check()
    assert caught.value.code is ErrorCode.ABORTED
