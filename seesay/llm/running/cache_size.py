"""Chooses how many KV blocks, and slots of states, there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.device.query import measure_memory
from seesay.errors import ConfigError
from seesay.llm.memory.host_cache import staging_bytes
from seesay.llm.memory.kv_cache import CPU_MEMORY_SHARE, bytes_per_block, plan_num_blocks
from seesay.llm.memory.state_cache import bytes_per_state

if TYPE_CHECKING:
    from seesay.llm.running.runner import ModelRunner


STATE_SHARE = 0.5
"""Most of the cache's memory that states take."""


def choose_num_states(runner: ModelRunner, *, num_blocks: int, share: float, reserved_bytes: int) -> int:
    """Return the number of slots of states beside `num_blocks` blocks, 0 for as many as fit: two for each sequence of a
    full batch, itself and a snapshot, and one for each block where states take less memory than blocks, but not more
    than fit in half of the cache's memory. 0 where layers have no state."""
    state_bytes = bytes_per_state(runner.decoder.traits.state_shapes, runner.dtype)
    if not state_bytes:
        return 0
    limits, block_bytes = runner.limits, bytes_per_block(runner.kv_layouts)
    memory_share = share * (CPU_MEMORY_SHARE if runner.device.type == "cpu" else 1.0)
    usable = max(0, measure_memory(runner.device).free_bytes - reserved_bytes) * memory_share
    wanted = 2 * limits.max_batch_size
    if state_bytes < block_bytes:
        most = min(limits.max_batch_size * limits.max_sequence_blocks, int(usable // (state_bytes + block_bytes)))
        wanted = max(wanted, num_blocks or most)
    return max(1, min(wanted, int(usable * STATE_SHARE // state_bytes)))


def choose_num_blocks(
    runner: ModelRunner, *, num_blocks: int, share: float, reserved_bytes: int, num_host_slots: int
) -> int:
    """Return the number of blocks of the KV cache of `runner`, beside which there are `num_host_slots` on the host:
    `num_blocks`, or where that is 0, as many as fit in `share` of the memory that is free now less `reserved_bytes`.
    Raises `ConfigError` for more than fit."""
    device, limits, block_bytes = runner.device, runner.limits, bytes_per_block(runner.kv_layouts)
    if runner.num_states:
        reserved_bytes += (runner.num_states + 1) * bytes_per_state(runner.decoder.traits.state_shapes, runner.dtype)
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
