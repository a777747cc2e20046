"""The answers to the requests of one call, as they come and in the order of the prompts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from typing import TYPE_CHECKING

from seesay.engine.asking import Asking, AsyncAsking
from seesay.engine.response import AnswerBuilder, Response
from seesay.errors import RequestError
from seesay.values import GenerationRequest

if TYPE_CHECKING:
    from seesay.engine.engine import AsyncEngine

Answers = Generator[Response, None, None]


def stream_answers(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError], *, pieces: bool
) -> Answers:
    """Answer requests. Yields pieces of answers as they come, or whole answers, each when it is complete."""
    builders = [AnswerBuilder(index) for index in range(len(requests))]
    with closing(Asking(engine, requests, streams=pieces).deltas()) as deltas:
        for index, delta in deltas:
            piece = builders[index].add(delta)
            if pieces:
                yield piece
            elif delta.finish_reason is not None:
                yield builders[index].complete()


async def stream_answers_async(
    engine: AsyncEngine, requests: Sequence[GenerationRequest | RequestError]
) -> AsyncGenerator[Response, None]:
    """Answer requests. Yields whole answers, each when it is complete."""
    builders = [AnswerBuilder(index) for index in range(len(requests))]
    async with aclosing(AsyncAsking(engine, requests, streams=False).deltas()) as deltas:
        async for index, delta in deltas:
            builders[index].add(delta)
            if delta.finish_reason is not None:
                yield builders[index].complete()


def put_in_order(responses: Sequence[Response | None], *, is_list: bool) -> Response | list[Response]:
    """Return the answers to a list of prompts, or the one answer to a prompt that was given alone."""
    done = [response for response in responses if response is not None]
    assert len(done) == len(responses), "every request has a final answer"
    return done if is_list else done[0]


@contextmanager
def show_progress(total: int, is_shown: bool) -> Iterator[Callable[[], object]]:
    """Yield a function to call for each answer. Shows a progress bar if `is_shown`."""
    if not is_shown:
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="answer") as bar:
        yield bar.update
