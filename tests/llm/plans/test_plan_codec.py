"""Plans as bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from seesay.config import GenerationConfig
from seesay.llm.plans.plan_codec import decode_plan, encode_plan
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import (
    AddedBlocks,
    BegunSequence,
    BlockCopy,
    CopiedBlock,
    EncodeJob,
    MediaSpan,
    Row,
    StepPlan,
)
from seesay.llm.scheduling.plan_deltas import make_begun as make_plan_begun
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import Modality, MultimodalInput


def make_begun(**changes: object) -> BegunSequence:
    values: dict[str, Any] = {
        "seq_id": 3,
        "token_ids": np.arange(7),
        "num_prompt_tokens": 5,
        "positions": np.stack([np.arange(5), np.arange(5) * 2, np.arange(5) * 3])[:, ::-1],
        "next_position": 13,
        "params": SamplingParams(
            greedy=False, top_p=0.3, logit_bias=((4, -1.5),), bad_token_ids=(1, 2), pooling="mean"
        ),
        "seed": 2**64 - 1,
        "items": (MediaSpan(modality=Modality.VIDEO, span=(1, 3), slots=np.array([1, 2]), hash=b"\x00\xff" * 16),),
        "stretch": 1.5849625007211562,
        "runs": np.array([[0, 4], [3, 5]]),
    }
    return BegunSequence(**(values | changes))


FULL = StepPlan(
    rows=(Row(3, 0, 7, True), Row(2**40, 9, 1, False), Row(4, 9, 3, True, (2**40, 7))),
    ended_ids=(9, 10),
    begun=(make_begun(), make_begun(seq_id=4, items=(), positions=np.arange(5), runs=None)),
    added_blocks=(AddedBlocks(3, (5, 6)), AddedBlocks(4, ())),
    saves=(BlockCopy(1, 2),),
    loads=(BlockCopy(3, 4), BlockCopy(5, 6)),
    copies=(CopiedBlock(7, 8),),
    encode_jobs=(EncodeJob(3, 1, b"\x80" * 32),),
    preempted_ids=(9,),
    is_streamed=True,
)


def check_equal(found: object, expected: object) -> None:
    """Values of equal types, all the way down."""
    assert type(found) is type(expected), (found, expected)
    if dataclasses.is_dataclass(expected):
        for each in dataclasses.fields(expected):
            check_equal(getattr(found, each.name), getattr(expected, each.name))
    elif isinstance(expected, np.ndarray):
        assert isinstance(found, np.ndarray) and found.dtype == expected.dtype
        assert found.shape == expected.shape and np.array_equal(found, expected)
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_equal(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("plan", [StepPlan(), FULL])
def test_a_plan_comes_back_as_it_was(plan: StepPlan) -> None:
    data = encode_plan(plan)
    check_equal(decode_plan(data), plan)
    assert encode_plan(decode_plan(data)) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_plan(FULL)[:-1],
        encode_plan(FULL) + b"\x00",
        encode_plan(FULL).replace(b"<i8", b"|O8"),
        encode_plan(FULL).replace(b"video", b"scent"),
        encode_plan(StepPlan(rows=(Row(1, 2, 3, 4),))),  # type: ignore[arg-type]
    ],
)
def test_bytes_that_are_no_plan_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_plan(data)


def test_what_is_not_data_is_refused() -> None:
    with pytest.raises(TypeError, match="has no place in a plan"):
        encode_plan(StepPlan(begun=(make_begun(params=SamplingParams(logits_processors=(print,))),)))


def test_numbers_of_any_size_go_into_a_plan() -> None:
    """They are accepted, and do what a large number does."""
    huge = 2**70
    config = GenerationConfig(
        do_sample=True,
        top_k=huge,
        random_seed=-huge - 5,
        max_new_tokens=huge,
        min_new_tokens=huge,
        logprobs=20,
        logit_bias={huge: 1.0, 3: 2.0},
        bad_token_ids=[huge, 4],
        stop_token_ids=[5, huge],
    )
    params = SamplingParams.from_config(config, eos_token_ids=(huge, 6))
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    begun = make_plan_begun(Sequence(1, prompt, params))
    [found] = decode_plan(encode_plan(StepPlan(begun=(begun,)))).begun
    assert found.seed == 2**64 - 5 and found.params.top_k > 2**40
    assert (found.params.bad_token_ids, found.params.ending_token_ids) == ((4,), (6, 5))
    assert found.params.logit_bias == ((3, 2.0),)


def test_a_steady_decode_step_is_small() -> None:
    """512 answers of 700 tokens: ids, places and, now and then, a block."""
    config = SchedulerConfig(max_batch_size=512, max_prefill_token_num=1 << 20, session_len=4096)
    scheduler = Scheduler(config, BlockPool(512 * 16, 64, enable_prefix_caching=False))
    for seq_id in range(512):
        length = 700 + seq_id % 64
        prompt = MultimodalInput(
            token_ids=np.arange(length), positions=np.arange(length), next_position=length, items=()
        )
        scheduler.add(Sequence(100_000 + 3 * seq_id, prompt, SamplingParams(max_new_tokens=300, ignore_eos=True)))
    sizes = []
    for _ in range(20):
        plan = scheduler.plan_step()
        sizes.append(len(encode_plan(plan)))
        scheduler.commit_step(plan, {row.seq_id: (1,) for row in plan.rows})
    assert max(sizes[1:]) < 7_500 < sizes[0], sizes
