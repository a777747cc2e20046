"""A frontend process that connects to no engine process while a file is there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from seesay.engine.process import origin
from seesay.engine.process.listener import Connection
from seesay.engine.process.parent import exit_at_once
from seesay.serving.frontends import process

FILE = "SEESAY_TEST_HOLD"
"""The variable that names the file. A frontend that waits for its end notes that in a file beside it."""


class SlowConnection(Connection[Any, Any]):
    """A connection that is made once the file is gone."""

    def __init__(self, address: str, *, receives: Any) -> None:
        file = Path(os.environ[FILE])
        while file.exists():
            file.with_suffix(f".{os.getpid()}").touch()
            time.sleep(0.01)
        super().__init__(address, receives=receives)


if __name__ == "__main__":
    with patch.object(origin, "Connection", SlowConnection):
        exit_at_once(process.main())
