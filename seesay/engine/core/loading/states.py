"""Slots for models whose layers keep a state of each sequence, and what these models cannot have yet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from seesay.errors import ConfigError
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


def refuse_beside_states(runner: ModelRunner, config: EngineConfig) -> None:
    """Raise `ConfigError` for options that a model with states cannot have."""
    if not runner.decoder.traits.has_states:
        return
    if config.speculation is not None:
        raise ConfigError("speculative: a wrong token cannot be taken back from the states of this model: leave it out")
