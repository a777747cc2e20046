"""What two versions' figures differ by, beside how much the runs of each differ among themselves.

    for k in 1 2 3 4 5; do python benchmarks/h200.py MODEL_DIR; done > new.txt
    python benchmarks/compare.py old.txt new.txt [--all]

Each file has what one or more runs of the same benchmark printed; lines that do not begin with RESULT are skipped.
Lines with the same texts (*what*, *how*, …) are the same figure. For each number in them: the median of the old runs
and of the new ones, their quotient, and the spread of each, which is the difference of its greatest and least run.
Prints the figures whose medians differ by more than the larger spread; `--all` prints the others, too. With fewer than
five runs a spread says little, which the last line then says.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ENOUGH_RUNS = 5
_MARK = "RESULT "


class Figure(NamedTuple):
    """One number of two versions: that of each run."""

    name: str
    old: Sequence[float]
    new: Sequence[float]

    @property
    def spread(self) -> float:
        """Of the version whose runs differ more."""
        return max(max(self.old) - min(self.old), max(self.new) - min(self.new))

    @property
    def is_changed(self) -> bool:
        return abs(statistics.median(self.new) - statistics.median(self.old)) > self.spread

    def describe(self) -> str:
        old, new = statistics.median(self.old), statistics.median(self.new)
        quotient = f"{new / old:.3f}" if old else "-"
        spreads = ", ".join(f"{max(runs) - min(runs):.4g}" for runs in (self.old, self.new))
        return f"{self.name}: {old:.4g} -> {new:.4g} ({quotient}; spreads {spreads})"


def read_runs(text: str) -> dict[str, list[float]]:
    """Return the numbers of all runs by their names, in the order of their first lines."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        if not line.startswith(_MARK):
            continue
        record = json.loads(line.removeprefix(_MARK))
        texts = [str(value) for value in record.values() if isinstance(value, str | bool)]
        for name, value in _numbers(record):
            found.setdefault(" ".join([*texts, name]), []).append(value)
    return found


def _numbers(record: Mapping[str, object], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record; those of records inside it have names with dots."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", float(value)


def compare(old: str, new: str) -> list[Figure]:
    """Return the figures that both versions printed."""
    before, after = read_runs(old), read_runs(new)
    return [Figure(name, before[name], runs) for name, runs in after.items() if name in before]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--all", action="store_true", help="print what did not change, too")
    args = parser.parse_args(argv)
    figures = compare(args.old.read_text(), args.new.read_text())
    if not figures:
        parser.error(f"{args.old} and {args.new} have no RESULT line of the same figure")
    for figure in figures:
        if figure.is_changed or args.all:
            print(("* " if figure.is_changed else "  ") + figure.describe())
    num_runs = min(min(len(figure.old), len(figure.new)) for figure in figures)
    few = "" if num_runs >= ENOUGH_RUNS else f"; with {num_runs} of {ENOUGH_RUNS} runs, spreads say little"
    print(
        f"{sum(figure.is_changed for figure in figures)} of {len(figures)} figures changed by more than the spread{few}"
    )


if __name__ == "__main__":
    main()
