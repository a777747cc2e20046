"""Models of many kinds, whose answers by several processes are those of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask, make_conversations, parse
from pairs import mark_after

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.errors import ConfigError

CHUNK = 24
WAYS: tuple[dict[str, int], ...] = ({"tp": 2}, {"pp": 2}, {"tp": 4})
FIRST = ("starcoder2", "qwen2_5_vl")
"""Biases that one rank adds; pictures, and positions of three axes."""
OTHERS = (
    "gemma2",  # soft caps, tied heads, windows
    "internlm",
    "falcon",  # one head of keys, one sum per layer
    "falcon_alibi",  # slopes by heads
    "mpt",
    "olmo2",  # norms over the heads of all ranks
    "qwen3",
    "cohere",
    "mixtral",
    "deepseek_v2",  # latent rows, experts for all tokens
    "gpt_oss_mxfp4",  # quantized experts, sinks
    "gemma3_vision",  # pictures whose tokens see each other
)


def answer(path: Path, name: str, **options: Any) -> list[Response]:
    config = EngineConfig(
        device_type="cpu", block_size=16, dtype="float32", max_prefill_token_num=CHUNK, num_gpu_blocks=60, **options
    )
    with AsyncEngine(str(path), backend_config=config) as engine:
        requests = parse(make_conversations(name), max_new_tokens=8, ignore_eos=True, logprobs=2)
        found = ask(engine, requests)
        again = ask(engine, requests)
        assert engine.stats().total_prefix_hit_tokens > 0
    assert [each.token_ids for each in again] == [each.token_ids for each in found]
    return found


@pytest.mark.parametrize("name", mark_after(len(FIRST), (*FIRST, *OTHERS)))
def test_answers_are_those_of_one_rank(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """In chunks, together, and from the cache."""
    path = tiny_checkpoint(name)
    expected = answer(path, name)
    for way in WAYS[:2] if name in FIRST else WAYS:
        try:
            answers = answer(path, name, **way)
        except ConfigError as error:
            assert way == {"tp": 4} and "query heads" in str(error)
            continue
        for mine, right in zip(answers, expected, strict=True):
            assert mine.error is None and mine.token_ids == right.token_ids, way
            for found, scores in zip(mine.logprobs or (), right.logprobs or (), strict=True):
                assert found == pytest.approx(scores, abs=1e-4), way


def test_a_length_beyond_the_training_is_told_once(
    tiny_checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """And not by each rank."""
    config = EngineConfig(device_type="cpu", tp=2, session_len=1 << 16, num_gpu_blocks=8)
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=config):
        pass
    [text] = [record.getMessage() for record in caplog.records if "was trained for" in record.getMessage()]
    assert text.startswith("session_len=65536 is more than")
