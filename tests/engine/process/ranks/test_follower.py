"""A rank that follows: does what it is told, in that order, and computes what rank 0 computes."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from llm import backbones
from noted_followers import NotedFollowers
from recorded_ranks import RecordedRanks

from seesay.engine.process.ranks import follower as module
from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.follower import Follower, FollowingRunner, PlanFollower
from seesay.engine.process.ranks.led_runner import LedRunner
from seesay.llm.plans.plan_codec import encode_plan
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import StepPlan
from seesay.llm.running.cache_size import CacheSize
from seesay.llm.running.runner import ModelRunner
from seesay.values import MediaItem, Modality, MultimodalInput

PLAN = StepPlan(ended_ids=(4,))
COLLECTED = rank_messages.Collected(3, {1: (7,)})


class Runner:
    """Notes what it is told. fails: what is raised by the call of a name."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.fails: dict[str, BaseException] = {}
        self.busy: Any = None
        self.adapters = None

    def __getattr__(self, name: str) -> Any:
        def do(*arguments: Any, **options: Any) -> Any:
            self.done.append((name, *arguments, *options.items()))
            if name in self.fails:
                raise self.fails[name]
            return {"profile": 5, "choose_cache_size": [1, 2, 3]}.get(name, object())

        return do


class Parts:
    def __init__(self) -> None:
        runner: Any = Runner()
        weights: Any = SimpleNamespace(calls={"drop_weights": runner.drop_weights})
        self.runner = runner
        self.follower = Follower(runner, weights)

    def call(self, name: str, **arguments: Any) -> Any:
        return self.follower.take(rank_messages.Call(name, arguments))


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_each_message_is_done_behind_what_is_learned(parts: Parts) -> None:
    data = encode_plan(PLAN)
    step = rank_messages.Step((COLLECTED,), data, None)
    sample = rank_messages.Sample((), 3, {})
    assert parts.follower.take(rank_messages.Apply((COLLECTED, COLLECTED), data)) is None
    assert parts.follower.take(step) is None and parts.follower.take(sample) is None
    assert parts.runner.done == [
        ("learn", COLLECTED),
        ("learn", COLLECTED),
        ("apply", PLAN),
        ("learn", COLLECTED),
        ("follow_step", step),
        ("follow_sample", sample),
    ]


def test_a_part_of_a_step_is_watched_and_a_call_is_not(parts: Parts) -> None:
    busy: list[bool] = []
    parts.runner.apply = lambda plan: busy.append(parts.follower.activity._since_s is not None)
    parts.follower._calls = {"profile": lambda: parts.runner.apply(None)}
    parts.follower.take(rank_messages.Apply((), encode_plan(PLAN)))
    parts.call("profile")
    assert busy == [True, False] and parts.follower.activity.busy_s == 0


def test_what_is_not_expected_is_refused(parts: Parts) -> None:
    with pytest.raises(TypeError, match="Stop is not expected now"):
        parts.follower.take(rank_messages.Stop())


def test_calls_are_answered_with_plain_values(parts: Parts) -> None:
    assert parts.call("profile", records_graphs=True) == rank_messages.Answer(5, None)
    assert parts.call("choose_cache_size", share=0.5) == rank_messages.Answer([1, 2, 3], None)
    assert parts.call("warm_up") == rank_messages.Answer(None, None), "what rank 0 does not need"
    assert parts.call("drop_weights") == rank_messages.Answer(None, None)
    assert parts.runner.done == [
        ("profile", ("records_graphs", True)),
        ("choose_cache_size", ("share", 0.5)),
        ("warm_up",),
        ("drop_weights",),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "profile", "choose_cache_size", "allocate_cache", "drop_cache", "restore_cache", "restore_graphs",
        "record_graphs", "warm_up", "measure_step_costs",
    ],
)  # fmt: skip
def test_the_calls_of_a_runner_are_its_own(parts: Parts, name: str) -> None:
    assert parts.call(name).failure is None and parts.runner.done == [(name,)]


def test_a_call_that_fails_is_answered(parts: Parts) -> None:
    parts.runner.fails["restore_cache"] = MemoryError("full")
    answer = parts.call("restore_cache")
    assert answer.value is None and (answer.failure.name, answer.failure.text) == ("MemoryError", "full")
    failure = parts.call("unknown").failure
    assert failure.name == "KeyError" and "Traceback" in failure.traceback


def test_one_without_memory_keeps_no_frames(parts: Parts) -> None:
    parts.runner.fails["restore_cache"] = torch.OutOfMemoryError("full")
    assert "in do" not in parts.call("restore_cache").failure.traceback


def test_a_rank_that_fails_in_a_meeting_ends(parts: Parts) -> None:
    parts.runner.fails["profile"] = MemoryError("full")
    with pytest.raises(MemoryError):
        parts.call("profile")


def test_memory_is_released_where_it_was_freed(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(module, "release_cached_memory", lambda device: done.append("release"))
    monkeypatch.setattr(module, "return_memory", lambda: done.append("return"))
    parts.call("warm_up")
    assert done == []
    for name in ("drop_cache", "drop_weights"):
        parts.call(name)
        assert done == ["release", "return"]
        done.clear()
    parts.runner.fails["drop_cache"] = ValueError("odd")
    parts.call("drop_cache")
    assert done == ["release"]


def test_tokens_are_learned_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that were given up are passed over."""
    learned: list[Any] = []
    runner: Any = SimpleNamespace(_launched=deque())
    for number in (1, 2, 3, 4):
        launched = SimpleNamespace(learn=lambda ids, number=number: learned.append((number, ids)))
        runner._launched.append((number, launched))
    PlanFollower.learn(runner, COLLECTED)
    assert learned == [(3, {1: (7,)})] and [number for number, _ in runner._launched] == [4]


class Pair:
    """Rank 0, whose messages and tensors are noted, and a rank that follows them afterwards."""

    def __init__(self, first: Any, second: Any) -> None:
        followers: Any = NotedFollowers()
        sent = deque[torch.Tensor]()
        ranks: Any = [RecordedRanks(rank, sent) for rank in range(2)]
        self.told, self.sent = followers.told, sent
        self.led = LedRunner(first.decoder, first.limits, ranks=ranks[0], followers=followers)
        self.following = FollowingRunner(second.decoder, second.limits, ranks=ranks[1])
        for runner in (self.led, self.following):
            runner.allocate_cache(num_blocks=20, share=0.5, size=(20, 0, 0))
        weights: Any = SimpleNamespace(calls={})
        self.follower = Follower(self.following, weights)

    def generate(self, *, has_media: bool) -> list[list[int]]:
        prompts = [make_prompt(has_media and number == 1, number) for number in range(3)]
        params = [SamplingParams(max_new_tokens=4)] * 3
        embeddings = {bytes(32): torch.randn(3, 60, generator=torch.Generator().manual_seed(1))}
        return backbones.Driver(self.led, chunk=4).generate(prompts, params, embeddings)[0]

    def follow(self) -> None:
        for message in self.told:
            self.follower.take(message)


def make_prompt(has_media: bool, number: int) -> MultimodalInput:
    item = MediaItem(
        modality=Modality.IMAGE, span=(1, 4), slots=np.arange(1, 4), hash=bytes(32), features={}, num_units=1
    )
    ids = np.arange(3 + number, 9 + number)
    items = (item,) if has_media else ()
    return MultimodalInput(token_ids=ids, positions=np.arange(6), next_position=6, items=items)


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Any:
    backbone = backbones.make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))
    return [backbones.load_runner(backbone, num_blocks=20) for _ in range(2)]


@pytest.mark.parametrize("has_media", [False, True])
def test_a_follower_has_the_cache_of_rank_0(runners: Any, has_media: bool) -> None:
    pair = Pair(*runners)
    pair.generate(has_media=has_media)
    pair.follow()
    assert not pair.sent and len(pair.following.rows) == 0
    for mine, theirs in zip(pair.led.cache.pools, pair.following.cache.pools, strict=True):
        torch.testing.assert_close(mine[:20], theirs[:20])


def test_rows_that_rank_0_does_not_splice_are_a_bug(runners: Any) -> None:
    pair = Pair(*runners)
    pair.generate(has_media=True)
    number, step = next((i, each) for i, each in enumerate(pair.told) if getattr(each, "embeddings", None))
    pair.told[number:] = [rank_messages.Step(step.collected, step.plan, (2, "float32"))]
    with pytest.raises(AssertionError, match="rank 0 splices 2 rows into this step, this rank 3"):
        pair.follow()


def test_a_step_that_was_not_launched_is_not_sampled(runners: Any) -> None:
    pair = Pair(*runners)
    with pytest.raises(AssertionError, match="a step was sampled that was not launched"):
        pair.follower.take(rank_messages.Sample((), 1, {}))


def test_jumps_are_taken_with_the_tokens(runners: Any) -> None:
    following = Pair(*runners).following
    done: list[Any] = []
    following._take_tokens = lambda launched: done.append("tokens")  # type: ignore[method-assign]
    launched: Any = SimpleNamespace(take_jumps=done.append)
    following._launched.append((2, launched))
    following.follow_sample(rank_messages.Sample((), 2, {1: (5,)}))
    assert done == ["tokens", {1: (5,)}]


def test_a_rank_reserves_what_its_own_trial_took(runners: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    following = Pair(*runners).following
    chosen: list[Any] = []

    def choose(*arguments: Any, **options: Any) -> CacheSize:
        chosen.append((*arguments, options))
        return CacheSize(9)

    monkeypatch.setattr(module, "choose_cache_size", choose)
    assert following.choose_cache_size(share=0.5) == [9, 0, 0]
    monkeypatch.setattr(ModelRunner, "profile", lambda self, *, records_graphs: 7 if records_graphs else 6)
    assert following.profile(records_graphs=True) == 7
    following.choose_cache_size(share=0.5)
    assert chosen == [(following, {"reserved_bytes": number, "share": 0.5}) for number in (0, 7)]
