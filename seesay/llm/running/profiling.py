"""Tries the largest steps, to know how much memory they take beside weights and KV cache."""

from __future__ import annotations

import numpy as np
import torch

from seesay.device.query import measure_peak
from seesay.llm.memory.kv_cache import KVCache
from seesay.llm.models.decoder import Decoder, ModelInput
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.blank_input import build_profile_inputs
from seesay.llm.running.logit_changes import start_counts
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.running.sampler import choose_tokens
from seesay.llm.running.sampling_row import SamplingRow

_COSTLY = SamplingParams(greedy=False, top_p=0.9, logprobs=20, repetition_penalty=1.1)


def measure_peaks(decoder: Decoder, cache: KVCache, limits: RunnerLimits) -> list[int]:
    """Peak bytes of the largest steps (`build_profile_inputs`), the largest decode step last, each sampled in the ways
    that take the most memory. All rows share one block of `cache`."""
    device, size = decoder.device, decoder.traits.vocab_size
    token_ids = np.zeros(min(limits.session_len, 8192), np.int64)
    plain = SamplingRow(seed=0, params=SamplingParams(), token_ids=token_ids, num_generated=1)
    mask = np.full(-(-size // 32), -1, np.int32)
    ways = [
        plain._replace(params=_COSTLY, counts=start_counts(token_ids, _COSTLY, size), mask=mask),
        plain._replace(params=SamplingParams(greedy=False, top_p=0.9)),
        plain._replace(params=SamplingParams(bad_token_ids=(0,))),
        plain._replace(mask=mask),
    ]
    peaks = []
    for inputs, num_rows in build_profile_inputs(limits, traits=decoder.traits, device=device):

        def trial(inputs: ModelInput = inputs, num_rows: int = num_rows) -> None:
            with torch.inference_mode():
                hidden = decoder.forward(inputs, cache.layers)
                logits = decoder.logits(hidden[:num_rows])
                for row in ways:
                    choose_tokens(logits, dict.fromkeys(range(num_rows), row))

        peaks.append(measure_peak(device, trial))
    return peaks
