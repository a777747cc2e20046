"""Runs steps: turns plans into tensors, computes them and samples. Changes nothing but the KV cache.

A step is launched and collected later, so that the next one can be launched in between. What a step samples stays on
the device and is what the next one begins with.

Everything that makes one sequence's row impossible is found before anything is computed and reported as that
sequence's error; the other rows go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from seesay.device.query import cpu_threads, measure_memory, measure_peak, synchronize
from seesay.device.streams import make_stream, on_stream, traced
from seesay.device.transfers import HostCopy
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.llm.decode_graphs import DecodeGraphs
from seesay.llm.host_cache import HostCache, staging_bytes
from seesay.llm.kv_cache import KVCache, bytes_per_block, plan_num_blocks
from seesay.llm.models.decoder import Decoder, ModelInput
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.sampler import Draws, Sampler, SamplingRow, make_not_finite_error
from seesay.llm.sampling_params import SamplingParams
from seesay.llm.sequence import Sequence
from seesay.llm.step_input import (
    Embeddings,
    StepPadding,
    StepRows,
    build_profile_inputs,
    build_warm_up_inputs,
    check_rows,
    make_model_input,
)
from seesay.llm.step_sizes import row_sizes, token_sizes
from seesay.values import Row, StepPlan

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from seesay.checkpoint import Checkpoint

SINGLE_THREAD_FLOPS = 200_000_000
"""A step of fewer operations runs on one CPU thread (measured: at 90 million, 2.4 ms on one and 3.8 ms on two)."""

LOGITS_CHUNK_ROWS = 256
"""Positions whose logits are made at once when a whole prompt's are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionOutputs:
    """Float32 CPU `values` [n, vocab or hidden] of n positions of a sequence, from `start`."""

    start: int
    values: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What one row gave beside its token.

    logprobs: {token id: logprob} of the sampled token and others when asked for.
    prompt_logprobs: of the prompt tokens at positions start + 1, start + 2, …, when asked for.
    logits, hidden_states (after the last norm): when asked for; with 'generation' of the sampling position only.
    hidden_sum: float32 [hidden] on the CPU, the sum of the row's hidden states, when the sequence is pooled.
    A sequence that was preempted is computed again, so the same positions may come a second time.
    """

    seq_id: int
    start: int
    logprobs: Mapping[int, float] | None = None
    prompt_logprobs: tuple[float, ...] = ()
    logits: PositionOutputs | None = None
    hidden_states: PositionOutputs | None = None
    hidden_sum: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """token_ids: by sequence id, what was sampled: what `Scheduler.commit_step` takes. rows: what some rows gave beside
    that. errors: by sequence id, of the rows that failed. not_finite: those among them that computed something that is
    not finite."""

    token_ids: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    rows: tuple[RowResult, ...] = ()
    errors: Mapping[int, RequestError] = field(default_factory=dict)
    not_finite: frozenset[int] = frozenset()


class LaunchedStep:
    """A step that is being computed. `collect` waits for its end. `faults` are those of its tokens, in the rows' order
    (see `ModelInput`); None where the draws tell of them."""

    def __init__(
        self,
        *,
        step: StepRows,
        dtype: torch.dtype,
        draws: Draws | None = None,
        outputs: Mapping[int, RowResult] | None = None,
        faults: HostCopy | None = None,
    ) -> None:
        self._step = step
        self._dtype = dtype
        self._draws = draws
        self._outputs = outputs or {}
        self._faults = faults

    def collect(self) -> StepResult:
        """The results of all rows. Raises what went wrong on the device."""
        not_finite = self._find_faulty()
        choices = iter(() if self._draws is None else self._draws.collect())
        token_ids: dict[int, tuple[int, ...]] = {}
        outputs = dict(self._outputs)
        errors = dict(self._step.errors)
        for row in self._step.rows:
            error: RequestError | None = None
            if row.samples:
                token_id, logprobs, error = next(choices)
                if error is not None and error.code is ErrorCode.INTERNAL:
                    not_finite.add(row.seq_id)
            if row.seq_id in not_finite and error is None:
                error = make_not_finite_error("keys and values", self._dtype)
            if error is not None:
                errors[row.seq_id] = error
                outputs.pop(row.seq_id, None)
                continue
            if not row.samples:
                continue
            assert token_id is not None
            token_ids[row.seq_id] = (token_id,)
            if logprobs is not None:
                result = outputs.get(row.seq_id) or RowResult(seq_id=row.seq_id, start=row.start)
                outputs[row.seq_id] = replace(result, logprobs=logprobs)
        return StepResult(
            token_ids=token_ids, rows=tuple(outputs.values()), errors=errors, not_finite=frozenset(not_finite)
        )

    def _find_faulty(self) -> set[int]:
        """The sequences whose rows left something not finite in the KV cache."""
        if self._faults is None:
            return set()
        [faults] = self._faults.wait()
        is_faulty = np.isnan(faults.numpy())
        if not is_faulty.any():
            return set()
        starts = np.cumsum([0, *(row.num_tokens for row in self._step.rows)])
        return {row.seq_id for i, row in enumerate(self._step.rows) if is_faulty[starts[i] : starts[i + 1]].any()}


class ModelRunner:
    """Owns the decoder and its KV cache. Used by one thread at a time.

    `allocate_cache` must be called once before `launch` and `run`; `warm_up` and `record_graphs` may be.
    """

    def __init__(self, decoder: Decoder, *, block_size: int, sampler: Sampler | None = None) -> None:
        self.decoder = decoder
        self.block_size = block_size
        self._sampler = sampler or Sampler()
        self._cache: KVCache | None = None
        self._host_cache: HostCache | None = None
        self._num_blocks = 0
        self._graphs: DecodeGraphs | None = None
        self._padding: StepPadding | None = None
        self.stream = make_stream(decoder.device, is_urgent=True)
        self._previous: torch.Tensor | None = None  # the ids that the step launched last samples
        self._sampled_at: Mapping[int, int] = {}  # sequence id → place of its token in them
        self._num_threads = torch.get_num_threads()

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        text_config: PretrainedConfig,
        *,
        decoder_name: Callable[[str], str | None],
        tied_embeddings: bool,
        device: torch.device,
        dtype: torch.dtype,
        block_size: int,
        session_len: int,
    ) -> ModelRunner:
        """A runner with the checkpoint's weights. Raises `CheckpointError` naming what does not fit."""
        config = DecoderConfig.from_hf(text_config, tied_embeddings=tied_embeddings, session_len=session_len)
        decoder = Decoder.load(checkpoint, config, decoder_name=decoder_name, device=device, dtype=dtype)
        return cls(decoder, block_size=block_size)

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype

    @property
    def num_blocks(self) -> int:
        """Number of KV blocks; 0 before `allocate_cache`."""
        return self._num_blocks

    def profile(self, *, max_tokens: int, max_batch_size: int, session_len: int, records_graphs: bool = False) -> int:
        """Bytes that the largest prefill and the largest decode step need beside weights and cache, by trying both, and
        what `record_graphs` will take, if it comes.

        Rows of the trial all share one block, so it needs no cache to speak of. On the CPU nothing is tried: 0.
        """
        device = self.decoder.device
        if device.type == "cpu":
            return 0
        cache = self._make_cache(1)
        costly = SamplingParams(greedy=False, top_p=0.9, logprobs=20, repetition_penalty=1.1, seed=0)
        sampled = SamplingRow(
            seq_id=0, params=costly, token_ids=np.zeros(min(session_len, 8192), np.int64), num_generated=1
        )
        peaks = []
        for inputs, num_rows in build_profile_inputs(
            max_tokens=max_tokens,
            max_batch_size=max_batch_size,
            session_len=session_len,
            block_size=self.block_size,
            device=device,
        ):

            def trial(inputs: ModelInput = inputs, num_rows: int = num_rows) -> None:
                with torch.inference_mode():
                    hidden = self.decoder.forward(inputs, cache.layers)
                    logits = self.decoder.logits(hidden[:num_rows])
                    for params in (costly, SamplingParams(greedy=False, top_p=0.9), SamplingParams(bad_token_ids=(0,))):
                        self._sampler.draw(logits, [sampled._replace(params=params)] * num_rows).collect()

            peaks.append(measure_peak(device, trial))
        return max(peaks) + (peaks[-1] if records_graphs else 0)

    def allocate_cache(
        self,
        *,
        num_blocks: int,
        share: float,
        max_batch_size: int,
        session_len: int,
        reserved_bytes: int = 0,
        num_host_slots: int = 0,
    ) -> int:
        """Allocate the KV cache and return its number of blocks.

        `num_blocks` 0 takes `share` of the memory that is free now less `reserved_bytes` (what `profile` and the
        encoder's own trial returned). `num_host_slots` blocks more are kept in host memory.
        """
        config, device = self.decoder.config, self.decoder.device
        block_bytes = bytes_per_block(config, block_size=self.block_size, dtype=self.decoder.dtype)
        if num_blocks == 0:
            num_blocks = plan_num_blocks(
                memory=measure_memory(device),
                reserved_bytes=reserved_bytes + (staging_bytes(block_bytes) if num_host_slots else 0),
                share=share,
                block_bytes=block_bytes,
                num_blocks_of_full_batch=max_batch_size * -(-session_len // self.block_size),
                is_cpu=device.type == "cpu",
            )
        elif (num_blocks + 1) * block_bytes > (free := measure_memory(device).free_bytes):
            raise ConfigError(
                f"num_gpu_blocks={num_blocks}: blocks of {block_bytes} bytes take "
                f"{num_blocks * block_bytes / 2**30:.1f} GiB, but {device} has {free / 2**30:.1f} GiB free"
            )
        self._cache = self._make_cache(num_blocks + 1)  # the last one is scratch, for what steps are filled up with
        self._num_blocks = num_blocks
        if num_host_slots:
            self._host_cache = HostCache(self._cache.blocks, num_host_slots)
        return num_blocks

    def record_graphs(self, *, max_batch_size: int, session_len: int) -> None:
        """Have decode steps computed by CUDA graphs. Only on a GPU."""
        assert self._cache is not None and self.stream is not None
        with torch.inference_mode():
            self._graphs = DecodeGraphs(
                self.decoder,
                self._cache.layers,
                stream=self.stream,
                max_batch_size=max_batch_size,
                max_blocks=-(-session_len // self.block_size),
                scratch_block=self._num_blocks,
                block_size=self.block_size,
            )

    def warm_up(self, *, max_tokens: int, max_batch_size: int) -> None:
        """Use all kernels of steps of a few sizes, to which steps are filled up from now on, so that no request waits
        for one to be compiled or loaded. Of use on a GPU."""
        assert self._cache is not None
        device = self.decoder.device
        padding = StepPadding(
            scratch_block=self._num_blocks,
            token_sizes=token_sizes(max_tokens),
            row_sizes=row_sizes(max_batch_size),
        )
        with torch.inference_mode(), on_stream(self.stream):
            for inputs, wanted in build_warm_up_inputs(padding, block_size=self.block_size, device=device):
                self.decoder.warm_up(inputs, self._cache.layers, wanted)
        synchronize(device)
        self._padding = padding

    def _make_cache(self, num_blocks: int) -> KVCache:
        decoder = self.decoder
        return KVCache(
            decoder.config,
            num_blocks=num_blocks,
            block_size=self.block_size,
            device=decoder.device,
            dtype=decoder.dtype,
        )

    def copy_blocks(self, plan: StepPlan) -> None:
        """Make the plan's copies between device and host: once, before its rows are launched. On a GPU they are queued.
        What the blocks and slots of the copies contain is unknown after an error."""
        if self._host_cache is None:
            return
        if plan.loads:
            self.decoder.forget_blocks()
        with torch.inference_mode(), on_stream(self.stream):
            self._host_cache.copy(plan.saves, plan.loads)

    def launch(self, plan: StepPlan, sequences: Mapping[int, Sequence], embeddings: Embeddings) -> LaunchedStep:
        """Begin to compute the plan's rows, whose copies `copy_blocks` has made; on a GPU that goes on while the host
        does other things. Rows may begin at a token that the step launched before samples.

        `sequences` has those of the plan, `embeddings` [R_i, hidden] by media hash those that the rows need. A row
        whose embedding is missing or has other than `len(item.slots)` rows becomes an error and is not computed.
        """
        device = self.decoder.device
        with (
            torch.inference_mode(),
            cpu_threads(self._threads_for(plan)),
            on_stream(self.stream),
            traced("step", device),
        ):
            return self._launch(plan, sequences, embeddings)

    def run(self, plan: StepPlan, sequences: Mapping[int, Sequence], embeddings: Embeddings) -> StepResult:
        """Make the plan's copies and compute its rows; see `launch`."""
        self.copy_blocks(plan)
        return self.launch(plan, sequences, embeddings).collect()

    def _threads_for(self, plan: StepPlan) -> int:
        """How many CPU threads compute a step. Threads meet at a barrier after every op; in a step of little work they
        wait there longer than they save."""
        is_small = plan.num_tokens * self.decoder.config.flops_per_token < SINGLE_THREAD_FLOPS
        return 1 if self.device.type == "cpu" and is_small else self._num_threads

    def _launch(self, plan: StepPlan, sequences: Mapping[int, Sequence], embeddings: Embeddings) -> LaunchedStep:
        assert self._cache is not None, "allocate_cache comes before launch"
        config, block_size = self.decoder.config, self.block_size
        step = check_rows(
            plan,
            sequences,
            embeddings,
            sampled_at=self._sampled_at,
            hidden_size=config.hidden_size,
            block_size=block_size,
        )
        if not step.rows:
            return LaunchedStep(step=step, dtype=self.dtype)
        if self.decoder.needs_clean_blocks and (fresh := step.fresh_blocks(block_size)):
            self._cache.clear(fresh)
        is_plain = all(map(_wants_token_only, step.members))
        if self._graphs is not None and is_plain and self._graphs.takes(step):
            output = self._graphs.run(step, self._previous)
            greedy = output.best, output.token_ids
            # Of rows whose logits are adjusted, `best` is found anew.
            is_told = all(sequence.params.is_plain for sequence in step.members)
            faults = None if is_told else HostCopy(output.faults)
            chosen = self._draw(output.logits, step, greedy=greedy)
            return LaunchedStep(step=step, dtype=self.dtype, draws=chosen, faults=faults)
        inputs, last_tokens = make_model_input(
            step,
            self._previous,
            config=config,
            block_size=block_size,
            device=self.decoder.device,
            padding=self._padding,
        )
        wanted = last_tokens if is_plain and not step.samples_all else None
        hidden = self.decoder.forward(inputs, self._cache.layers, wanted)
        draws: Draws | None = None
        logits: torch.Tensor | None = None
        num_sampled = sum(row.samples for row in step.rows)
        if num_sampled:
            is_whole = wanted is None and not step.samples_all
            logits = self.decoder.logits(hidden.index_select(0, last_tokens) if is_whole else hidden)[:num_sampled]
            draws = self._draw(logits, step)
        outputs = {} if is_plain else self._collect_outputs(step, hidden, logits)
        return LaunchedStep(step=step, dtype=self.dtype, draws=draws, outputs=outputs, faults=HostCopy(inputs.faults))

    def _draw(
        self, logits: torch.Tensor, step: StepRows, *, greedy: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> Draws:
        """Choose the next tokens of the rows that sample, and remember where they are for the step after this one."""
        rows: list[SamplingRow] = []
        sampled_at: dict[int, int] = {}
        for row, sequence, source in zip(step.rows, step.members, step.sources, strict=True):
            if row.samples:
                sampled_at[row.seq_id] = len(rows)
                rows.append(
                    SamplingRow(
                        seq_id=row.seq_id,
                        params=sequence.params,
                        token_ids=sequence.token_ids,
                        num_generated=row.start + row.num_tokens - sequence.num_prompt_tokens,
                        pending=source,
                    )
                )
        draws = self._sampler.draw(logits, rows, previous=self._previous, greedy_ids=greedy)
        self._previous, self._sampled_at = draws.token_ids, sampled_at
        return draws

    def _collect_outputs(
        self, step: StepRows, hidden: torch.Tensor, sampled_logits: torch.Tensor | None
    ) -> dict[int, RowResult]:
        """By sequence id, what rows ask for beside the token. Waits for the device."""
        outputs: dict[int, RowResult] = {}
        first = num_sampled = 0
        for row, sequence in zip(step.rows, step.members, strict=True):
            own = hidden[first : first + row.num_tokens]
            first += row.num_tokens
            logits = None
            if row.samples and sampled_logits is not None:
                logits = sampled_logits[num_sampled : num_sampled + 1]
                num_sampled += 1
            if not _wants_token_only(sequence):
                outputs[row.seq_id] = self._collect_row(row, sequence, own, logits)
        return outputs

    def _collect_row(
        self, row: Row, sequence: Sequence, hidden: torch.Tensor, sampled_logits: torch.Tensor | None
    ) -> RowResult:
        params, last = sequence.params, row.start + row.num_tokens - 1
        logits = hidden_states = None
        if params.output_logits == "all":
            logits = PositionOutputs(
                start=row.start, values=torch.cat([_to_host(part) for _, part in self._logits_in_chunks(hidden)])
            )
        elif params.output_logits == "generation" and sampled_logits is not None:
            logits = PositionOutputs(start=last, values=_to_host(sampled_logits))
        if params.output_last_hidden_state == "all":
            hidden_states = PositionOutputs(start=row.start, values=_to_host(hidden))
        elif params.output_last_hidden_state == "generation" and row.samples:
            hidden_states = PositionOutputs(start=last, values=_to_host(hidden[-1:]))
        return RowResult(
            seq_id=row.seq_id,
            start=row.start,
            prompt_logprobs=self._prompt_logprobs(row, sequence, hidden) if params.prompt_logprobs else (),
            logits=logits,
            hidden_states=hidden_states,
            hidden_sum=None if params.pooling is None else _to_host(hidden.float().sum(dim=0)),
        )

    def _prompt_logprobs(self, row: Row, sequence: Sequence, hidden: torch.Tensor) -> tuple[float, ...]:
        """Log-probabilities of the prompt tokens that follow the row's positions."""
        stop = min(row.start + row.num_tokens, sequence.num_prompt_tokens - 1)
        if stop <= row.start:
            return ()
        targets = torch.from_numpy(sequence.token_ids[row.start + 1 : stop + 1].copy()).to(hidden.device)
        pieces = [
            logits.float().log_softmax(dim=-1).gather(1, targets[first : first + len(logits), None])[:, 0]
            for first, logits in self._logits_in_chunks(hidden[: len(targets)])
        ]
        return tuple(torch.cat(pieces).tolist())

    def _logits_in_chunks(self, hidden: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """(first position, logits) of a few positions at a time: those of a whole prompt may not fit in memory."""
        for first in range(0, len(hidden), LOGITS_CHUNK_ROWS):
            yield first, self.decoder.logits(hidden[first : first + LOGITS_CHUNK_ROWS])


def _wants_token_only(sequence: Sequence) -> bool:
    """Whether nothing but the sampled token (and its logprobs) is asked for: most rows, so it is decided first."""
    params = sequence.params
    return not (
        params.output_logits or params.output_last_hidden_state or params.prompt_logprobs or params.pooling is not None
    )


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A float32 copy on the CPU that may outlive the step."""
    return values.to("cpu", torch.float32, copy=True)
