"""What models with states cannot have is refused by name, and what they can have arrives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask, loop_of, parse

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"speculative": {"method": "ngram"}}, "speculative: a wrong token"),
    ],
    ids=["speculation"],
)
def test_options_that_states_do_not_go_with_are_refused(
    options: dict[str, Any], word: str, tiny_checkpoint: Callable[[str], Path]
) -> None:
    config = EngineConfig(device_type="cpu", block_size=16, **options)
    with pytest.raises(ConfigError, match=word):
        AsyncEngine(str(tiny_checkpoint("qwen3_5_text")), backend_config=config)


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
