"""The definition of a subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand: `add_arguments` fills its parser, `run` does the work and returns the exit status.

    A command that only groups others has `children` and no `run`. `usage` replaces argparse's line of all options.
    `examples` are printed below the help.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments
    run: Callable[[argparse.Namespace], int] | None = None
    usage: str = ""
    examples: str = ""
    children: tuple[Command, ...] = ()
