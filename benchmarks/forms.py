"""The option `--engine-process` of benchmarks: the engine in a thread, in a process of its own, or first one, then the
other, so that both can be compared in one run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

FORMS: Mapping[str | None, tuple[bool | None, ...]] = {
    None: (None,),
    "no": (False,),
    "yes": (True,),
    "both": (False, True),
}
"""The values of `EngineConfig.engine_process` to measure, by the option's value."""


def add_form_option(parser: argparse.ArgumentParser) -> None:
    """Let the command line say `--engine-process no`, `yes` or `both`; without it, the engine's default is measured."""
    choices = [name for name in FORMS if name is not None]
    parser.add_argument("--engine-process", choices=choices, help="as of EngineConfig; both: without, then with it")


def name_forms(records: Sequence[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Return the records for a plot: what they have under `names` says which of them are of an engine process."""
    suffixes = [", process" if record.get("engine_process") else "" for record in records]
    return [
        {key: f"{value}{suffix}" if key in names else value for key, value in record.items()}
        for record, suffix in zip(records, suffixes, strict=True)
    ]
