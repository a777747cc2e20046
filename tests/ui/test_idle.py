"""The WebUI's server while nobody asks. Time does not pass in these tests: the clock of their event loop jumps."""

from __future__ import annotations

import asyncio
import selectors

import pytest

from seesay.ui.app import set_up_queue


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: its clock jumps to the end of each wait, which it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.num_waits = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing would end this wait"
        self.now_s += timeout
        self.num_waits += timeout > 0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop with the clock of a `JumpingSelector`."""

    def __init__(self, selector: JumpingSelector) -> None:
        self._jumping = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._jumping.now_s


def test_the_queue_rarely_wakes() -> None:
    gr = pytest.importorskip("gradio")
    selector = JumpingSelector()

    async def idle() -> None:
        # Gradio makes its locks in the loop that runs, or makes a loop and does not close it.
        with gr.Blocks(analytics_enabled=False) as page:
            pass
        set_up_queue(page)
        page._queue.start()
        await asyncio.sleep(10.0)
        page._queue.close()

    with asyncio.Runner(loop_factory=lambda: JumpingLoop(selector)) as runner:
        runner.run(idle())
    assert selector.num_waits <= 21 * 10
