"""Models with states: what their batches have room for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asking import ask, loop_of, parse

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine


def test_a_full_batch_has_room_for_states_and_snapshots(tiny_checkpoint: Callable[[str], Path]) -> None:
    """More requests than places wait, and are answered as each alone."""
    config = EngineConfig(device_type="cpu", block_size=4, max_batch_size=2)
    prompts = [f"question {number} of five" for number in range(5)]
    requests = parse(prompts, max_new_tokens=6, ignore_eos=True)
    with AsyncEngine(str(tiny_checkpoint("qwen3_5_text")), backend_config=config) as engine:
        states = loop_of(engine)._scheduler._live.states
        assert states is not None and states.pool.num_blocks == 4
        alone = [list(ask(engine, [request])[0].token_ids) for request in requests]
        engine.reset_caches()
        assert not states.pool.num_cached and not states.pool.num_used
        assert [list(answer.token_ids) for answer in ask(engine, requests)] == alone
