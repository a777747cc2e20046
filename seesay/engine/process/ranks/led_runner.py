"""The runner of rank 0: each step goes to the followers before it begins here.

What can fail for one row is found before anything is sent. From then on a step succeeds on all ranks, or ends the
model: the ranks would wait for each other for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from seesay.engine.process.ranks import rank_messages
from seesay.engine.process.ranks.led_memory import LedMemory
from seesay.llm.plans.plan_codec import encode_plan
from seesay.llm.running.launched_step import BegunStep

if TYPE_CHECKING:
    import torch

    from seesay.device.ranks import Ranks
    from seesay.engine.process.ranks.followers import Followers
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.plans.step_plan import StepPlan, TokenMasks
    from seesay.llm.running.launched_step import LaunchedStep, StepResult
    from seesay.llm.running.runner_limits import RunnerLimits
    from seesay.llm.running.sampling_row import LogitsProcessor
    from seesay.llm.running.seen_media import Embeddings
    from seesay.llm.running.splices import Splices
    from seesay.llm.running.step_input import StepRows


class LeadingRunner(LedMemory):
    """Has all ranks follow its plans, and samples alone: the others learn its tokens when it does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._num_launched = 0
        self._launched: deque[tuple[int, LaunchedStep]] = deque()  # those that may be collected, by number
        self._collected: list[rank_messages.Collected] = []

    def apply(self, plan: StepPlan) -> None:
        super().apply(plan)
        self._tell(rank_messages.Apply, encode_plan(plan))

    def step(self, plan: StepPlan, embeddings: Embeddings) -> BegunStep:
        super().apply(plan)
        splices, errors = self.find_splices(plan, embeddings)
        plan = plan.without(errors)
        self._tell(rank_messages.Step, encode_plan(plan), _describe(splices))
        with self._in_step():
            self.copy_blocks(plan)
            launched = self.launch(plan, splices) if plan.rows else None
        if launched is not None:
            self._num_launched += 1
            self._launched.append((self._num_launched, launched))
        return BegunStep(plan, launched, errors)

    def sample(
        self,
        launched: LaunchedStep,
        masks: TokenMasks | None = None,
        processors: Mapping[int, tuple[LogitsProcessor, ...]] | None = None,
    ) -> None:
        number = next(number for number, found in self._launched if found is launched)
        self._tell(rank_messages.Sample, number, {} if masks is None else dict(masks.jumps))
        with self._in_step():
            super().sample(launched, masks, processors)

    def collect(self, launched: LaunchedStep) -> StepResult:
        with self._in_step():
            result = super().collect(launched)
        number, found = self._launched.popleft()
        while found is not launched:  # steps that were given up
            number, found = self._launched.popleft()
        self._collected.append(rank_messages.Collected(number, dict(result.token_ids)))
        return result

    def _tell(self, kind: Callable[..., rank_messages.ToFollower], *fields: Any) -> None:
        """Send a message with all that was learned since the last one."""
        collected, self._collected = tuple(self._collected), []
        self._followers.tell(kind(collected, *fields))

    @contextmanager
    def _in_step(self) -> Generator[None]:
        """A part of a step that the other ranks do as well."""
        try:
            yield
        except BaseException as error:
            self._followers.give_up(error)
            raise


class LedRunner(LeadingRunner):
    """The runner of rank 0 of those that have a slice of every layer each: they take embeddings and tokens from its
    device."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits, *, ranks: Ranks, followers: Followers) -> None:
        super().__init__(decoder, limits, place=ranks.place, followers=followers)
        self._ranks = ranks

    def _put_tokens(self, launched: LaunchedStep, token_ids: torch.Tensor) -> None:
        self._ranks.broadcast(token_ids)
        super()._put_tokens(launched, token_ids)

    def _join_embeddings(self, step: StepRows) -> torch.Tensor | None:
        embeddings = super()._join_embeddings(step)
        if embeddings is not None:
            self._ranks.broadcast(embeddings)
        return embeddings


def _describe(splices: Mapping[int, Splices]) -> tuple[int, str] | None:
    """Return the number of embedding rows that go into a step, and their dtype."""
    pieces = [piece for found in splices.values() for piece in found.pieces]
    if not pieces:
        return None
    return sum(map(len, pieces)), str(pieces[0].dtype).removeprefix("torch.")
