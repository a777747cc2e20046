"""Runs a step: turns a plan into tensors, computes it and samples. Changes nothing but the KV cache.

Everything that makes one sequence's row impossible is found before anything is computed and reported as that
sequence's error; the other rows go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from seesay.device import cpu_threads, measure_memory, measure_peak
from seesay.errors import RequestError
from seesay.llm.kv_cache import KVCache, bytes_per_block, plan_num_blocks
from seesay.llm.models.decoder import Decoder, ModelInput
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.sampler import Sampled, Sampler, SamplingRow
from seesay.llm.sampling_params import SamplingParams
from seesay.llm.sequence import Sequence
from seesay.llm.step_input import Embeddings, StepInput, build_profile_inputs, build_step_input
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
    """What one row gave.

    token_id: the sampled token, None when the row does not sample. logprobs: {token id: logprob} when asked for.
    prompt_logprobs: of the prompt tokens at positions start + 1, start + 2, …, when asked for.
    logits, hidden_states (after the last norm): when asked for; with 'generation' of the sampling position only.
    hidden_sum: float32 [hidden] on the CPU, the sum of the row's hidden states, when the sequence is pooled.
    A sequence that was preempted is computed again, so the same positions may come a second time.
    """

    seq_id: int
    start: int
    token_id: int | None = None
    logprobs: Mapping[int, float] | None = None
    prompt_logprobs: tuple[float, ...] = ()
    logits: PositionOutputs | None = None
    hidden_states: PositionOutputs | None = None
    hidden_sum: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Results of the rows that were computed, in any order, and errors by sequence id of those that failed."""

    rows: tuple[RowResult, ...] = ()
    errors: Mapping[int, RequestError] = field(default_factory=dict)

    @property
    def token_ids(self) -> dict[int, tuple[int, ...]]:
        """{seq_id: sampled tokens} of the rows that sampled: what `Scheduler.commit_step` takes."""
        return {row.seq_id: (row.token_id,) for row in self.rows if row.token_id is not None}


class ModelRunner:
    """Owns the decoder and its KV cache. Used by one thread at a time.

    `allocate_cache` must be called once before `run`.
    """

    def __init__(self, decoder: Decoder, *, block_size: int, sampler: Sampler | None = None) -> None:
        self.decoder = decoder
        self.block_size = block_size
        self._sampler = sampler or Sampler()
        self._cache: KVCache | None = None
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
        return 0 if self._cache is None else self._cache.num_blocks

    def cache_salt(self, longest: int) -> bytes:
        """What a sequence that may grow to `longest` tokens must add to the salt of its KV blocks: where rotary scaling
        depends on the length (longrope, dynamic), long and short texts have other keys for the same tokens."""
        return b"long" if self.decoder.config.rotary.uses_long(longest) else b""

    def profile(self, *, max_tokens: int, max_batch_size: int, session_len: int) -> int:
        """Bytes that the largest prefill and the largest decode step need beside weights and cache, by trying both.

        Rows of the trial all share one block, so it needs no cache to speak of. On the CPU nothing is tried: 0.
        """
        if self.decoder.device.type == "cpu":
            return 0
        cache = self._make_cache(1)
        peaks = []
        for inputs, num_rows in build_profile_inputs(
            max_tokens=max_tokens,
            max_batch_size=max_batch_size,
            session_len=session_len,
            block_size=self.block_size,
            device=self.decoder.device,
        ):

            def trial(inputs: ModelInput = inputs, num_rows: int = num_rows) -> None:
                with torch.inference_mode():
                    hidden = self.decoder.forward(inputs, cache.layers)
                    self.decoder.logits(hidden[:num_rows]).float().sort(dim=-1)

            peaks.append(measure_peak(self.decoder.device, trial))
        return max(peaks)

    def allocate_cache(
        self,
        *,
        num_blocks: int,
        share: float,
        max_batch_size: int,
        session_len: int,
        reserved_bytes: int = 0,
    ) -> int:
        """Allocate the KV cache and return its number of blocks.

        `num_blocks` 0 takes `share` of the memory that is free now less `reserved_bytes` (what `profile` and the
        encoder's own trial returned).
        """
        config, device = self.decoder.config, self.decoder.device
        if num_blocks == 0:
            num_blocks = plan_num_blocks(
                memory=measure_memory(device),
                reserved_bytes=reserved_bytes,
                share=share,
                block_bytes=bytes_per_block(config, block_size=self.block_size, dtype=self.decoder.dtype),
                num_blocks_of_full_batch=max_batch_size * -(-session_len // self.block_size),
                is_cpu=device.type == "cpu",
            )
        self._cache = self._make_cache(num_blocks)
        return num_blocks

    def _make_cache(self, num_blocks: int) -> KVCache:
        decoder = self.decoder
        return KVCache(
            decoder.config,
            num_blocks=num_blocks,
            block_size=self.block_size,
            device=decoder.device,
            dtype=decoder.dtype,
        )

    def run(self, plan: StepPlan, sequences: Mapping[int, Sequence], embeddings: Embeddings) -> StepResult:
        """Compute the plan's rows.

        `sequences` has those of the plan, `embeddings` [R_i, hidden] by media hash those that the rows need. A row
        whose embedding is missing or has other than `len(item.slots)` rows becomes an error and is not computed.
        """
        with torch.inference_mode(), cpu_threads(self._threads_for(plan)):
            return self._run(plan, sequences, embeddings)

    def _threads_for(self, plan: StepPlan) -> int:
        """How many CPU threads compute a step. Threads meet at a barrier after every op; in a step of little work they
        wait there longer than they save."""
        is_small = plan.num_tokens * self.decoder.config.flops_per_token < SINGLE_THREAD_FLOPS
        return 1 if self.device.type == "cpu" and is_small else self._num_threads

    def _run(self, plan: StepPlan, sequences: Mapping[int, Sequence], embeddings: Embeddings) -> StepResult:
        assert self._cache is not None, "allocate_cache comes before run"
        step = build_step_input(
            plan,
            sequences,
            embeddings,
            config=self.decoder.config,
            block_size=self.block_size,
            device=self.decoder.device,
        )
        errors = dict(step.errors)
        if not step.rows:
            return StepResult(errors=errors)
        if step.fresh_blocks:
            self._cache.clear(step.fresh_blocks)
        hidden = self.decoder.forward(step.model, self._cache.layers)
        sampled, sampled_logits = self._sample(hidden, step, sequences)
        results = []
        first = 0
        for row in step.rows:
            own = slice(first, first + row.num_tokens)
            first += row.num_tokens
            choice = sampled.get(row.seq_id)
            if choice is not None and choice.error is not None:
                errors[row.seq_id] = choice.error
            elif choice is not None and _wants_token_only(sequences[row.seq_id].params):
                results.append(
                    RowResult(seq_id=row.seq_id, start=row.start, token_id=choice.token_id, logprobs=choice.logprobs)
                )
            else:
                own_logits = sampled_logits.get(row.seq_id)
                results.append(self._collect(row, sequences[row.seq_id], choice, hidden[own], own_logits))
        return StepResult(rows=tuple(results), errors=errors)

    def _sample(
        self, hidden: torch.Tensor, step: StepInput, sequences: Mapping[int, Sequence]
    ) -> tuple[dict[int, Sampled], dict[int, torch.Tensor]]:
        """Choices of the rows that sample, and logits [1, vocab] of those that ask for them, by sequence id."""
        rows = [(i, row) for i, row in enumerate(step.rows) if row.samples]
        if not rows:
            return {}, {}
        last = step.model.layout.cu_seqlens_q[1:] - 1
        if len(rows) < len(last) or len(last) < hidden.shape[0]:
            picked = torch.from_numpy(last[[i for i, _ in rows]]).to(hidden.device)
            hidden = hidden.index_select(0, picked)
        logits = self.decoder.logits(hidden)
        choices = self._sampler.sample(logits, [_sampling_row(sequences[row.seq_id]) for _, row in rows])
        ids = [row.seq_id for _, row in rows]
        asked = {i: row.seq_id for i, (_, row) in enumerate(rows) if sequences[row.seq_id].params.output_logits}
        return dict(zip(ids, choices, strict=True)), {seq_id: logits[i : i + 1] for i, seq_id in asked.items()}

    def _collect(
        self,
        row: Row,
        sequence: Sequence,
        choice: Sampled | None,
        hidden: torch.Tensor,
        sampled_logits: torch.Tensor | None,
    ) -> RowResult:
        """The row's result, with what its sequence asked for beside the token."""
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
            token_id=None if choice is None else choice.token_id,
            logprobs=None if choice is None else choice.logprobs,
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


def _wants_token_only(params: SamplingParams) -> bool:
    """Whether nothing but the sampled token (and its logprobs) is asked for: most rows, so it is decided first."""
    return not (
        params.output_logits or params.output_last_hidden_state or params.prompt_logprobs or params.pooling is not None
    )


def _to_host(values: torch.Tensor) -> torch.Tensor:
    """A float32 copy on the CPU that may outlive the step."""
    return values.to("cpu", torch.float32, copy=True)


def _sampling_row(sequence: Sequence) -> SamplingRow:
    return SamplingRow(
        seq_id=sequence.seq_id,
        params=sequence.params,
        token_ids=sequence.token_ids,
        num_generated=sequence.num_generated,
    )
