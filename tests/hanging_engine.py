"""An engine process for tests/engine/test_process.py: its tower hangs where a file tells it to, once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from seesay.encoders.worker import EncoderWorker
from seesay.engine.process import child

check_kind = EncoderWorker._check_kind


def hang_once(worker: EncoderWorker, *arguments: Any) -> None:
    file = Path(os.environ["SEESAY_TEST_HANG"])
    if file.exists():
        file.unlink()
        time.sleep(600)
    check_kind(worker, *arguments)


if __name__ == "__main__":
    EncoderWorker._check_kind = hang_once  # type: ignore[method-assign]
    child.run()
