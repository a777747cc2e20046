"""The engine process of tests/support/differential.py: its loop has faults, and is checked when it ends. Started, run
and read here."""

from __future__ import annotations

import json
import os
import tempfile
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from differential import Engine, Setup
from faults import Faults

from seesay.engine.core.loop import EngineLoop
from seesay.engine.engine_core import CoreListener
from seesay.engine.process import child, kinds
from seesay.engine.process.origin import OwnProcess
from seesay.engine.process.remote_core import ProcessCore


class DifferentialProcess(OwnProcess):
    """The engine process of this module."""

    module = "differential_engine"


def start_process(path: Path, setup: Setup, faults: Faults) -> ProcessCore:
    """Start a process with an `Engine`."""
    descriptor, report = tempfile.mkstemp()
    os.close(descriptor)
    faults.report = Path(report)
    orders = {"setup": asdict(setup), "rates": dict(faults.rates), "seed": faults.seed, "report": report}
    return ProcessCore.load(path, orders, {}, make_origin=DifferentialProcess).wait_until_loaded()


def write_report(engine: Engine, file: str) -> None:
    """Check an engine that nobody asks any more, and write down what was found and what went wrong on purpose."""
    problem = ""
    try:
        engine.check_idle()
    except BaseException:
        problem = traceback.format_exc()
    faults = engine.faults
    found = {
        "problem": problem,
        "blamed": list(faults.blamed),
        "failed_pictures": faults.failed_pictures,
        "counts": faults.counts,
    }
    Path(file).write_text(json.dumps(found))


def read_report(faults: Faults) -> str:
    """Take what `write_report` wrote. Returns the problem that it found, or nothing."""
    assert faults.report is not None
    found = json.loads(faults.report.read_text())
    faults.report.unlink()
    faults.blamed.update(found["blamed"])
    faults.failed_pictures.extend((number, at_s) for number, at_s in found["failed_pictures"])
    faults.counts.update(found["counts"])
    return str(found["problem"])


def load(start: kinds.Start, followers: object = None) -> EngineLoop:
    """Build a loop as `start_process` ordered it."""
    assert followers is None
    orders = start.engine
    faults = Faults(rates=orders["rates"], seed=orders["seed"])
    engine = Engine(Path(start.folder), Setup(**orders["setup"]), faults)
    begin, close = engine.loop.start, engine.loop.close

    def begin_with_faults(listener: CoreListener) -> None:
        begin(listener)
        engine.inject()

    def check_and_close() -> None:
        write_report(engine, orders["report"])
        close()

    engine.loop.start, engine.loop.close = begin_with_faults, check_and_close  # type: ignore[method-assign]
    return engine.loop


def run() -> NoReturn:
    child._load = load
    child.run()


if __name__ == "__main__":
    run()
