"""An engine process whose vision tower fails when a file tells it to, once: it raises, its thread dies, or it hangs.
While another file is there its device computes nothing any more."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from seesay.encoders.worker import EncoderWorker
from seesay.engine.front.starting import CoreParts
from seesay.engine.process import child
from seesay.engine.process.origin import OwnProcess
from seesay.llm.running.runner import ModelRunner

FOLDER = "SEESAY_TEST_FAULTS"
"""The variable that names the folder of the files, which are called `raise`, `die` and `hang`; and `lost`."""

check_kind = EncoderWorker._check_kind


class FaultyProcess(OwnProcess):
    """The engine process of this module."""

    module = "faulty_engine"


PARTS = CoreParts(make_origin=FaultyProcess)


class Death(BaseException):
    """Ends the thread that it is raised in."""


def fail_once(worker: EncoderWorker, *arguments: Any) -> None:
    """Stand for `EncoderWorker._check_kind`, which a call of the tower ends with."""
    for file in Path(os.environ[FOLDER]).iterdir():
        if file.name == "lost":
            continue
        file.unlink()
        if file.name == "raise":
            raise RuntimeError("a fault of the tower")
        if file.name == "die":
            raise Death
        time.sleep(600)
    check_kind(worker, *arguments)


def lose_device(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of a runner fail as every call does after an illegal memory access."""

    def failing(*arguments: Any, **options: Any) -> Any:
        if (Path(os.environ[FOLDER]) / "lost").exists():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return method(*arguments, **options)

    return failing


def run() -> NoReturn:
    EncoderWorker._check_kind = fail_once  # type: ignore[assignment, method-assign]
    ModelRunner.launch = lose_device(ModelRunner.launch)  # type: ignore[method-assign]
    ModelRunner.check_device = lose_device(ModelRunner.check_device)  # type: ignore[method-assign]
    child.run()


if __name__ == "__main__":
    run()
