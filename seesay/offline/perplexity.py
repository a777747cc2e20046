"""The cross entropy of given prompts under a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.config import GenerationConfig
from seesay.engine.front.request_batch import RequestBatch
from seesay.errors import ErrorCode, RequestError
from seesay.offline.call import Call
from seesay.offline.token_rows import read_token_rows
from seesay.values import GenerationRequest

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine
    from seesay.values.prompt_logprobs import PromptLogprobs

_CONFIG = GenerationConfig(prompt_logprobs=0)


def measure_losses(
    engine: AsyncEngine, input_ids: object, *, do_preprocess: bool = True, arguments: Mapping[str, object] | None = None
) -> list[float]:
    """Return the mean cross entropy of each token sequence or prompt, in nats: see `Pipeline.get_ppl`."""
    if _has_prompts(input_ids):
        requests = _read_prompts(input_ids, do_preprocess, arguments or {})
    else:
        requests = [GenerationRequest(prompt=row, gen_config=_CONFIG) for row in _read_rows(input_ids)]
    requests = [replace(request, wants_answer=False) for request in requests]
    losses = [math.nan] * len(requests)
    for index, found in score_prompts(engine, requests):
        losses[index] = -found.mean
    for index, loss in enumerate(losses):
        if math.isnan(loss):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"input_ids[{index}] has no token to score", "input_ids")
    return losses


def score_prompts(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> Iterator[tuple[int, PromptLogprobs]]:
    """Yield which request, and the log-probabilities of its prompt, as they come. The requests ask for these. Raises
    `RequestError` for what the model cannot process."""
    with closing(RequestBatch(engine, requests, streams=False).deltas()) as deltas:
        for index, delta in deltas:
            if delta.error is not None:
                raise delta.error
            if delta.prompt_logprobs is not None:
                yield index, delta.prompt_logprobs


def _read_rows(input_ids: object) -> list[tuple[int, ...]]:
    rows = read_token_rows(input_ids)
    for row in rows:
        if len(row) < 2:
            raise ValueError(f"input_ids: a sequence must have at least two tokens, got {len(row)}")
    return rows


def _has_prompts(given: object) -> bool:
    """Whether `given` is a prompt of the pipeline, or a list of them, and not token ids."""
    first = given[0] if isinstance(given, list) and given else given
    if isinstance(first, list) and first and isinstance(first[0], Mapping):  # a conversation
        first = first[0]
    if isinstance(first, Mapping):
        return "role" in first
    return isinstance(first, str) or (isinstance(first, tuple) and any(isinstance(part, str) for part in first))


def _read_prompts(given: object, do_preprocess: bool, arguments: Mapping[str, object]) -> list[GenerationRequest]:
    """A prompt in the chat template has no beginning of an answer at its end."""
    found = []
    for request in Call.parse(given, _CONFIG, do_preprocess, None, arguments, "get_ppl").requests:
        if isinstance(request, RequestError):
            raise request
        options = {**request.template_options, "add_generation_prompt": False} if do_preprocess else {}
        found.append(replace(request, template_options=options))
    return found
