"""Options of speculation: which are refused, and by which name."""

from __future__ import annotations

from typing import Any

import pytest

from seesay import EngineConfig, SpeculativeConfig
from seesay.errors import ConfigError


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_other_methods_are_refused_by_name(method: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"method is not supported, only 'ngram', 'draft', 'mtp' and 'eagle3' are, got '{method}'"
    ):
        SpeculativeConfig(method=method)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"num_speculative_tokens": 16}, "num_speculative_tokens"),
        ({"model": "a/b"}, "model must be empty"),
        ({"method": "draft"}, "model must name"),
        ({"method": "eagle3"}, "model must name"),
        ({"method": "magic"}, "^speculative.method must be one of"),
        ({"num_speculative_tokens": "3"}, "^speculative.num_speculative_tokens must be an integer"),
        ({"prompt_lookup_max": 4}, "'prompt_lookup_max' is not an option"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EngineConfig(speculative=options)
