"""Counts of an engine: each part returns its own, and they are put together in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from asking import ask, loop_of, make_message, make_picture, parse

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.values import EngineStats


def test_merging_adds() -> None:
    one = EngineStats(num_running=2, total_not_finite=1, step_sizes=((1, 4),))
    other = EngineStats(total_not_finite=3, encode_sizes=((2, 1),))
    both = EngineStats(num_running=2, total_not_finite=4, step_sizes=((1, 4),), encode_sizes=((2, 1),))
    assert EngineStats.merge(one, other) == EngineStats.merge(other, one) == both
    assert EngineStats.merge(both) == both


def test_nothing_is_counted_by_two_parts(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", block_size=16, num_cpu_blocks=4)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        for _ in range(2):
            [answer] = ask(engine, parse([[make_message(make_picture(40, 30, 1), "what?")]], max_new_tokens=3))
            assert answer.error is None
        loop = loop_of(engine)
        scheduler, worker = loop._scheduler, loop.embeddings.worker
        assert worker is not None
        parts = [scheduler.stats(), worker.stats(), loop.embeddings.store.stats(), engine._preparer.stats()]
        whole = engine.stats()
    assert whole.total_encoder_items == 1 and whole.num_features == 1 and whole.total_prefix_queried_tokens > 0
    assert sum(size * count for size, count in whole.step_sizes) >= 6
    for count in fields(EngineStats):
        counted = [part for part in parts if getattr(part, count.name)]
        assert len(counted) <= 1, count.name
        if counted:
            assert getattr(whole, count.name) == getattr(counted[0], count.name), count.name
