"""What tests/engine/test_link.py runs at the other end of a link: sends back whatever comes."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from seesay.engine.process.parent import Parent


class Echo(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    number: int
    arrays: dict[str, npt.NDArray[Any]]


class Order(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """'facts', 'exit', 'hang' (reads no message any more) or 'flood' (sends `number` large arrays, then reads on)."""

    name: str
    number: int = 0


class Facts(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    pid: int
    sys_path: list[str]
    modules: list[str]
    num_files: int


ToChild = Echo | Order
ToParent = Echo | Facts


def main() -> None:
    parent = Parent(receives=ToChild)
    parent.link.send(Echo(-1, {}))
    is_confirmed = False
    while True:
        if not parent.link.wait(None):
            continue
        message = parent.link.receive()
        if not is_confirmed:
            parent.confirm()
            is_confirmed = True
        if isinstance(message, Echo):
            parent.link.send(message)
        elif message.name == "facts":
            num_files = len(list(Path("/proc/self/fd").iterdir()))
            parent.link.send(Facts(os.getpid(), sys.path, sorted(sys.modules), num_files))
        elif message.name == "flood":
            for number in range(message.number):
                parent.link.send(Echo(number, {"large": np.full(1 << 18, number % 256, np.uint8)}))
        elif message.name == "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            time.sleep(600)
        else:
            parent.link.send(Echo(-2, {}))
            parent.link.close(delivers=True)
            return


if __name__ == "__main__":
    main()
