"""How far back tokens see, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


@dataclass(frozen=True, slots=True)
class Chunk:
    """A token sees those before it in its chunk alone: places size · n … size · (n + 1) - 1 (Meta 2025, Llama 4)."""

    size: int


Window = int | Chunk
"""The number of tokens that each sees, its own included; or a chunk."""


def find_size(window: Window) -> int:
    """Return the most tokens that one sees."""
    return window.size if isinstance(window, Chunk) else window


@overload
def find_first_seen(window: Window, places: torch.Tensor) -> torch.Tensor: ...
@overload
def find_first_seen(window: Window, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
def find_first_seen(
    window: Window, places: torch.Tensor | npt.NDArray[np.int64]
) -> torch.Tensor | npt.NDArray[np.int64]:
    """Return the first places that the tokens at these places see; below 0 where there are fewer."""
    if isinstance(window, Chunk):
        return places - places % window.size
    return places - (window - 1)
