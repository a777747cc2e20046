"""Answers the lines of a batch, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from seesay.serving.batches.lines import BadLine, BatchLine
from seesay.serving.batches.results import Answered, make_answer_line, make_error_line

Answer = Callable[[BatchLine], Awaitable[Answered]]
WriteResult = Callable[[bytes, bool], None]
"""Takes a result, and whether its status is 200."""
_END = None


async def answer_lines(
    lines: Iterator[BatchLine | BadLine], answer: Answer, write: WriteResult, *, num_at_once: int
) -> None:
    """Answer all lines, and `write` each result as soon as there is one. Results are in no order.

    answer: returns the answer to a line, refusals included; what it raises ends the batch. num_at_once: the lines that
    are answered at the same time, and held in memory.
    """
    reading = asyncio.Lock()

    async def work() -> None:
        while True:
            async with reading:
                line = await asyncio.to_thread(next, lines, _END)
            if line is _END:
                return
            if isinstance(line, BadLine):
                write(make_error_line(line, line.code, line.message), False)
            else:
                answered = await answer(line)
                write(make_answer_line(line, answered), answered.status_code == 200)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_at_once):
            tasks.create_task(work())
