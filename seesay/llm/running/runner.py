"""Runs steps: turns plans into tensors, computes them and samples. Changes nothing but the KV cache and its row table.

A runner is driven by plans alone: two that follow the same plans sample the same tokens. For each plan, in order,
`step` takes its deltas, makes its copies and begins to compute its rows, `sample` chooses their tokens once masks are
there, and `collect` waits. The next step can be launched before this one is collected: what a step samples stays on the
device and is what the next one begins with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from seesay.device.determinism import is_deterministic
from seesay.device.query import cpu_threads, synchronize
from seesay.device.streams import GraphRecorder, Stopwatch, make_stream, on_stream, traced
from seesay.device.transfers import HostCopy
from seesay.llm.memory.host_cache import HostCache
from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.models.adapters.adapters import Adapters
from seesay.llm.models.decoder import Decoder
from seesay.llm.plans.step_plan import StepPlan, TokenMasks
from seesay.llm.plans.step_times import StepCosts
from seesay.llm.running.begun_forward import BegunForward, is_plain
from seesay.llm.running.blank_input import build_warm_up_inputs
from seesay.llm.running.cache_size import CacheSize, choose_cache_size, make_cache
from seesay.llm.running.decode_graphs import DecodeGraphs
from seesay.llm.running.device_rows import DeviceRows, make_draws
from seesay.llm.running.greatest import find_any_greatest, find_greatest
from seesay.llm.running.launched_step import BegunStep, LaunchedStep, StepResult
from seesay.llm.running.profiling import measure_peaks
from seesay.llm.running.row_table import RowTable
from seesay.llm.running.sampler import choose_tokens
from seesay.llm.running.sampling_row import LogitsProcessor
from seesay.llm.running.sampling_rows import count_drawn, sort_rows
from seesay.llm.running.seen_media import Embeddings
from seesay.llm.running.splices import PlanSplices, Splices, find_splices, join_embeddings
from seesay.llm.running.step_input import StepPadding, StepRows, arrange_rows, make_step_input
from seesay.llm.running.step_sizes import row_sizes, token_sizes
from seesay.llm.running.step_timing import measure_step_costs

if TYPE_CHECKING:
    from seesay.llm.memory.kv_layout import KVLayout, LayerCache
    from seesay.llm.running.proposals.kept_states import KeptStates
    from seesay.llm.running.proposals.rounds import ProposalRounds
    from seesay.llm.running.runner_limits import RunnerLimits

SINGLE_THREAD_FLOPS = 200_000_000
"""A step of fewer operations runs on one CPU thread (measured: at 90 million, 2.4 ms on one and 3.8 ms on two)."""


class ModelRunner:
    """Owns the decoder and its KV cache. Used by one thread at a time.

    `allocate_cache` must be called once before `launch` and `run`; `warm_up` and `record_graphs` may be. `limits` are
    what these prepare for; they may be replaced before. `rows` is its row table; `device_rows` is the part of it on the
    device, and is there once the cache is. `adapters`: those of the decoder, if it takes any. `kept_states` takes what
    it makes of the hidden states of all tokens, and `rounds` computes proposals of its own, if they are there.
    `has_graphs`: whether CUDA graphs compute decode steps, once the cache is there. `samples_late`: a step is sampled
    only when the next one is launched, or none follows, as its hidden states come from elsewhere meanwhile.
    """

    samples_late = False

    def __init__(self, decoder: Decoder, limits: RunnerLimits) -> None:
        self.decoder = decoder
        self.limits = limits
        self.rows = RowTable()
        self.adapters: Adapters | None = None
        self.kept_states: KeptStates | None = None
        self.rounds: ProposalRounds | None = None
        self._cache: KVCache | None = None
        self._host_cache: HostCache | None = None
        self._num_blocks = self._num_host_slots = self.num_states = self.num_host_states = 0
        self.cache_size = CacheSize(0)
        self._graphs: DecodeGraphs | None = None
        self.has_graphs = False
        self._padding: StepPadding | None = None
        self.stream = make_stream(decoder.device, is_urgent=True)
        self._device_rows: DeviceRows | None = None
        self._unsampled: LaunchedStep | None = None
        self._num_threads = torch.get_num_threads()
        self._is_deterministic = is_deterministic()

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def block_size(self) -> int:
        return self.limits.block_size

    @property
    def kv_layouts(self) -> tuple[KVLayout, ...]:
        """The layout of each layer's KV cache."""
        shapes = self.decoder.traits.kv_shapes
        return make_layouts(shapes, block_size=self.block_size, dtype=self.dtype, format=self.limits.kv_format)

    @property
    def num_blocks(self) -> int:
        """Number of KV blocks; 0 before `allocate_cache`."""
        return self._num_blocks

    @property
    def cache(self) -> KVCache:
        """The KV cache of all layers."""
        assert self._cache is not None, "allocate_cache comes before plans"
        return self._cache

    @property
    def graphs(self) -> DecodeGraphs | None:
        """The graphs that compute decode steps; None where there are none."""
        return self._graphs

    @property
    def device_rows(self) -> DeviceRows:
        assert self._device_rows is not None, "allocate_cache comes before plans"
        return self._device_rows

    def profile(self, *, records_graphs: bool = False) -> int:
        """Bytes that the largest prefill and the largest decode step need beside weights and cache, by trying both, and
        what `record_graphs` will take, if it comes.

        Rows of the trial all share one block, so it needs no cache to speak of. On the CPU nothing is tried: 0.
        """
        if self.device.type == "cpu":
            return 0
        peaks = measure_peaks(self.decoder, make_cache(self, 1), self.limits)
        return max(peaks) + (peaks[-1] if records_graphs else 0)

    def allocate_cache(
        self,
        *,
        num_blocks: int,
        share: float,
        reserved_bytes: int = 0,
        num_host_slots: int = 0,
        size: Sequence[int] | None = None,
    ) -> int:
        """Allocate the KV cache and return its number of blocks (see `choose_cache_size`; `reserved_bytes` is what
        `profile` and the encoder's own trial returned), and so many slots in host memory. Where it holds less than the
        longest sequence, `limits.session_len` is lowered to that. size: the `CacheSize` on which several ranks agreed.
        """
        size = size or choose_cache_size(self, num_blocks, share, reserved_bytes, num_host_slots)
        self.cache_size = CacheSize(*size)
        self.num_host_states = self.cache_size.count_host_states(num_host_slots)
        num_blocks, self.num_states = self.cache_size.num_blocks, self.cache_size.num_states
        self._num_blocks, self._num_host_slots = num_blocks, num_host_slots
        self.limits = replace(
            self.limits, session_len=min(self.limits.session_len, num_blocks * self.limits.block_size)
        )
        self.restore_cache()
        return num_blocks

    def drop_cache(self) -> None:
        """Free the KV cache on the device and on the host, the slots of adapters, and the graphs that use them. No
        sequence is alive. Nothing is launched before `restore_cache`."""
        synchronize(self.device)
        self._unsampled = None
        self._graphs = None
        self._host_cache = None
        self._cache = None
        self._device_rows = None
        self.rows = RowTable()
        self.decoder.forget_blocks()
        if self.adapters is not None:
            self.adapters.free_slots()

    def restore_cache(self) -> None:
        """Allocate the KV cache, with the size that was settled, an empty row table on the device, and the slots of
        adapters if they were freed. Raises `torch.OutOfMemoryError`; then nothing is allocated."""
        cache = make_cache(self, self._num_blocks + 1)  # the last one is scratch, for what steps are filled up with
        with on_stream(self.stream):
            rows = DeviceRows(
                num_slots=self.limits.max_batch_size,
                num_lent=self.limits.max_verified_tokens,
                max_blocks=self.limits.max_sequence_blocks,
                scratch_block=self._num_blocks,
                scratch_state=self.num_states,
                device=self.device,
            )
        if self.adapters is not None:
            self.adapters.restore_slots()
        if self._num_host_slots and cache.pools:
            self._host_cache = HostCache(cache.pools, self._num_host_slots)
        self._cache, self._device_rows = cache, rows

    def restore_graphs(self) -> None:
        """Record graphs anew for a restored cache, if there were any before it was dropped."""
        synchronize(self.device)  # weights and cache may have been filled on another stream
        if self.has_graphs and self._graphs is None:
            self.record_graphs()

    def record_graphs(self) -> None:
        """Have decode steps computed by CUDA graphs. Only on a GPU."""
        self.has_graphs = True
        with torch.inference_mode(), on_stream(self.stream):
            self._graphs = DecodeGraphs(
                self.decoder,
                self.cache.layers,
                self.device_rows,
                record=GraphRecorder(self.stream).record,
                block_size=self.block_size,
                num_adapter_slots=self.limits.num_adapter_slots,
                make_states=None if self.kept_states is None else self.kept_states.make,
            )

    def warm_up(self) -> None:
        """Use all kernels of steps of a few sizes, to which steps are filled up from now on, so that no request waits
        for one to be compiled or loaded. Of use on a GPU."""
        padding = StepPadding(
            scratch_block=self._num_blocks,
            scratch_state=self.num_states,
            token_sizes=token_sizes(self.limits.max_step_tokens),
            row_sizes=row_sizes(self.limits.max_batch_size),
        )
        with torch.inference_mode(), on_stream(self.stream):
            for inputs, wanted in build_warm_up_inputs(
                padding,
                block_size=self.block_size,
                traits=self.decoder.traits,
                device=self.device,
                dtype=self.dtype,
                has_adapters=self.limits.num_adapter_slots > 0,
            ):
                self.decoder.warm_up(inputs, self.cache.layers, wanted)
            make_draws(self.device_rows, self.device_rows.slots[:1], [0])
        synchronize(self.device)
        self._padding = padding

    def measure_step_costs(self) -> StepCosts:
        """Return how long steps take: on a GPU by trying some, after `warm_up`; on the CPU a guess."""
        if self.device.type == "cpu":
            return StepCosts.guess(self.decoder.traits.flops_per_token)
        assert self._padding is not None, "warm_up comes before measure_step_costs"
        with torch.inference_mode(), on_stream(self.stream):
            return measure_step_costs(
                self.decoder,
                self.cache,
                sizes=self._padding.token_sizes,
                max_rows=self.limits.max_batch_size,
                num_blocks=self._num_blocks,
                session_len=self.limits.session_len,
                stream=self.stream,
            )

    def copy_blocks(self, plan: StepPlan) -> None:
        """Make the plan's copies of blocks: once, before its rows are launched. On a GPU they are queued. After an
        error it is unknown what the blocks and slots of the copies contain."""
        if plan.loads or plan.copies:
            self.decoder.forget_blocks()
        with torch.inference_mode(), on_stream(self.stream):
            if self._host_cache is not None and plan.saves:
                self._host_cache.copy(plan.saves, ())
            if plan.copies or plan.state_copies:
                self.cache.copy(plan.copies, plan.state_copies)
            if self._host_cache is not None and plan.loads:
                self._host_cache.copy((), plan.loads)

    def apply(self, plan: StepPlan) -> None:
        """Take the plan's deltas: once, in the order of the plans, before anything else is done with it. A step
        that was launched before and not sampled is lost."""
        self._unsampled = None  # its slots may be others' from now on
        self.rows.apply(plan)
        self.device_rows.take(plan, self.rows)
        if self.adapters is not None and plan.adapter_loads:
            self.adapters.load(plan.adapter_loads, self.stream)

    def find_splices(self, plan: StepPlan, embeddings: Embeddings) -> PlanSplices:
        """Return the embeddings that the plan's rows need, and by sequence id the errors of the rows that must not be
        launched: an embedding is missing or has other than `len(item.slots)` rows. `embeddings` are
        [R_i, embedding_size], by media hash."""
        traits = self.decoder.traits
        return find_splices(
            plan, self.rows, embeddings, embedding_size=traits.embedding_size, attends_media=traits.attends_media
        )

    def launch(self, plan: StepPlan, splices: Mapping[int, Splices]) -> LaunchedStep:
        """Begin to compute the plan's rows; on a GPU that goes on while the host does other things. `splices` are those
        of `find_splices`, which found no error in any of these rows. Rows may begin at a token that the step launched
        before samples. `sample` must follow before the next launch."""
        with (
            torch.inference_mode(),
            cpu_threads(self._threads_for(plan)),
            on_stream(self.stream),
            traced("step", self.device),
        ):
            stopwatch = Stopwatch(self.stream)
            usually = partial(self._launch, splices=splices)
            launched = usually(plan) if self.rounds is None else self.rounds.launch(plan, usually)
        launched.stopwatch = stopwatch if launched.step.rows else None
        self._unsampled = launched
        return launched

    def sample(
        self,
        launched: LaunchedStep,
        masks: TokenMasks | None = None,
        processors: Mapping[int, tuple[LogitsProcessor, ...]] | None = None,
    ) -> None:
        """Choose the next tokens of the rows that sample, once, on the device. `masks` restrict some of them,
        `processors` change the logits of some, by sequence id; others than this step's rows are ignored. Waits for the
        device only where there are processors. The row table learns the tokens of `TokenMasks.jumps`."""
        assert launched is self._unsampled, "steps are sampled in the order of their launches"
        self._unsampled = None
        with (
            torch.inference_mode(),
            cpu_threads(1 if self._is_deterministic else self._threads_for(launched.step)),
            on_stream(self.stream),
            traced("sample", self.device),
        ):
            self._sample(launched, masks, processors or {})
            if launched.stopwatch is not None:
                launched.stopwatch.stop()
        if masks is not None and masks.jumps:
            launched.take_jumps(masks.jumps)
        launched.is_sampled = True

    def collect(self, launched: LaunchedStep) -> StepResult:
        """Return the results of a step, once; the row table learns its tokens. Waits for the device, and raises what
        went wrong there."""
        return launched.collect()

    def check_device(self) -> None:
        """Raise what is wrong with the device, if it computes nothing any more: after an illegal memory access, say."""
        synchronize(self.device)

    def step(self, plan: StepPlan, embeddings: Embeddings) -> BegunStep:
        """Follow a plan up to its launch, once: `apply`, `copy_blocks`, `find_splices`, and `launch` of the rows that
        have their embeddings. `sample` must follow where any has."""
        self.apply(plan)
        if plan.saves or plan.loads or plan.copies or plan.state_copies:
            self.copy_blocks(plan)
        splices, errors = self.find_splices(plan, embeddings)
        plan = plan.without(errors)
        return BegunStep(plan, self.launch(plan, splices) if plan.rows else None, errors)

    def run(self, plan: StepPlan, embeddings: Embeddings) -> StepResult:
        """Follow a plan to its end. All of its rows must be possible."""
        _, launched, errors = self.step(plan, embeddings)
        assert not errors, errors
        if launched is None:
            return StepResult()
        self.sample(launched)
        return self.collect(launched)

    def _find_graphs(self, step: StepRows) -> DecodeGraphs | None:
        """Return the graphs that compute a step, if they can."""
        if self._graphs is None or not is_plain(step) or not self._graphs.takes(step):
            return None
        takes_adapters = self.adapters is None or self.adapters.take_graphs(step.adapter_slots)
        return self._graphs if takes_adapters else None

    def _threads_for(self, step: StepPlan | StepRows) -> int:
        """How many CPU threads compute a step. Threads meet at a barrier after every op; in a step of little work they
        wait there longer than they save."""
        if self.device.type != "cpu":
            return self._num_threads
        is_small = step.num_tokens * self.decoder.traits.flops_per_token < SINGLE_THREAD_FLOPS
        return 1 if is_small else self._num_threads

    def _launch(self, plan: StepPlan, splices: Mapping[int, Splices]) -> LaunchedStep:
        block_size = self.block_size
        self.rows.take_drafts(plan)
        step = arrange_rows(plan, self.rows, splices, block_size=block_size)
        if not step.rows:
            return LaunchedStep(step=step, dtype=self.dtype)
        if self.decoder.needs_clean_blocks and (fresh := step.fresh_blocks(block_size)):
            self.cache.clear(fresh)
        if self.decoder.traits.has_states:
            self.cache.clear_states(step.fresh_states)
        if (graphs := self._find_graphs(step)) is not None:
            output = graphs.run(step)
            if self.kept_states is not None:
                self.kept_states.keep(step, output.states.clone())
            return LaunchedStep(
                step=step,
                dtype=self.dtype,
                logits=output.logits,
                slots=self.device_rows.slots[: step.num_tokens],
                greedy=(output.best, output.token_ids),
                faults=output.faults,
            )
        self.device_rows.begin_step(step.slots, step.stops)
        step_input = make_step_input(
            step,
            self.device_rows,
            traits=self.decoder.traits,
            block_size=block_size,
            device=self.device,
            embeddings=self._join_embeddings(step),
            padding=self._padding,
        )
        begun = BegunForward.make(step, step_input, keeps_all=self.kept_states is not None)
        return self._compute(begun, self.cache.layers)

    def _compute(self, begun: BegunForward, caches: Sequence[LayerCache]) -> LaunchedStep:
        """Launch the forward pass of a step that no graph computes."""
        launched = begun.launched(self.dtype)
        hidden = self.decoder.forward(begun.inputs, caches, begun.wanted)
        if self.kept_states is not None:
            self.kept_states.keep(begun.step, self.kept_states.make(hidden))
        begun.finish(launched, self.decoder, hidden)
        return launched

    def _join_embeddings(self, step: StepRows) -> torch.Tensor | None:
        """Return the embedding rows [R, embedding_size] that go into a step, in the order of their places."""
        return join_embeddings(step.splices, self.device)

    def _sample(
        self,
        launched: LaunchedStep,
        masks: TokenMasks | None,
        processors: Mapping[int, tuple[LogitsProcessor, ...]],
    ) -> None:
        """Choose tokens, and remember where they are for the step after this one."""
        if launched.logits is not None:
            assert launched.slots is not None
            vocab_size = self.decoder.traits.vocab_size
            rows, masked, drawn = sort_rows(launched.step, masks, processors, vocab_size=vocab_size)
            launched.draws = choose_tokens(
                launched.logits,
                rows,
                masked=masked,
                previous=self.device_rows.words,
                greedy_ids=launched.greedy,
                draws=make_draws(self.device_rows, launched.slots, drawn) if drawn else None,
                find_greatest=find_greatest if self._is_deterministic else find_any_greatest,
                num_ordered=count_drawn(launched.step, drawn, vocab_size, self.device) if drawn else 0,
            )
            self._put_tokens(launched, launched.draws.token_ids)
            # A graph's `best` tells of faults; where logits are changed, it is found anew.
            if launched.greedy is not None and not rows and masked is None:
                return
        if launched.faults is not None:
            launched.faults_copy = HostCopy(launched.faults)

    def _put_tokens(self, launched: LaunchedStep, token_ids: torch.Tensor) -> None:
        """Let the next step begin with `token_ids` int64 [n], chosen on the device for the rows that sample."""
        assert launched.slots is not None
        self.device_rows.put_chosen(launched.step, launched.slots, token_ids)
