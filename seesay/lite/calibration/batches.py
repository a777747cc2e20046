"""Calibration prompts as input of the decoder: packed batches, and their hidden states between layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seesay.device.query import measure_memory
from seesay.device.transfers import upload
from seesay.errors import ConfigError
from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import RowLayout
from seesay.llm.plans.token_runs import TokenRuns
from seesay.values import MultimodalInput

_BLOCK_SIZE = 64
_MEMORY_SHARE = 0.5
"""Most of the free host memory that hidden states may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A tokenized text of at least two tokens, and the embeddings [R_i, hidden] of its media. `num_context` tokens are
    the question to an answer, whose perplexity says nothing."""

    input: MultimodalInput
    embeddings: tuple[Tensor, ...] = ()
    num_context: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.input.token_ids)


class Batch:
    """Prompts that are computed together. `hidden` [T, hidden] is their residual stream, in host memory."""

    def __init__(self, prompts: Sequence[Prompt], config: DecoderConfig) -> None:
        self._prompts, self._config = prompts, config
        self.num_tokens = sum(prompt.num_tokens for prompt in prompts)
        self.num_blocks = sum(-(-prompt.num_tokens // _BLOCK_SIZE) for prompt in prompts)
        self.hidden = torch.empty(0)

    def make_input(self, device: torch.device) -> ModelInput:
        """Return the input of all prompts; each has blocks of its own, one prompt after another."""
        lengths = [prompt.num_tokens for prompt in self._prompts]
        counts = [-(-length // _BLOCK_SIZE) for length in lengths]
        firsts = np.cumsum([0, *counts])[:-1]
        table = np.minimum(np.arange(max(counts)), np.array(counts)[:, None] - 1) + firsts[:, None]
        slots = [first * _BLOCK_SIZE + np.arange(length) for first, length in zip(firsts, lengths, strict=True)]
        starts = np.cumsum([0, *lengths])
        rows = self._find_media_rows(starts)
        embeddings = [rows for prompt in self._prompts for rows in prompt.embeddings]
        return ModelInput(
            input_ids=_to(np.concatenate([prompt.input.token_ids for prompt in self._prompts]), device),
            positions=_to(np.concatenate([prompt.input.positions for prompt in self._prompts], axis=-1), device),
            slot_mapping=_to(np.concatenate(slots), device),
            layout=RowLayout(
                cu_seqlens_q=starts.astype(np.int64),
                kv_lens=np.array(lengths, dtype=np.int64),
                block_table=table.astype(np.int64),
                block_size=_BLOCK_SIZE,
                num_decode=0,
                runs=self._find_runs(),
            ),
            faults=torch.zeros(self.num_tokens, device=device),
            stretches=self._find_stretches(lengths, device),
            splice_rows=_to(np.concatenate(rows), device) if rows else None,
            splice_embeddings=torch.cat(embeddings).to(device) if embeddings else None,
        )

    def _find_stretches(self, lengths: Sequence[int], device: torch.device) -> Tensor | None:
        scaling = self._config.rotaries[0].length_scaling
        if scaling is None:
            return None
        return _to(np.repeat([scaling.find_stretch(length) for length in lengths], lengths), device)

    def _find_runs(self) -> np.ndarray | None:
        if not self._config.traits.has_runs:
            return None
        return np.concatenate([self._runs_of(prompt).find(0, prompt.num_tokens) for prompt in self._prompts], axis=1)

    def _runs_of(self, prompt: Prompt) -> TokenRuns:
        """The tokens whose perplexity counts are an answer: none of them sees later ones."""
        if self._config.is_prefix_lm:
            return TokenRuns.of_prompt(max(prompt.num_context, *(item.span[1] for item in prompt.input.items), 1))
        return TokenRuns.of_media(item.slots for item in prompt.input.items)

    def _find_media_rows(self, starts: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Return the tokens of each item, counted from the first one of the batch."""
        return [start + item.slots for start, prompt in zip(starts, self._prompts) for item in prompt.input.items]

    def text_targets(self) -> tuple[Tensor, Tensor]:
        """Return the tokens behind which text follows in their prompt, int64 [N], and the ids of that text."""
        rows, targets = [], []
        start = 0
        for prompt in self._prompts:
            is_text = np.arange(prompt.num_tokens) >= prompt.num_context
            for item in prompt.input.items:
                is_text[slice(*item.span)] = False
            chosen = np.flatnonzero(is_text[1:])
            rows.append(start + chosen)
            targets.append(prompt.input.token_ids[1:][chosen])
            start += prompt.num_tokens
        return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(targets))


def make_batches(prompts: Sequence[Prompt], config: DecoderConfig, batch_size: int) -> list[Batch]:
    """Divide prompts into batches, in their order."""
    return [Batch(prompts[i : i + batch_size], config) for i in range(0, len(prompts), batch_size)]


def make_cache(batches: Sequence[Batch], config: DecoderConfig, *, device: torch.device, dtype: torch.dtype) -> KVCache:
    """Return a KV cache of one layer for the largest batch, which all layers use in turn."""
    [layout, *_] = make_layouts(config.traits.kv_shapes, block_size=_BLOCK_SIZE, dtype=dtype)
    return KVCache([layout], num_blocks=max(batch.num_blocks for batch in batches), device=device)


def check_memory(batches: Sequence[Batch], config: DecoderConfig, dtype: torch.dtype) -> None:
    """Raise `ConfigError` if the hidden states of all batches would take too much of the host's memory."""
    num_tokens = sum(batch.num_tokens for batch in batches)
    needed = num_tokens * config.hidden_size * dtype.itemsize
    allowed = int(measure_memory(torch.device("cpu")).free_bytes * _MEMORY_SHARE)
    if needed > allowed:
        raise ConfigError(
            f"calib_samples: the hidden states of {num_tokens} calibration tokens take {needed >> 20} MiB of host "
            f"memory, at most {allowed >> 20} MiB are taken: lower calib_samples or calib_seqlen"
        )


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return upload([array], device)[0]
