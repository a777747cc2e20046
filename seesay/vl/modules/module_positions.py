"""Positions of several axes (M-RoPE, arXiv 2409.12191, section 2.1) of a prompt, made by the model's own code: its
function `get_rope_index`, which needs no weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.values import MediaItem
from seesay.vl.modules.module_processor import TOKEN_TYPES

if TYPE_CHECKING:
    import torch

_FUNCTION = "get_rope_index"


def count_axes(checkpoint: Checkpoint) -> int:
    """Return the rotary positions of a token, as the text configuration says."""
    rotary = getattr(checkpoint.text_config, "rope_parameters", None)
    sections = rotary.get("mrope_section") if isinstance(rotary, Mapping) else None
    return len(sections) if isinstance(sections, list) and sections else 1


@dataclass(frozen=True, slots=True)
class RopeIndex:
    """The function of a model. names: the arguments that it takes, such as `image_grid_thw`."""

    function: Callable[..., Any]
    names: frozenset[str]

    @classmethod
    def find(cls, model: torch.nn.Module) -> RopeIndex | None:
        """Return that of `model`, which may be without weights, or None if it has none."""
        for module in model.modules():
            if (function := getattr(module, _FUNCTION, None)) is not None:
                return cls(function, frozenset(inspect.signature(function).parameters))
        return None

    def number(
        self,
        token_ids: npt.NDArray[np.int64],
        items: Sequence[MediaItem],
        measured: Sequence[Mapping[str, npt.NDArray[Any]]],
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Return int64 [axes, T] of a prompt, and the position of its first generated token. measured: the arrays by
        which the processor describes each item, such as its grid of patches, in the order of `items`."""
        import torch

        kinds = np.zeros((1, len(token_ids)), dtype=np.int64)
        for item in items:
            kinds[0, item.slots] = TOKEN_TYPES[item.modality]
        found: dict[str, list[npt.NDArray[Any]]] = {}
        for arrays in measured:
            for name in arrays.keys() & self.names:
                found.setdefault(name, []).append(arrays[name])
        given = {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in found.items()}
        inputs = {
            "input_ids": torch.from_numpy(token_ids[None]),
            "mm_token_type_ids": torch.from_numpy(kinds),
            "attention_mask": torch.ones((1, len(token_ids)), dtype=torch.int64),
        }
        own = {name: inputs[name] for name in inputs.keys() & self.names}
        positions, offset = self.function(**{**given, **own})
        made: npt.NDArray[Any] = positions[:, 0].numpy()
        if (made != (whole := made.astype(np.int64))).any():
            raise CheckpointError("its code makes positions between whole numbers")
        return whole, len(token_ids) + int(offset.flatten()[0])
