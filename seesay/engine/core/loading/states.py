"""Slots for models whose layers keep a state of each sequence."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from seesay.llm.memory.state_cache import bytes_per_state
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.llm.running.runner import ModelRunner

logger = logging.getLogger("seesay")


def build_states(runner: ModelRunner, config: EngineConfig) -> StateSlots | None:
    """Return the slots of states; None where layers have none."""
    if not runner.num_states:
        return None
    state_bytes = bytes_per_state(runner.decoder.traits.state_shapes, runner.dtype)
    spacing, num_host_states = config.block_size * runner.cache_size.spacing, runner.num_host_states
    where = f"{runner.num_states} of {state_bytes / 2**20:.1f} MiB, {num_host_states} more in host memory"
    logger.info("states: %s, kept every %d tokens", where, spacing)
    return StateSlots(
        runner.num_states,
        SnapshotPlaces(config.block_size, spacing),
        enable_prefix_caching=config.enable_prefix_caching,
        num_host_slots=num_host_states,
    )
