"""The answers to the requests of one call, as they come and in the order of the prompts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from typing import TYPE_CHECKING

from seesay.engine.front.request_batch import AsyncRequestBatch, RequestBatch
from seesay.engine.front.response import Response
from seesay.errors import RequestError
from seesay.offline.choices import Choices
from seesay.values import GenerationRequest

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine

Answers = Generator[Response, None, None]


def stream_answers(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError], *, pieces: bool
) -> Answers:
    """Answer requests. Yields pieces of answers as they come, or whole answers, each when it is complete."""
    asked = Choices(requests)
    with closing(RequestBatch(engine, asked.requests, streams=pieces).deltas()) as deltas:
        for index, delta in deltas:
            piece, complete = asked.add(index, delta, whole=not pieces)
            if pieces:
                yield piece
            elif complete is not None:
                yield complete


async def stream_answers_async(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError]
) -> AsyncGenerator[Response, None]:
    """Answer requests. Yields whole answers, each when it is complete."""
    asked = Choices(requests)
    async with aclosing(AsyncRequestBatch(engine, asked.requests, streams=False).deltas()) as deltas:
        async for index, delta in deltas:
            _, complete = asked.add(index, delta, whole=True)
            if complete is not None:
                yield complete


def collect_answers(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError], *, use_tqdm: bool
) -> list[Response]:
    """Return the answers in the order of the requests. `use_tqdm`: show a progress bar."""
    collected = _Collected(len(requests))
    answers = stream_answers(engine, requests, pieces=False)
    with _show_progress(len(requests), use_tqdm) as advance, closing(answers):
        for response in answers:
            collected.add(response)
            advance()
    return collected.in_order()


async def collect_answers_async(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError], *, use_tqdm: bool
) -> list[Response]:
    """`collect_answers` for asyncio."""
    collected = _Collected(len(requests))
    with _show_progress(len(requests), use_tqdm) as advance:
        async with aclosing(stream_answers_async(engine, requests)) as answers:
            async for response in answers:
                collected.add(response)
                advance()
    return collected.in_order()


class _Collected:
    """Answers that come in any order."""

    def __init__(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._by_index: dict[int, Response] = {}

    def add(self, response: Response) -> None:
        self._by_index[response.index] = response

    def in_order(self) -> list[Response]:
        assert len(self._by_index) == self._num_requests, "every request has a final answer"
        return [self._by_index[index] for index in range(self._num_requests)]


@contextmanager
def _show_progress(total: int, is_shown: bool) -> Iterator[Callable[[], object]]:
    """Yield a function to call for each answer. Shows a progress bar if `is_shown`."""
    if not is_shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="answer") as bar:
        yield bar.update
