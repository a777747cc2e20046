"""Steps that rank 0 leads: what the others are told of each, in which order, and what ends the model.

Rank 0 has a small model; the others note what they are told.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from llm import backbones
from noted_followers import NotedFollowers
from recorded_ranks import RecordedRanks

from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.led_runner import LedRunner
from seesay.llm.plans.plan_codec import decode_plan, encode_plan
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import BlockCopy, Row, StepPlan, TokenMasks
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MediaItem, Modality, MultimodalInput

HASH = bytes(32)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A runner without followers."""
    return backbones.load_runner(backbones.make_backbone("qwen2", tmp_path_factory.mktemp("qwen2")), num_blocks=20)


class Rank0:
    """A runner that leads. sent: what it broadcasts."""

    def __init__(self, alone: Any) -> None:
        followers: Any = NotedFollowers()
        self.followers, self.sent = followers, deque[torch.Tensor]()
        ranks: Any = RecordedRanks(0, self.sent)
        self.runner: Any = LedRunner(alone.decoder, alone.limits, ranks=ranks, followers=followers)
        self.runner.allocate_cache(num_blocks=20, share=0.5)
        self.followers.calls.clear()

    def begin(self, *sequences: Sequence) -> None:
        first, tables = 0, {}
        for sequence in sequences:
            tables[sequence] = range(first, first := first + 3)
        backbones.begin(self.runner, tables)

    def told(self) -> list[Any]:
        told, self.followers.told[:] = [*self.followers.told], []
        return told


@pytest.fixture
def rank(alone: Any) -> Rank0:
    return Rank0(alone)


def make_prompt(*, has_media: bool = False, length: int = 6) -> MultimodalInput:
    item = MediaItem(modality=Modality.IMAGE, span=(1, 4), slots=np.arange(1, 4), hash=HASH, features={}, num_units=1)
    return MultimodalInput(
        token_ids=np.arange(3, 3 + length),
        positions=np.arange(length),
        next_position=length,
        items=(item,) if has_media else (),
    )


def make_sequence(number: int, *, has_media: bool = False) -> Sequence:
    return Sequence(number, make_prompt(has_media=has_media), SamplingParams())


def whole(number: int, length: int = 6, *, samples: bool = True) -> Row:
    return Row(seq_id=number, start=0, num_tokens=length, samples=samples)


def test_answers_are_those_of_a_runner_alone(alone: Any, rank: Rank0) -> None:
    prompts = [make_prompt(has_media=number == 1, length=5 + number) for number in range(3)]
    params = [SamplingParams(max_new_tokens=4)] * 3
    embeddings = {HASH: torch.randn(3, 60, generator=torch.Generator().manual_seed(1))}
    expected, _ = backbones.Driver(alone, chunk=4).generate(prompts, params, embeddings)
    assert backbones.Driver(rank.runner, chunk=4).generate(prompts, params, embeddings)[0] == expected


def test_a_plan_that_is_only_taken_is_told(rank: Rank0) -> None:
    sequence = make_sequence(1)
    rank.begin(sequence)
    [message] = rank.told()
    assert isinstance(message, rank_messages.Apply) and message.collected == ()
    plan = decode_plan(message.plan)
    assert [begun.seq_id for begun in plan.begun] == [1] and len(rank.runner.rows) == 1
    assert encode_plan(plan) == message.plan


def test_a_step_is_told_before_it_begins_and_its_tokens_with_the_next(rank: Rank0) -> None:
    rank.begin(make_sequence(1), make_sequence(2))
    rank.told()
    plan = StepPlan(rows=(whole(1), whole(2)))
    launching = rank.runner.launch
    seen: list[int] = []

    def launch(*arguments: Any) -> Any:
        seen.append(len(rank.followers.told))
        return launching(*arguments)

    rank.runner.launch = launch
    begun = rank.runner.step(plan, {})
    assert begun.launched is not None and begun.plan is plan and seen == [1] and not rank.sent
    jumps = {9: (5, 8)}
    rank.runner.sample(begun.launched, TokenMasks(seq_ids=(), bits=np.zeros((0, 5), np.int32), jumps=jumps))
    tokens = rank.runner.collect(begun.launched).token_ids
    step, sample = rank.told()
    assert isinstance(step, rank_messages.Step) and step.embeddings is None and step.collected == ()
    assert step.plan == encode_plan(plan)
    assert isinstance(sample, rank_messages.Sample) and (sample.number, sample.jumps, sample.collected) == (
        1,
        jumps,
        (),
    )
    assert len(rank.sent) == 1, "the tokens, once they are chosen"
    rank.runner.apply(StepPlan(ended_ids=(1,)))
    rank.runner.apply(StepPlan(ended_ids=(2,)))
    first, second = rank.told()
    assert first.collected == (rank_messages.Collected(1, dict(tokens)),) and second.collected == ()


def test_embeddings_are_announced_and_sent(rank: Rank0) -> None:
    rank.begin(make_sequence(1, has_media=True))
    rank.told()
    embedding = torch.randn(3, 60)
    rank.runner.step(StepPlan(rows=(whole(1),)), {HASH: embedding})
    [step] = rank.told()
    assert step.embeddings == (3, "float32")
    [sent] = rank.sent
    torch.testing.assert_close(sent, embedding)


def test_rows_that_cannot_be_computed_are_not_told(rank: Rank0) -> None:
    rank.begin(make_sequence(1, has_media=True), make_sequence(2))
    rank.told()
    plan, launched, errors = rank.runner.step(StepPlan(rows=(whole(1), whole(2))), {})
    [step] = rank.told()
    assert set(errors) == {1} and launched is not None
    assert decode_plan(step.plan).rows == plan.rows == (whole(2),) and step.embeddings is None


def test_a_step_without_rows_computes_nothing_and_makes_its_copies(rank: Rank0) -> None:
    copied: list[Any] = []
    rank.runner.copy_blocks = copied.append
    plan = StepPlan(loads=(BlockCopy(0, 1),))
    assert rank.runner.step(plan, {}) == (plan, None, {})
    assert len(rank.told()) == 1 and copied == [plan]
    rank.begin(make_sequence(1))
    begun = rank.runner.step(StepPlan(rows=(whole(1),)), {})
    assert begun.launched is not None
    rank.runner.sample(begun.launched)
    assert rank.told()[-1].number == 1, "only steps that are launched have numbers"


def test_steps_that_were_given_up_are_passed_over(rank: Rank0) -> None:
    rank.begin(make_sequence(1), make_sequence(2))
    numbers: list[int] = []
    for number in (1, 2):
        begun = rank.runner.step(StepPlan(rows=(whole(number),)), {})
        assert begun.launched is not None
        rank.runner.sample(begun.launched)
        numbers.append(rank.told()[-1].number)
    result = rank.runner.collect(begun.launched)
    assert numbers == [1, 2] and set(result.token_ids) == {2}
    rank.runner.apply(StepPlan())
    [message] = rank.told()
    assert [each.number for each in message.collected] == [2] and not rank.runner._launched


@pytest.mark.parametrize("part", ["launch", "sample", "collect"])
def test_what_fails_in_a_step_ends_the_model(rank: Rank0, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("a kernel failed")

    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    rank.begin(make_sequence(1))
    if part == "launch":
        monkeypatch.setattr(rank.runner, "launch", fail)
        with pytest.raises(RuntimeError, match="a kernel failed"):
            rank.runner.step(StepPlan(rows=(whole(1),)), {})
    else:
        begun = rank.runner.step(StepPlan(rows=(whole(1),)), {})
        launched: Any = begun.launched
        if part == "sample":
            monkeypatch.setattr(rank.runner, "_sample", fail)
            with pytest.raises(RuntimeError, match="a kernel failed"):
                rank.runner.sample(launched)
        else:
            with pytest.raises(AssertionError, match="sample comes before"):
                rank.runner.collect(launched)
    assert len(rank.followers.given_up) == 1


def test_nothing_is_given_up_for_a_plan_that_is_wrong(rank: Rank0) -> None:
    """Nothing was sent yet."""
    with pytest.raises(KeyError):
        rank.runner.step(StepPlan(rows=(whole(9),)), {})
    assert rank.told() == [] and rank.followers.given_up == []
