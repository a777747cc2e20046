"""Figures of an engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts of one engine: `num_*` and `*_bytes` are current, `total_*` count since its start.

    Every part of an engine returns one of these with the counts that it keeps; `merge` puts them together.

    num_preparing: requests whose prompts are being prepared. num_waiting, num_running: sequences in the scheduler.
    num_encode_queued: media that wait for the tower.
    num_kv_blocks: all blocks of the device. num_used_kv_blocks: held by sequences. num_cached_kv_blocks: free, but the
        prefix cache can still find their content.
    num_host_kv_blocks, num_used_host_kv_blocks: blocks in host memory, for content that was evicted from the device.
        total_host_kv_loads: blocks that were copied back.
    total_prefix_queried_tokens, total_prefix_hit_tokens: prompt tokens looked up and found in the prefix cache.
    total_step_tokens: tokens computed. step_sizes: (rows of a step, number of such steps), ascending.
    encode_sizes: (items in a call of the tower, number of such calls), ascending.
    total_encoder_restarts, total_engine_restarts: restarts of encoder workers and engine processes. A new engine
        process counts everything else from 0.
    total_jumped_tokens: generated tokens that came in one step with another one: a grammar left no choice about them.
    total_draft_tokens, total_accepted_tokens: tokens that were proposed (speculation) and computed, and those of them
        that became tokens of answers.
    total_not_finite: rows of steps and embeddings that had NaN or infinity. They are not kept.
    num_wanted_embedding_rows: rows of embeddings that sequences have requested and not used yet.
    embedding_bytes: of all stored embeddings. pinned_embedding_bytes: of those that a sequence needs.
    total_embedding_hits: requests for an embedding that was stored or being encoded.
    total_feature_hits: requests for media whose preprocessed features were cached.
    """

    num_preparing: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_encode_queued: int = 0
    num_kv_blocks: int = 0
    num_used_kv_blocks: int = 0
    num_cached_kv_blocks: int = 0
    num_host_kv_blocks: int = 0
    num_used_host_kv_blocks: int = 0
    total_host_kv_loads: int = 0
    total_prefix_queried_tokens: int = 0
    total_prefix_hit_tokens: int = 0
    total_preemptions: int = 0
    total_jumped_tokens: int = 0
    total_draft_tokens: int = 0
    total_accepted_tokens: int = 0
    total_step_tokens: int = 0
    step_sizes: tuple[tuple[int, int], ...] = ()
    encode_sizes: tuple[tuple[int, int], ...] = ()
    total_encoder_calls: int = 0
    total_encoder_items: int = 0
    total_encoder_restarts: int = 0
    total_engine_restarts: int = 0
    total_not_finite: int = 0
    num_wanted_embedding_rows: int = 0
    num_embeddings: int = 0
    embedding_bytes: int = 0
    pinned_embedding_bytes: int = 0
    total_embedding_hits: int = 0
    total_embedding_misses: int = 0
    total_embedding_evictions: int = 0
    num_features: int = 0
    feature_bytes: int = 0
    total_feature_hits: int = 0
    total_feature_misses: int = 0

    @classmethod
    def merge(cls, *parts: EngineStats) -> EngineStats:
        """Return the sum of each count. Only one part may have `step_sizes`, and one `encode_sizes`."""
        return cls(**{count.name: reduce(add, (getattr(part, count.name) for part in parts)) for count in fields(cls)})
