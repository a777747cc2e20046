"""The cross entropy of given token sequences under a model."""

from __future__ import annotations

import math
from contextlib import closing
from typing import TYPE_CHECKING, Any

from seesay.config import GenerationConfig
from seesay.engine.asking import Asking
from seesay.offline.token_rows import read_token_rows
from seesay.values import GenerationRequest

if TYPE_CHECKING:
    from seesay.engine.engine import AsyncEngine


def measure_losses(engine: AsyncEngine, input_ids: Any) -> list[float]:
    """Return the mean cross entropy of each token sequence, in nats: see `Pipeline.get_ppl`."""
    rows = read_token_rows(input_ids)
    for row in rows:
        if len(row) < 2:
            raise ValueError(f"input_ids: a sequence must have at least two tokens, got {len(row)}")
    config = GenerationConfig(max_new_tokens=1)
    requests = [
        GenerationRequest(prompt=row, gen_config=config, prompt_logprobs=True, wants_answer=False) for row in rows
    ]
    losses = [math.nan] * len(requests)
    with closing(Asking(engine, requests, streams=False).deltas()) as deltas:
        for index, delta in deltas:
            if delta.error is not None:
                raise delta.error
            if delta.prompt_logprobs:
                losses[index] = -math.fsum(delta.prompt_logprobs) / len(delta.prompt_logprobs)
    return losses
