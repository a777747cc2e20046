"""Random requests to one small model, in many arrangements: batches, orders, chunks, caches, preemption."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seesay import EngineConfig, GenerationConfig, Response, VisionConfig
from seesay.demo.evaluate import messages_for
from seesay.demo.scenes import FIRST_EVALUATION_SEED, make_example
from seesay.offline.pipeline import pipeline

DEMO = Path(__file__).parents[2] / "seesay" / "demo" / "checkpoint"
TASKS = ("attribute", "compare", "motion", "read", "arithmetic")
NUM_TOKENS = 10


@dataclass(frozen=True)
class Arrangement:
    """Options of the engine, in which order the requests come, and how many at a time (0: all at once)."""

    name: str
    options: dict[str, Any]
    seed: int = 0
    at_a_time: int = 0
    vision: dict[str, Any] = field(default_factory=dict)


BASE: dict[str, Any] = {
    "device_type": "cpu", "engine_process": False, "num_gpu_blocks": 200, "max_batch_size": 16, "session_len": 512,
    "block_size": 16, "max_step_ms": None,
}  # fmt: skip
ALONE = Arrangement("alone", {"enable_prefix_caching": False, "max_batch_size": 1}, at_a_time=1)
ARRANGEMENTS = (
    Arrangement("together", {}, seed=1),
    Arrangement("pairs", {"enable_prefix_caching": False}, seed=2, at_a_time=2, vision={"max_batch_size": 1}),
    Arrangement("chunks", {"max_prefill_token_num": 24, "max_batch_size": 5}, seed=3),
    Arrangement("odd chunks", {"max_prefill_token_num": 37, "block_size": 5, "num_gpu_blocks": 700}, seed=4),
    Arrangement("preempted", {"num_gpu_blocks": 34, "max_prefill_token_num": 100}, seed=5),
    Arrangement("host blocks", {"num_gpu_blocks": 40, "num_cpu_blocks": 200}, seed=6),
    Arrangement("speculative", {"speculative": {"method": "ngram"}, "async_scheduling": False}, seed=7),
    Arrangement("ahead", {"async_scheduling": True, "jump_ahead": False, "max_prefill_token_num": 64}, seed=8),
)
PROCESS = Arrangement("process", {"engine_process": True, "max_prefill_token_num": 50}, seed=9)


def make_requests(count: int, seed: int = 0) -> list[tuple[Any, GenerationConfig]]:
    """Questions about pictures and clips and texts, greedy and drawn, with log-probabilities and logits."""
    rng = random.Random(seed)
    requests = []
    for index in range(count):
        messages = messages_for(make_example(TASKS[index % len(TASKS)], FIRST_EVALUATION_SEED + index // 7))
        sampling: dict[str, Any] = {"temperature": 1.5, "top_p": 0.95, "random_seed": index} if index % 3 else {}
        config = GenerationConfig(
            max_new_tokens=rng.randint(3, NUM_TOKENS),
            ignore_eos=True,
            logprobs=rng.choice((1, 3, 8)),
            output_logits="generation",
            repetition_penalty=1.2 if index % 4 == 1 else 1.0,
            do_sample=bool(sampling),
            **sampling,
        )
        requests.append((messages, config))
    return requests


def answer(
    requests: Sequence[tuple[Any, GenerationConfig]], arrangement: Arrangement, path: Path = DEMO, **options: Any
) -> list[Response]:
    """Return the answers, in the order of the requests."""
    order = list(range(len(requests)))
    random.Random(arrangement.seed).shuffle(order)
    config = EngineConfig(**{**BASE, **options, **arrangement.options})
    found: dict[int, Response] = {}
    with pipeline(str(path), config, vision_config=VisionConfig(**arrangement.vision)) as pipe:
        step = arrangement.at_a_time or len(order)
        for start in range(0, len(order), step):
            places = order[start : start + step]
            answers = pipe([requests[i][0] for i in places], gen_config=[requests[i][1] for i in places])
            found.update(zip(places, answers, strict=True))
    assert all(response.error is None for response in found.values()), [each.error for each in found.values()]
    return [found[i] for i in range(len(requests))]


def count_differing_bits(one: Sequence[Response], other: Sequence[Response]) -> int:
    """Return how many bits of logits and log-probabilities differ; each differing token counts as one more."""
    return sum(_compare(first, second) for first, second in zip(one, other, strict=True))


def _compare(one: Response, other: Response) -> int:
    if list(one.token_ids) != list(other.token_ids):
        return 1 + sum(a != b for a, b in zip(one.token_ids, other.token_ids, strict=False))
    return _count_bits(_list_logprobs(one), _list_logprobs(other)) + _count_bits(
        np.asarray(one.logits, np.float32).ravel(), np.asarray(other.logits, np.float32).ravel()
    )


def _list_logprobs(response: Response) -> npt.NDArray[np.float32]:
    pairs = [pair for step in response.logprobs or () for pair in step.items()]
    return np.array(pairs, np.float32).ravel()


def _count_bits(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> int:
    assert one.shape == other.shape, (one.shape, other.shape)
    return int(np.bitwise_count(one.view(np.uint32) ^ other.view(np.uint32)).sum())
