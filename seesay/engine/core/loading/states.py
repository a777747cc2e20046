"""Slots for models whose layers keep a state of each sequence, and what these models cannot have yet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from seesay.errors import ConfigError
from seesay.llm.memory.kv_cache import bytes_per_block
from seesay.llm.memory.state_cache import bytes_per_state
from seesay.llm.scheduling.state_slots import SnapshotPlaces, StateSlots

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.llm.running.runner import ModelRunner

logger = logging.getLogger("seesay")

_LEAST_SPACING, _MOST_SPACING = 8, 128
"""Blocks between two snapshots, where rows of a prompt are cut: short rows would make a long prompt take many steps."""


def build_states(runner: ModelRunner, config: EngineConfig) -> StateSlots | None:
    """Return the slots of states; None where layers have none. Between two snapshots, keys and values take about as
    much memory as a snapshot, or more."""
    if not runner.num_states:
        return None
    state_bytes = bytes_per_state(runner.decoder.traits.state_shapes, runner.dtype)
    block_bytes = max(1, bytes_per_block(runner.kv_layouts))
    spacing = config.block_size * min(max(-(-state_bytes // block_bytes), _LEAST_SPACING), _MOST_SPACING)
    logger.info("states: %d of %.1f MiB, kept every %d tokens", runner.num_states, state_bytes / 2**20, spacing)
    places = SnapshotPlaces(config.block_size, spacing)
    return StateSlots(runner.num_states, places, enable_prefix_caching=config.enable_prefix_caching)


def refuse_beside_states(runner: ModelRunner, config: EngineConfig) -> None:
    """Raise `ConfigError` for options that a model with states cannot have."""
    if not runner.decoder.traits.has_states:
        return
    if config.speculation is not None:
        raise ConfigError("speculative: a wrong token cannot be taken back from the states of this model: leave it out")
    if config.num_cpu_blocks:
        raise ConfigError("num_cpu_blocks: states of layers are not kept in host memory: use num_cpu_blocks=0")
