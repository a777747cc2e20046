"""Answers requests by an engine in this process, and times them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tqdm import tqdm

from seesay.bench.outcomes import Outcome
from seesay.bench.workload import Request
from seesay.config import GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.request_batch import AsyncRequestBatch
from seesay.errors import RequestError
from seesay.values import GenerationRequest, OutputDelta
from seesay.vl.prompts.conversation_parts import parse_prompts


def make_requests(requests: Sequence[Request], sampling: Mapping[str, Any]) -> list[GenerationRequest]:
    """Return the requests for an engine. Each answer has as many tokens as its request says.

    sampling: `temperature` (0 always takes the most likely token), and `top_p` and `top_k` where they are given.
    """
    prompts = [(text, images) if images else text for text, images, _ in requests]
    parsed, _ = parse_prompts(prompts, [_config(request.num_output_tokens, sampling) for request in requests])
    for request in parsed:
        if isinstance(request, RequestError):
            raise request
    return [request for request in parsed if not isinstance(request, RequestError)]


def make_token_requests(
    num: int, token_ids: Sequence[int], num_output_tokens: int, sampling: Mapping[str, Any]
) -> list[GenerationRequest]:
    """Return requests for prompts of these tokens. `sampling` is as in `make_requests`."""
    config = _config(num_output_tokens, sampling)
    return [GenerationRequest(prompt=tuple(token_ids), gen_config=config) for _ in range(num)]


def _config(num_tokens: int, sampling: Mapping[str, Any]) -> GenerationConfig:
    return GenerationConfig(
        do_sample=sampling["temperature"] > 0,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        ignore_eos=True,
        **sampling,
    )


async def answer_all(
    engine: AsyncEngine, requests: Sequence[GenerationRequest], *, num_at_once: int, shows_progress: bool = False
) -> tuple[list[Outcome], float]:
    """Answer all requests, at most so many at a time; return what came of each, and the seconds of all."""
    places = asyncio.Semaphore(num_at_once)
    with tqdm(total=len(requests), unit="request", disable=not shows_progress) as bar:

        async def answer(request: GenerationRequest) -> Outcome:
            outcome = Outcome("request")
            async with places:
                outcome.started_at = time.perf_counter()
                async with aclosing(AsyncRequestBatch(engine, [request]).deltas()) as deltas:
                    async for _, delta in deltas:
                        _note(outcome, delta)
            outcome.end()
            bar.update()
            return outcome

        started_at = time.perf_counter()
        outcomes = await asyncio.gather(*map(answer, requests))
        return outcomes, time.perf_counter() - started_at


def _note(outcome: Outcome, delta: OutputDelta) -> None:
    if delta.token_ids:
        outcome.note_piece(time.perf_counter())
    if delta.finish_reason is None:
        return
    outcome.ended_at = time.perf_counter()
    outcome.is_complete = True
    if delta.error is not None or delta.finish_reason in ("error", "abort"):
        outcome.error = str(delta.error or delta.finish_reason)
    elif delta.usage is not None:
        outcome.num_prompt_tokens = delta.usage.prompt_tokens
        outcome.num_tokens = delta.usage.completion_tokens
