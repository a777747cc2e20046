"""Names of LMDeploy that have no counterpart here. Importing one raises an error that says what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def advise(module: str, advice: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `module` that raises ImportError with advice for the names in `advice`."""

    def get(name: str) -> Any:
        if name in advice:
            raise ImportError(f"{module}.{name} is LMDeploy's and not part of seesay: {advice[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get
