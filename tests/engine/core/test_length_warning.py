"""The warning of texts that are longer than what a model was trained for."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig
from seesay.engine.core.loading.length_warning import warn_beyond_training

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture
def warn(tiny_checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    """Warn of a model of 256 positions; return the messages."""

    def warn(*, is_ours: bool = True, **options: Any) -> list[str]:
        config = EngineConfig(device_type="cpu", **options)
        overrides = {"max_position_embeddings": 256, **(config.hf_overrides or {})}
        text_config = Checkpoint.load(tiny_checkpoint("llama"), overrides).text_config
        backbone: Any = SimpleNamespace(text_config=text_config, is_ours=is_ours)
        with caplog.at_level(logging.WARNING, logger="seesay"):
            warn_beyond_training(config, backbone)
        return [record.getMessage() for record in caplog.records if record.name == "seesay"]

    return warn


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"session_len": 257},
            r"^session_len=257 is more than the 256 positions .* for: .*rope_scaling_factor=2\.0 \(",
        ),
        ({"session_len": 512}, r"rope_scaling_factor=2\.0"),
        ({"session_len": 1024}, r"rope_scaling_factor=4\.0"),
        ({"session_len": 256}, None),
        ({}, None),
        ({"session_len": 1024, "rope_scaling_factor": 4.0}, None),
        ({"session_len": 1024, "hf_overrides": {"rope_parameters": DYNAMIC}}, None),
        ({"session_len": 256, "hf_overrides": {"rope_parameters": YARN}}, None),
        (
            {"session_len": 513, "hf_overrides": {"rope_parameters": YARN | {"factor": 8.0}}},
            r"more than the 256 positions .* for \(512 with the rotary scaling of its config\.json\): ",
        ),
    ],
)
def test_a_warning_names_the_setting(
    warn: Callable[..., list[str]], options: dict[str, Any], expected: str | None
) -> None:
    messages = warn(**options)
    assert len(messages) == (expected is not None)
    assert expected is None or re.search(expected, messages[0])


def test_a_scaling_that_would_be_refused_is_not_advised(warn: Callable[..., list[str]]) -> None:
    [message] = warn(session_len=1024, is_ours=False)
    assert "seldom good; set with hf_overrides" in message


def test_a_model_without_a_limit_has_none_to_warn_of() -> None:
    backbone: Any = SimpleNamespace(text_config=SimpleNamespace(), is_ours=True)
    warn_beyond_training(EngineConfig(device_type="cpu", session_len=1 << 20), backbone)
