"""The modules of a Transformers model in front of its decoder, as an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seesay.device.transfers import upload

if TYPE_CHECKING:
    from seesay.checkpoint.parts import Part
    from seesay.checkpoint.source import TensorSource


class DecodersWeights:
    """No weights: the decoder's are those of the whole model, which are loaded, replaced and dropped once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def name_of(self, name: str) -> None:  # noqa: ARG002
        return None

    def is_unread(self, name: str) -> bool:  # noqa: ARG002
        return True

    def parts(self) -> Mapping[str, Part]:
        return {}

    def tensors(self) -> list[Tensor]:
        return []

    def check(self, source: TensorSource, *, is_partial: bool) -> None: ...

    def replace(self, source: TensorSource, *, is_partial: bool) -> None: ...

    def drop(self) -> None: ...


class ModuleTower:
    """Encodes one item after another: they are of any size, and the modules are not ours.

    Features: the arrays that the processor makes of the item's marker, `input_ids` int64 [1, T] among them, of which
    those that are one of `row_tokens` take a row. A row has a part of `hidden_size` for the decoder's input, and one
    for each of the `num_deep_layers` layers behind which it is added.
    """

    def __init__(
        self,
        run: Callable[..., Mapping[str, Any]],
        *,
        row_tokens: Sequence[int],
        hidden_size: int,
        num_deep_layers: int = 0,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`run(**inputs)` returns the decoder's inputs: `inputs_embeds` [1, T, hidden_size] with rows in it, and with
        deep layers `deepstack_visual_embeds`, a tensor [R, hidden_size] for each."""
        self.device, self.dtype = device, dtype
        self.hidden_size = hidden_size * (1 + num_deep_layers)
        self.weights = DecodersWeights(device)
        self._run = run
        self._row_tokens = row_tokens

    def encode(self, features: Sequence[Mapping[str, object]]) -> list[Tensor]:
        """See `Encoder.encode`."""
        return [self._encode(item) for item in features]

    def load(self, item: Mapping[str, object]) -> dict[str, Tensor]:
        """Return the arrays of an item as tensors on the device, numbers with a fraction in the model's type."""
        arrays = {name: value for name, value in item.items() if isinstance(value, np.ndarray)}
        writable = [array if array.flags.writeable else array.copy() for array in arrays.values()]
        tensors = zip(arrays, upload(writable, self.device), strict=True)
        return {name: each.to(self.dtype) if each.is_floating_point() else each for name, each in tensors}

    def show(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """Return all inputs of the decoder for a processor's `inputs`."""
        with torch.no_grad():
            return self._run(**inputs)

    def _encode(self, item: Mapping[str, Any]) -> Tensor:
        takes_row = np.isin(item["input_ids"][0], self._row_tokens)
        if self.device.type == "meta":  # modules may look at values, and there are none
            return torch.empty((int(takes_row.sum()), self.hidden_size), dtype=self.dtype, device=self.device)
        given = self.show(self.load(item))
        [places] = upload([np.flatnonzero(takes_row)], self.device)
        rows = given["inputs_embeds"][0].index_select(0, places)
        made = torch.cat([rows, *(given.get("deepstack_visual_embeds") or ())], dim=1).to(self.dtype)
        return F.pad(made, (0, self.hidden_size - made.shape[1]))  # rows of audio have no deep parts

    def disable_graphs(self) -> None:
        """None are recorded."""

    def forget_graphs(self) -> None:
        """None are recorded."""
