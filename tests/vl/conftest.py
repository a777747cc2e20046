"""Families beside Transformers, loaded once per run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from family_contract import Loaded, load_beside_transformers


@pytest.fixture(scope="session")
def load(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], Loaded]:
    made: dict[str, Loaded] = {}

    def get(name: str) -> Loaded:
        if name not in made:
            made[name] = load_beside_transformers(tiny_checkpoint(name), name)
        return made[name]

    return get
