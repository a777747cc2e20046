"""Chooses how many KV blocks, and slots of states, there are, and makes the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from seesay.device.query import measure_memory
from seesay.errors import ConfigError
from seesay.llm.memory.host_cache import staging_bytes
from seesay.llm.memory.kv_cache import CPU_MEMORY_SHARE, KVCache, bytes_per_block, plan_num_blocks
from seesay.llm.memory.state_cache import StateCache, bytes_per_state, find_spacing

if TYPE_CHECKING:
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.running.runner_limits import RunnerLimits


STATE_SHARE = 0.5
"""Most of the cache's memory that states take."""


class CacheSize(NamedTuple):
    """The numbers of KV blocks, and of slots of states. spacing: blocks between two snapshots."""

    num_blocks: int
    num_states: int = 0
    spacing: int = 0

    def count_host_states(self, num_host_slots: int) -> int:
        """Return the number of slots of states beside so many blocks in host memory: one for each stretch of them
        behind which a snapshot is kept."""
        return -(-num_host_slots // self.spacing) if self.num_states else 0


def make_cache(runner: ModelRunner, num_blocks: int) -> KVCache:
    """Return an empty cache of so many blocks, with the slots of states that the runner's size says, and one more."""
    size, shapes = runner.cache_size, runner.decoder.traits.state_shapes
    states = StateCache(
        shapes,
        num_slots=size.num_states + 1,
        num_host_slots=runner.num_host_states,
        dtype=runner.dtype,
        device=runner.device,
    )
    return KVCache(runner.kv_layouts, num_blocks=num_blocks, device=runner.device, states=states if shapes else None)


def choose_cache_size(
    runner: ModelRunner, num_blocks: int, share: float, reserved_bytes: int, num_host_slots: int
) -> CacheSize:
    """Return the size of the cache of `runner`: see `_choose_num_states`, `_choose_num_blocks`."""
    num_states = _choose_num_states(runner, num_blocks=num_blocks, share=share, reserved_bytes=reserved_bytes)
    num_blocks = _choose_num_blocks(
        runner,
        num_blocks=num_blocks,
        share=share,
        reserved_bytes=reserved_bytes,
        num_host_slots=num_host_slots,
        num_states=num_states,
    )
    if not num_states:
        return CacheSize(num_blocks)
    state_bytes = bytes_per_state(runner.decoder.traits.state_shapes, runner.dtype)
    spacing = find_spacing(state_bytes, bytes_per_block(runner.kv_layouts))
    return CacheSize(num_blocks, num_states, spacing)


def _choose_num_states(runner: ModelRunner, *, num_blocks: int, share: float, reserved_bytes: int) -> int:
    """Return the number of slots of states beside `num_blocks` blocks, 0 for as many as fit: two for each sequence of a
    full batch, itself and a snapshot, one more for each that may have proposed tokens, and one for each block where
    states take less memory than blocks, but not more than fit in half of the cache's memory. 0 where layers have no
    state, and not only those of a stage."""
    if not runner.decoder.traits.has_states:
        return 0
    state_bytes = bytes_per_state(runner.decoder.traits.state_shapes, runner.dtype)
    memory_share = share * (CPU_MEMORY_SHARE if runner.device.type == "cpu" else 1.0)
    usable = max(0, measure_memory(runner.device).free_bytes - reserved_bytes) * memory_share
    return count_states(
        runner.limits, int(usable), state_bytes, bytes_per_block(runner.kv_layouts), num_blocks=num_blocks
    )


def count_states(
    limits: RunnerLimits, usable_bytes: int, state_bytes: int, block_bytes: int, *, num_blocks: int = 0
) -> int:
    """Return the number of slots of states of `state_bytes` in a cache of `usable_bytes`: see `_choose_num_states`."""
    state_bytes = max(1, state_bytes)
    wanted = 2 * limits.max_batch_size + min(limits.max_batch_size, limits.max_verified_tokens // 2)
    if state_bytes < block_bytes:
        most = min(limits.max_batch_size * limits.max_sequence_blocks, usable_bytes // (state_bytes + block_bytes))
        wanted = max(wanted, num_blocks or most)
    return max(1, min(wanted, int(usable_bytes * STATE_SHARE // state_bytes)))


def _choose_num_blocks(
    runner: ModelRunner, *, num_blocks: int, share: float, reserved_bytes: int, num_host_slots: int, num_states: int
) -> int:
    """Return the number of blocks of the KV cache of `runner`, beside which there are `num_host_slots` on the host:
    `num_blocks`, or where that is 0, as many as fit in `share` of the memory that is free now less `reserved_bytes`.
    Raises `ConfigError` for more than fit."""
    device, limits, block_bytes = runner.device, runner.limits, max(1, bytes_per_block(runner.kv_layouts))
    if num_states:
        reserved_bytes += (num_states + 1) * bytes_per_state(runner.decoder.traits.state_shapes, runner.dtype)
    if num_blocks == 0:
        return plan_num_blocks(
            memory=measure_memory(device),
            reserved_bytes=reserved_bytes + (staging_bytes(block_bytes) if num_host_slots else 0),
            share=share,
            block_bytes=block_bytes,
            num_blocks_of_full_batch=limits.max_batch_size * limits.max_sequence_blocks,
            is_cpu=device.type == "cpu",
        )
    if (num_blocks + 1) * block_bytes > (free := measure_memory(device).free_bytes):
        raise ConfigError(
            f"num_gpu_blocks={num_blocks}: blocks of {block_bytes} bytes take "
            f"{num_blocks * block_bytes / 2**30:.1f} GiB, but {device} has {free / 2**30:.1f} GiB free"
        )
    return num_blocks
