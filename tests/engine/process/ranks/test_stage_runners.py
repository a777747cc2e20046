"""Two stages compute at the same time: different answers, different chunks of a prompt. No clock is read: each step is
held in the second stage until rank 0 does what it does next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from thread_followers import ThreadFollowers

from seesay.config import EngineConfig, VisionConfig
from seesay.device.ranks import Place, Stages, TorchStages
from seesay.engine.core.adapters import AdapterStore
from seesay.engine.core.loading.loading import load_core, load_follower
from seesay.engine.core.loop import EngineLoop
from seesay.engine.core.model_weights import ModelWeights
from seesay.engine.core.rank_parts import RankParts
from seesay.engine.opened_model import open_model
from seesay.engine.process.ranks.follower import PlanFollower
from seesay.engine.process.ranks.stage_runners import FirstStageRunner, LaterStageRunner
from seesay.engine.token_messages import TokenOutput, TokenRequest
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import MultimodalInput

CPU = torch.device("cpu")
LIMIT_S = 60.0


class Encounter:
    """Meets the two stages. `overlaps`: of each step, whether rank 0 began the next one before it waited for this."""

    def __init__(self) -> None:
        self.overlaps: list[bool] = []
        self._changed = threading.Condition()
        self._num_begun = [0, 0]
        self._num_waited = 0

    def begin_first(self) -> None:
        """Rank 0 computes the next step, together with the second stage, which has that before it."""
        with self._changed:
            self._num_begun[0] += 1
            self._changed.notify_all()
            number = self._num_begun[0]
            assert self._changed.wait_for(lambda: self._num_begun[1] >= number - 1, LIMIT_S), "it waits for rank 0"

    def begin_second(self) -> None:
        """The second stage computes a step: it goes on when rank 0 computes the next one, or waits for this."""
        with self._changed:
            self._num_begun[1] += 1
            self._changed.notify_all()
            number = self._num_begun[1]

            def is_known() -> bool:
                return self._num_begun[0] > number or self._num_waited >= number

            assert self._changed.wait_for(is_known, LIMIT_S), "rank 0 does nothing"
            self.overlaps.append(self._num_begun[0] > number)

    def wait_for_second(self) -> None:
        """Rank 0 waits for the oldest step that it has not waited for."""
        with self._changed:
            self._num_waited += 1
            self._changed.notify_all()


class ThreadStages(Stages):
    """`TorchStages` of threads."""

    def __init__(self, rank: int, sent: Sequence[SimpleQueue[torch.Tensor]], encounter: Encounter) -> None:
        super().__init__(Place(rank, 2))
        self._sent, self._encounter = sent, encounter

    def send(self, x: torch.Tensor) -> None:
        self._sent[self.place.rank].put(x.clone())

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        if self.place.rank == 0:
            self._encounter.wait_for_second()
        return x.copy_(self._sent[1 - self.place.rank].get(timeout=LIMIT_S))


def meet_before(compute: Callable[..., torch.Tensor], meet: Callable[[], None]) -> Callable[..., torch.Tensor]:
    def met(*arguments: Any, **options: Any) -> torch.Tensor:
        meet()
        return compute(*arguments, **options)

    return met


class ThreadJoin:
    """A `JoinRanks` whose second stage is a thread."""

    def __init__(self, path: Path, config: EngineConfig, encounter: Encounter) -> None:
        sent = [SimpleQueue[torch.Tensor](), SimpleQueue[torch.Tensor]()]
        # They have what runners use of them.
        self._stages: list[Any] = [ThreadStages(rank, sent, encounter) for rank in range(2)]
        self._encounter = encounter
        make_later = partial(LaterStageRunner, stages=self._stages[1])
        later = load_follower(open_model(path, config), config, CPU, make_later, self._stages[1])
        assert isinstance(later, PlanFollower)
        decoder: Any = later.decoder
        decoder.run_stage = meet_before(decoder.run_stage, encounter.begin_second)
        self.followers = ThreadFollowers([later])

    def pick_device(self) -> torch.device:
        return CPU

    def _make_runner(self, decoder: Any, limits: Any) -> FirstStageRunner:
        decoder.run_stage = meet_before(decoder.run_stage, self._encounter.begin_first)
        stages: TorchStages = self._stages[0]
        return FirstStageRunner(decoder, limits, stages=stages, followers=self.followers)

    def join(self, device: torch.device) -> RankParts:
        return RankParts(
            ranks=self._stages[0],
            make_runner=self._make_runner,
            make_weights=ModelWeights,
            make_adapter_store=AdapterStore,
            wait_until_loaded=lambda: None,
        )


class Listener:
    def __init__(self) -> None:
        self.outputs = SimpleQueue[TokenOutput]()

    def on_outputs(self, outputs: Sequence[TokenOutput]) -> None:
        for output in outputs:
            self.outputs.put(output)

    def on_features_wanted(self, request_id: int, item_index: int) -> None:
        raise AssertionError("there are no pictures")

    def on_encoding(self, item_hash: bytes) -> None:
        raise AssertionError("there are no pictures")


@contextmanager
def loaded(path: Path, encounter: Encounter, **options: Any) -> Iterator[EngineLoop]:
    config = EngineConfig(device_type="cpu", block_size=16, pp=2, **options)
    join = ThreadJoin(path, config, encounter)
    loop = load_core(open_model(path, config), config, VisionConfig(), join_ranks=join)
    try:
        yield loop
    finally:
        loop.close()
        join.followers.end()


def answer(loop: EngineLoop, prompts: Sequence[int], **params: Any) -> dict[int, tuple[int, ...]]:
    """Answer prompts of so many tokens, which are there before the first step. Returns the tokens of each."""
    listener = Listener()
    requests = []
    for number, length in enumerate(prompts):
        token_ids = (np.arange(length) * 7 + number) % 50 + 5
        prompt = MultimodalInput(token_ids=token_ids, positions=np.arange(length), next_position=length, items=())
        requests.append(TokenRequest(request_id=number, prompt=prompt, params=SamplingParams(**params)))
    loop.submit(requests)
    loop.start(listener)
    tokens: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(prompts)), ())
    left = set(tokens)
    while left:
        output = listener.outputs.get(timeout=2 * LIMIT_S)
        assert output.error is None, output.error
        tokens[output.request_id] += tuple(output.token_ids)
        if output.finish_reason is not None:
            left.remove(output.request_id)
    return tokens


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.mark.parametrize("num_answers", [2, 5])
def test_different_answers_are_computed_at_the_same_time(path: Path, num_answers: int) -> None:
    encounter = Encounter()
    with loaded(path, encounter) as loop:
        tokens = answer(loop, [9 + number for number in range(num_answers)], max_new_tokens=12, ignore_eos=True)
    assert [len(found) for found in tokens.values()] == [12] * num_answers
    # The first step has all prompts, and the last one has nothing behind it.
    assert encounter.overlaps == [False, *[True] * 21, False]


def test_chunks_of_a_prompt_are_computed_at_the_same_time(path: Path) -> None:
    encounter = Encounter()
    with loaded(path, encounter, max_prefill_token_num=32) as loop:
        answer(loop, [150], max_new_tokens=1)
    assert encounter.overlaps == [True, True, True, True, False]


def test_one_answer_alone_takes_turns(path: Path) -> None:
    encounter = Encounter()
    with loaded(path, encounter) as loop:
        answer(loop, [9], max_new_tokens=6, ignore_eos=True)
    assert encounter.overlaps == [False] * 6


def test_stages_take_turns_where_no_step_is_launched_ahead(path: Path) -> None:
    encounter = Encounter()
    with loaded(path, encounter, async_scheduling=False) as loop:
        answer(loop, [9, 10], max_new_tokens=4, ignore_eos=True)
    assert encounter.overlaps and not any(encounter.overlaps)
