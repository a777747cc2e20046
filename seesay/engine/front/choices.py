"""Several answers to one prompt: the requests for them, and which are the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from seesay.config import GenerationConfig
from seesay.errors import ErrorCode, RequestError
from seesay.values import GenerationRequest

_NUM_SEEDS = 1 << 64


def count_choices(config: GenerationConfig) -> int:
    """Return how many answers are generated for a prompt; of these `config.n` are returned."""
    return config.best_of or config.n


def check_single(config: GenerationConfig) -> None:
    """Raise `RequestError` for a configuration of several answers, where only one is supported."""
    for name, value in (("best_of", config.best_of), ("n", config.n)):
        if value not in (None, 1):
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"{name}={value} is not supported here: sessions and `generate` give one answer",
                name,
            )


def choices_of(request: GenerationRequest, num_choices: int | None = None) -> list[GenerationRequest]:
    """Return the requests for single answers to one prompt, which is prepared and computed once: as many as the
    configuration says, or `num_choices`.

    A given seed becomes seed, seed + 1, and so on; without one, each answer has a random seed. Where the best are to be
    found, all report log-probabilities. Log-probabilities of the prompt come with the first answer alone.
    """
    config = request.gen_config
    count = num_choices or count_choices(config)
    if count == 1:
        return [request]
    logprobs = 0 if config.logprobs is None and count > config.n and config.best_of is not None else config.logprobs
    seed = config.random_seed
    single = replace(config, n=1, best_of=None, logprobs=logprobs)
    others = replace(single, prompt_logprobs=None)
    configs = [single] + [others] * (count - 1)
    if seed is not None:
        configs = [replace(chosen, random_seed=(seed + i) % _NUM_SEEDS) for i, chosen in enumerate(configs)]
    return [replace(request, gen_config=chosen) for chosen in configs]


def find_best(mean_logprobs: Sequence[float | None], count: int) -> list[int]:
    """Return the indexes of the `count` answers with the highest log-probability per token, the best first. An answer
    without one comes last; of equal ones the first is the better."""
    scores = [-math.inf if score is None else score for score in mean_logprobs]
    return sorted(range(len(scores)), key=lambda index: -scores[index])[:count]
