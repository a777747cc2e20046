"""Progress of downloads from the hub: bars on a terminal, elsewhere a line every 30 seconds."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable

INTERVAL_S = 30.0
_WHOLE = "huggingface_hub.snapshot_download"
"""The name of the bar that counts the bytes of all files."""


def make_bar_class(clock: Callable[[], float] = time.monotonic) -> type:
    """Return the class of the hub's progress bars. clock: of the lines, for tests."""
    from huggingface_hub.utils.tqdm import tqdm

    if sys.stderr.isatty():
        return tqdm

    class LineBar(tqdm):
        """Of the bars only that of all bytes writes lines, and none at all for a download that is short."""

        def __init__(self, *args: object, **kwargs: object) -> None:
            self._written_s = clock()
            # None, as the hub gives it, is for whether `file` is a terminal.
            kwargs["disable"] = kwargs.get("name") != _WHOLE or bool(kwargs.get("disable"))
            super().__init__(*args, **{**kwargs, "file": io.StringIO()})  # type: ignore[no-untyped-call]

        def display(self, *_: object, **__: object) -> None:
            """Write a line if the last one was `INTERVAL_S` ago."""
            if clock() - self._written_s < INTERVAL_S:
                return
            self._written_s = clock()
            total = f" of {_format(self.total)}" if self.total else ""
            print(f"downloading: {_format(self.n)}{total}", file=sys.stderr, flush=True)

    return LineBar


def _format(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
