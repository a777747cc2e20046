"""A line of a recording, with the fields that each has."""

from __future__ import annotations

from typing import Any

FIELDS: dict[str, Any] = {
    "version": "1",
    "model": "m",
    "weights": "w",
    "arrived_at": 5.0,
    "tokens": [1, 2, 3],
    "num_prompt_tokens": 3,
    "finish_reason": "stop",
}
LINE: dict[str, Any] = {"record": 1, **FIELDS}
