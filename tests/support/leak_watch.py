"""Finds what a test leaves open when it ends, so that no later test is blamed for it.

A socket, process or event loop that is dropped without being closed warns when it is collected as garbage, which may
be while another test runs. So garbage is collected behind each test that opened something.

A collection costs what it visits, and all that was imported takes it a second. So the one behind a test visits what was
made since the last one, and the one behind a file what was made in that file. What files left in place, and dropped
later, is visited behind some files more, and behind the last one.
"""

from __future__ import annotations

import gc
import sys

_OPENING = ("socket.__new__", "subprocess.Popen", "os.fork", "os.posix_spawn", "_thread.start_new_thread")
_NUM_FILES = 25
"""Behind so many files, objects of all of them are visited."""
_SELDOM = 1000
"""Collections of the youngest objects between two of the next older ones."""


class LeakWatch:
    """Notes in this process, from its start on, whether something was opened that has to be closed."""

    def __init__(self) -> None:
        self._has_opened = self._has_opened_in_file = self._is_file_frozen = False
        self._num_files = 0
        self._num_older = 0
        sys.addaudithook(self._note)

    def _note(self, event: str, _args: object) -> None:
        if event in _OPENING:
            self._has_opened = self._has_opened_in_file = True

    def begin(self) -> None:
        """Let no later collection visit what there is by now, but those of all files."""
        young, _, old = gc.get_threshold()
        gc.set_threshold(young, _SELDOM, old)  # so that what a test makes is still young when it ends
        gc.freeze()

    def collect(self) -> None:
        """Collect garbage if anything was opened since the last call, so that leaks warn now.

        Visits what was made since; all that was made in the file if Python did so meanwhile, which made it old.
        """
        if self._has_opened:
            is_old = _count_older() != self._num_older
            gc.collect(2 if is_old else 1)
            if is_old and not gc.get_freeze_count():  # a server that ended has unfrozen all
                gc.freeze()
                self._is_file_frozen = True
            self._has_opened, self._num_older = False, _count_older()

    def collect_file(self, *, is_last: bool = False) -> None:
        """Collect garbage if anything was opened in the file that ends. is_last: no file follows.

        Visits all objects, too, if those of this file were frozen before its end.
        """
        self._num_files += 1
        is_whole = is_last or self._is_file_frozen or not self._num_files % _NUM_FILES
        if self._has_opened_in_file or is_whole:
            if is_whole:
                gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._has_opened = self._has_opened_in_file = self._is_file_frozen = False
            self._num_older = _count_older()


def _count_older() -> int:
    """Return how often Python collected garbage among others than the youngest objects."""
    return sum(each["collections"] for each in gc.get_stats()[1:])
