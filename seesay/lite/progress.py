"""How far a run is, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tqdm import tqdm


def track_layers(name: str, num_layers: int) -> Iterator[int]:
    """Yield the index of each layer, and show how many are done: by a bar on a terminal, by lines in a log."""
    if sys.stderr.isatty():
        yield from tqdm(range(num_layers), desc=name, unit="layer")
        return
    for index in range(num_layers):
        yield index
        print(f"{name}: {index + 1} of {num_layers} layers", file=sys.stderr, flush=True)
