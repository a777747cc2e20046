"""Models with states: what their batches have room for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asking import ask, loop_of, make_message, make_picture, parse

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


def test_questions_on_one_picture_or_system_prompt_go_on_behind_it(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Where questions are longer than a block, and states are kept every 8 blocks."""
    rules, picture = make_message("answer as the game says, " * 8, role="system"), make_picture(90, 80, 1)
    tails = [make_message(word * 25) for word in ("red ", "green ", "one ", "two ")]
    seen = [make_message(picture, word * 25) for word in ("red ", "green ", "one ", "two ")]
    requests = parse([[rules, tail] for tail in tails] + [[each] for each in seen], max_new_tokens=6, ignore_eos=True)
    answers = []
    for enable_prefix_caching in (False, True):
        config = EngineConfig(device_type="cpu", block_size=16, enable_prefix_caching=enable_prefix_caching)
        with AsyncEngine(str(tiny_checkpoint("qwen3_5")), backend_config=config) as engine:
            outputs = [ask(engine, [request])[0] for request in requests]
            answers.append([list(output.token_ids) for output in outputs])
    cached = [output.usage.cached_tokens if output.usage else 0 for output in outputs]
    assert answers[0] == answers[1]
    assert max(cached[:2]) <= 8 * 16 < cached[2] == cached[3], "by the second, a common beginning is known"
    assert not cached[4] and min(cached[5:]) > 0, cached
