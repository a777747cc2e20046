"""`seesay batch`: answers the lines of one file into another, and goes on where an earlier run has ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from seesay.errors import ConfigError
from seesay.serving.batches.lines import BadLine, BatchLine, check_custom_ids, read_lines
from seesay.serving.batches.results import ResultFile
from seesay.serving.batches.running import Answer, answer_lines

MAX_LINE_BYTES = 65 << 20
"""A body may have 64 MiB, as over HTTP."""


def count_lines(input_path: Path, output_path: Path) -> int:
    """Return the number of lines of the input. Raises `ConfigError` for files that cannot be used, and for a custom_id
    that several lines have."""
    if output_path.exists() and input_path.exists() and output_path.samefile(input_path):
        raise ConfigError(f"OUTPUT must be another file than INPUT, got {output_path}")
    if not output_path.parent.is_dir():
        raise ConfigError(f"the folder of OUTPUT does not exist: {output_path.parent}")
    try:
        with input_path.open("rb") as file:
            return check_custom_ids(file, max_bytes=MAX_LINE_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot read INPUT: {error}") from None


async def run_file(input_path: Path, results: ResultFile, answer: Answer, *, num_lines: int, num_at_once: int) -> None:
    """Answer the lines of the input that have no result yet.

    num_lines: of `count_lines`. num_at_once: lines that are answered at the same time. A terminal shows a progress bar.
    """
    with input_path.open("rb") as file:
        bar = tqdm(total=num_lines, unit="line", file=sys.stderr, disable=not sys.stderr.isatty())

        def left() -> Iterator[BatchLine | BadLine]:
            for line in read_lines(file, max_bytes=MAX_LINE_BYTES):
                if results.has(line):
                    bar.update()
                else:
                    yield line

        def write(result: bytes, is_good: bool) -> None:
            results.write(result, is_good=is_good)
            bar.update()

        with bar:
            await answer_lines(left(), answer, write, num_at_once=num_at_once)
