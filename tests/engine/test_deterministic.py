"""The deterministic mode: the same bits of logits, tokens and log-probabilities in every arrangement of requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arrangements import ALONE, ARRANGEMENTS, PROCESS, answer, count_differing_bits, make_requests

from seesay import EngineConfig, pipeline
from seesay.errors import ConfigError

pytestmark = pytest.mark.timeout(900)
TINY: dict[str, Any] = {"device_type": "cpu", "engine_process": False, "num_gpu_blocks": 8, "deterministic": True}


def test_no_bit_depends_on_the_arrangement() -> None:
    """Chunks, preemption and speculation among others; without the mode, each of these arrangements changes bits."""
    requests, chosen = make_requests(10), [ARRANGEMENTS[i] for i in (2, 4, 6)]
    expected = answer(requests, ALONE, deterministic=True)
    for arrangement in chosen:
        found = answer(requests, arrangement, deterministic=True)
        assert count_differing_bits(expected, found) == 0, arrangement.name
    plain = answer(requests, ALONE)
    assert count_differing_bits(plain, answer(requests, chosen[0])) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "int4"},
        {"kv_cache_dtype": "fp8"},
        {"quantization": "int8"},
        {"quantization": "fp8", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_no_bit_depends_on_any_arrangement(options: dict[str, Any]) -> None:
    requests = make_requests(20, seed=1)
    expected = answer(requests, ALONE, deterministic=True, **options)
    for arrangement in (*ARRANGEMENTS, PROCESS) if not options else (*ARRANGEMENTS[:5:2], PROCESS):
        found = answer(requests, arrangement, deterministic=True, **options)
        assert count_differing_bits(expected, found) == 0, arrangement.name


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tp": 2, "engine_process": None}, "tp must be 1"),
        ({"pp": 2, "engine_process": None}, "pp must be 1"),
        ({"adapters": {"a": "folder"}}, "adapters must be None"),
        ({"max_adapters": 3}, "max_adapters must be 0"),
    ],
)
def test_options_for_which_it_does_not_hold_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"{named} with deterministic=True"):
        EngineConfig(**{**TINY, **options})


@pytest.mark.parametrize(
    ("name", "named"),
    [("qwen3_5", "layers with states"), ("kimi_vl", "latent attention"), ("mllama", "layers that attend")],
)
def test_layers_for_which_it_does_not_hold_are_refused_by_name(
    name: str, named: str, tiny_checkpoint: Callable[[str], Path]
) -> None:
    with pytest.raises(ConfigError, match=f"deterministic: not with {named}"):
        pipeline(str(tiny_checkpoint(name)), EngineConfig(**TINY))
