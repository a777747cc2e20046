"""The error of a start that finds too little memory, which frees what was allocated."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.device.query import is_out_of_memory, release_cached_memory
from seesay.errors import ConfigError

if TYPE_CHECKING:
    import torch

_ON_THE_HOST = "DefaultCPUAllocator: can't allocate memory"
"""In the `RuntimeError` by which torch says so."""
_ADVICE = (
    "end what else uses this memory, or take fewer bits (quantization='fp8'), shorter steps "
    "(max_prefill_token_num=2048), fewer sequences (max_batch_size=64) or several devices (tp=2)"
)


@contextmanager
def told_of_memory(folder: Path, device: torch.device) -> Iterator[None]:
    """Turn a lack of memory inside the block, which loads the model of `folder`, into a `ConfigError`.

    What the block had allocated is freed: a caller who keeps the error, as notebooks do, could else not start again.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error) and _ON_THE_HOST not in str(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        traceback.clear_frames(error.__traceback__)
        gc.collect()  # models have cycles
        release_cached_memory(device)
        raise ConfigError(f"{folder}: not enough memory on {device} to start ({reason}): {_ADVICE}") from None
