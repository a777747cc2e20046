"""Finds what a test leaves open when it ends, so that no later test is blamed for it.

A socket, process or event loop that is dropped without being closed warns when it is collected as garbage, which may
be while another test runs. So garbage is collected behind each test that opened something.
"""

from __future__ import annotations

import gc
import sys

_OPENING = ("socket.__new__", "subprocess.Popen", "os.fork", "os.posix_spawn", "_thread.start_new_thread")


class LeakWatch:
    """Notes in this process, from its start on, whether something was opened that has to be closed."""

    def __init__(self) -> None:
        self._has_opened = self._has_frozen = False
        sys.addaudithook(self._note)

    def _note(self, event: str, _args: object) -> None:
        if event in _OPENING:
            self._has_opened = True

    def collect(self) -> None:
        """Collect garbage if anything was opened since the last call, so that leaks warn now.

        Objects that stay are frozen: the next call does not visit them again.
        """
        if self._has_opened:
            gc.collect()
            gc.freeze()
            self._has_opened, self._has_frozen = False, True

    def collect_all(self) -> None:
        """The same with all objects that were frozen, which may be garbage by now."""
        if self._has_opened or self._has_frozen:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._has_opened = self._has_frozen = False
