"""The runners of a decoder that is divided into stages: rank 0 has the first one, and the last one sends back to it.

Rank 0 launches a step before it samples the one before, so that two are under way, each in another stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch

from seesay.device.streams import on_stream
from seesay.engine.process.ranks.follower import PlanFollower
from seesay.engine.process.ranks.led_runner import LeadingRunner
from seesay.llm.models.composed_decoder import ComposedDecoder

if TYPE_CHECKING:
    from seesay.device.ranks import TorchStages
    from seesay.engine.process.ranks.followers import Followers
    from seesay.llm.memory.kv_layout import LayerCache
    from seesay.llm.models.decoder import Decoder
    from seesay.llm.plans.step_plan import StepPlan, TokenMasks
    from seesay.llm.running.begun_forward import BegunForward
    from seesay.llm.running.launched_step import LaunchedStep
    from seesay.llm.running.runner_limits import RunnerLimits
    from seesay.llm.running.sampling_row import LogitsProcessor
    from seesay.llm.running.splices import Splices
    from seesay.llm.running.step_input import StepRows


class FirstStageRunner(LeadingRunner):
    """Computes the first layers of a step when it is launched, and the head when it is sampled."""

    samples_late = True

    def __init__(self, decoder: Decoder, limits: RunnerLimits, *, stages: TorchStages, followers: Followers) -> None:
        super().__init__(decoder, limits, place=stages.place, followers=followers)
        self._stages = stages
        self._sent: deque[tuple[BegunForward, LaunchedStep]] = deque()

    def launch(self, plan: StepPlan, splices: Mapping[int, Splices]) -> LaunchedStep:
        launched = super().launch(plan, splices)
        launched.stopwatch = None  # others are computed meanwhile
        return launched

    def _compute(self, begun: BegunForward, caches: Sequence[LayerCache]) -> LaunchedStep:
        decoder = cast("ComposedDecoder", self.decoder)
        self._stages.send(decoder.run_stage(decoder.embed(begun.inputs), begun.inputs, caches))
        launched = begun.launched(self.dtype)
        self._sent.append((begun, launched))
        return launched

    def sample(
        self,
        launched: LaunchedStep,
        masks: TokenMasks | None = None,
        processors: Mapping[int, tuple[LogitsProcessor, ...]] | None = None,
    ) -> None:
        with self._in_step(), torch.inference_mode(), on_stream(self.stream):
            if launched.step.rows:
                self._receive(launched)
        self._unsampled = launched
        super().sample(launched, masks, processors)

    def _receive(self, launched: LaunchedStep) -> None:
        """Finish a step with what the last stage has sent, or will have. Those before it were given up."""
        decoder = cast("ComposedDecoder", self.decoder)
        found: LaunchedStep | None = None
        while found is not launched:
            begun, found = self._sent.popleft()
            shape = begun.num_hidden, decoder.config.hidden_size
            residual = self._stages.receive(torch.empty(shape, dtype=self.dtype, device=self.device))
        begun.finish(launched, decoder, decoder.normalize(residual))


class LaterStageRunner(PlanFollower):
    """Computes the other layers of a step between two exchanges. It needs neither tokens nor embeddings."""

    def __init__(self, decoder: Decoder, limits: RunnerLimits, *, stages: TorchStages) -> None:
        super().__init__(decoder, limits)
        self._stages = stages

    def _compute(self, begun: BegunForward, caches: Sequence[LayerCache]) -> LaunchedStep:
        decoder, is_last = cast("ComposedDecoder", self.decoder), self._stages.place.rank == self._stages.place.size - 1
        shape = len(begun.inputs.input_ids), decoder.config.hidden_size
        residual = self._stages.receive(torch.empty(shape, dtype=self.dtype, device=self.device))
        self._stages.send(decoder.run_stage(residual, begun.inputs, caches, begun.wanted if is_last else None))
        return begun.launched(self.dtype)

    def _join_embeddings(self, step: StepRows) -> torch.Tensor | None:
        del step
        return None
