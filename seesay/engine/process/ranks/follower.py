"""A rank that follows: does what rank 0 says, in that order, and decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from seesay.device.activity import Activity
from seesay.device.host_memory import return_memory
from seesay.device.query import is_out_of_memory, release_cached_memory, synchronize
from seesay.device.streams import on_stream
from seesay.engine.process.failures import describe_failure
from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.followers import MEETINGS
from seesay.engine.process.ranks.led_adapters import FollowedAdapters
from seesay.llm.plans.plan_codec import decode_plan
from seesay.llm.running.cache_size import choose_cache_size
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.splices import place_splices

if TYPE_CHECKING:
    from seesay.device.ranks import Ranks
    from seesay.engine.process.ranks.led_weights import FollowedWeights
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.running.launched_step import LaunchedStep
    from seesay.llm.running.runner_limits import RunnerLimits
    from seesay.llm.running.step_input import StepRows

_FREEING = frozenset(["drop_cache", "drop_weights", "offload_weights"])
"""Calls after which the memory is others' to use."""


class PlanFollower(ModelRunner):
    """Computes the steps of rank 0 with its own part of the model. What is sampled is rank 0's to choose."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits) -> None:
        super().__init__(decoder, limits)
        self._reserved_bytes = 0
        self._embeddings: tuple[int, str] | None = None
        self._launched: deque[tuple[int, LaunchedStep]] = deque()  # those that may be collected, by number
        self._num_launched = 0

    def profile(self, *, records_graphs: bool = False) -> int:
        self._reserved_bytes = super().profile(records_graphs=records_graphs)
        return self._reserved_bytes

    def choose_cache_size(self, **options: Any) -> list[int]:
        """Return the `CacheSize` that this rank has room for, beside what its own trial took."""
        return list(choose_cache_size(self, reserved_bytes=self._reserved_bytes, **options))

    def learn(self, collected: rank_messages.Collected) -> None:
        """Let the row table know the tokens of a step."""
        number, launched = self._launched.popleft()
        while number != collected.number:  # steps that were given up
            number, launched = self._launched.popleft()
        launched.learn(collected.token_ids)

    def follow_step(self, message: rank_messages.Step) -> None:
        """Take a plan, and launch its rows."""
        plan = decode_plan(message.plan)
        self._embeddings = message.embeddings
        self.apply(plan)
        self.copy_blocks(plan)
        if plan.rows:
            self._num_launched += 1
            self._launched.append((self._num_launched, self.launch(plan, place_splices(plan, self.rows))))

    def follow_sample(self, message: rank_messages.Sample) -> None:
        """Take the tokens of a step that was launched."""
        launched = next((found for number, found in self._launched if number == message.number), None)
        assert launched is not None, "a step was sampled that was not launched"
        self._take_tokens(launched)
        launched.take_jumps(message.jumps)

    def _take_tokens(self, launched: LaunchedStep) -> None:
        """Let the next step begin with what this one samples, if this rank needs to know it."""


class FollowingRunner(PlanFollower):
    """A rank with a slice of every layer. Embeddings and sampled tokens come from rank 0's device."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits, *, ranks: Ranks) -> None:
        super().__init__(decoder, limits)
        self._ranks = ranks

    def _take_tokens(self, launched: LaunchedStep) -> None:
        self._unsampled = None
        if launched.logits is not None:
            with torch.inference_mode(), on_stream(self.stream):
                token_ids = torch.empty(launched.step.num_sampled, dtype=torch.int64, device=self.device)
                self._ranks.broadcast(token_ids)
                self._put_tokens(launched, token_ids)

    def _join_embeddings(self, step: StepRows) -> torch.Tensor | None:
        num_rows = sum(len(offsets) for found in step.splices.values() for offsets in found.offsets)
        count, dtype = self._embeddings or (0, "")
        assert num_rows == count, f"rank 0 splices {count} rows into this step, this rank {num_rows}"
        if not num_rows:
            return None
        shape = num_rows, self.decoder.traits.embedding_size
        embeddings = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
        self._ranks.broadcast(embeddings)
        return embeddings


class Follower:
    """Does the messages of rank 0. `activity`: entered with each part of a step."""

    def __init__(self, runner: PlanFollower, weights: FollowedWeights) -> None:
        self._runner = runner
        self.activity = Activity()
        self._calls: Mapping[str, Callable[..., Any]] = {
            "profile": runner.profile,
            "choose_cache_size": runner.choose_cache_size,
            "allocate_cache": runner.allocate_cache,
            "drop_cache": runner.drop_cache,
            "restore_cache": runner.restore_cache,
            "restore_graphs": runner.restore_graphs,
            "record_graphs": runner.record_graphs,
            "warm_up": runner.warm_up,
            "measure_step_costs": runner.measure_step_costs,
            **weights.calls,
            **FollowedAdapters(runner).calls,
        }

    def take(self, message: rank_messages.ToFollower) -> rank_messages.Answer | None:
        """Do what a message says, and return the answer to a call. Raises what ends this rank, and so the model."""
        with nullcontext() if isinstance(message, rank_messages.Call) else self.activity:
            if isinstance(message, rank_messages.Learning):
                for collected in message.collected:
                    self._runner.learn(collected)
            match message:
                case rank_messages.Apply():
                    self._runner.apply(decode_plan(message.plan))
                case rank_messages.Step():
                    self._runner.follow_step(message)
                case rank_messages.Sample():
                    self._runner.follow_sample(message)
                case rank_messages.Call():
                    return self._call(message)
                case _:
                    raise TypeError(f"{type(message).__name__} is not expected now")
        return None

    def _call(self, call: rank_messages.Call) -> rank_messages.Answer:
        """Do a call. Its failure is rank 0's to handle, but in a meeting."""
        device = self._runner.device
        try:
            synchronize(device)  # calls and steps use different streams
            value = self._calls[call.name](**call.arguments)
            synchronize(device)
        except Exception as error:
            if call.name in MEETINGS:
                raise
            error.__traceback__ = None if is_out_of_memory(error) else error.__traceback__
            release_cached_memory(device)
            return rank_messages.Answer(None, describe_failure(error))
        if call.name in _FREEING:
            release_cached_memory(device)
            return_memory()
        return rank_messages.Answer(value if isinstance(value, int | list) else None, None)
