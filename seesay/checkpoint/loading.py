"""Strict loading: every tensor of a model has one in the checkpoint, and every checkpoint tensor that belongs to the
model has a place in it. For decoders, heads and towers alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from seesay.checkpoint import find_stored_names, is_buffer
from seesay.checkpoint.parts import Part, TensorError, Weight
from seesay.checkpoint.source import TensorSource
from seesay.checkpoint.tensors import TensorSlices
from seesay.errors import CheckpointError

_MAX_NAMES = 3
_INSTEAD_OF_WEIGHT = ("qweight", "weight_packed")
_OF_QUANTIZED_WEIGHTS = (".weight_scale", ".weight_scale_inv", ".qweight", ".qzeros", ".scales", ".weight_packed")
"""Endings of the names of tensors that only quantized modules have."""
_UNDESCRIBED = "config.json has no quantization_config for this layer"


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """Weights that belong together, such as those of a layer. `finish` is called as soon as all of them are filled, so
    that what it makes of them can take their place before others are read."""

    weights: tuple[Weight, ...]
    finish: Callable[[], None] = _nothing


def load_weights(
    groups: Iterable[WeightGroup],
    checkpoint: TensorSource,
    *,
    name_of: Callable[[str], str | None],
    device: torch.device,
    dtype: torch.dtype,
    ignored: frozenset[str] = frozenset(),
    is_partial: bool = False,
    checks_finite: bool = False,
    known: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Fill all weights of `groups` from the checkpoint, on `device`, in their own type or else in `dtype`. Only the
    slices that parts name are read, each straight to `device`; memory is taken after all names and shapes were checked.
    Nothing is read for the meta device.

    `name_of` maps a checkpoint tensor's name to the model's, or to None for tensors of other parts. Tensors whose model
    name is in `ignored` may be in the checkpoint and are not read. `is_partial`: groups of which the checkpoint has no
    tensor are left out. `known`: names that tensors had in an earlier checkpoint of the model, by the model's.

    Raises `CheckpointError` naming a tensor that is missing, unexpected, there twice, of a type or shape that does not
    fit, or, with `checks_finite`, that has NaN or infinity (formats of one byte check their own).
    """
    groups = list(groups)
    stored_as = find_names(checkpoint, name_of)
    if is_partial:
        groups = [group for group in groups if _is_stored(group, stored_as)]
    parts = _list_parts(groups)
    if missing := next((part.tensor for part in parts if part.tensor not in stored_as), None):
        raise _make_missing_error(checkpoint, find_stored_names(missing, checkpoint.tensor_names(), name_of, known))
    _check_expected(checkpoint, [part.tensor for part in parts], stored_as, ignored)
    for part in parts:
        check_stored(checkpoint, part, stored_as[part.tensor])
    _Loading(groups, stored_as, device, dtype, checks_finite=checks_finite).run(checkpoint)


def _list_parts(groups: Iterable[WeightGroup]) -> list[Part]:
    return [part for group in groups for weight in group.weights for part in weight.parts]


def _is_stored(group: WeightGroup, stored_as: Mapping[str, str]) -> bool:
    """Return whether the checkpoint has any tensor of a group."""
    return any(part.tensor in stored_as for part in _list_parts([group]))


def _make_missing_error(checkpoint: TensorSource, names: Sequence[str]) -> CheckpointError:
    """Return the error for a missing tensor, which would have one of these names in the checkpoint."""
    expected = " or ".join(map(repr, names[:_MAX_NAMES]))
    beside = (f"{name.removesuffix('.weight')}.{kind}" for name in names for kind in _INSTEAD_OF_WEIGHT)
    quantized = next((name for name in beside if name in checkpoint.tensor_names()), None)
    hint = checkpoint.remedy if quantized is None else f"it has {quantized!r}, and {_UNDESCRIBED}"
    return CheckpointError(f"{checkpoint.path}: tensor {expected} is missing from the checkpoint: {hint}")


def find_names(checkpoint: TensorSource, name_of: Callable[[str], str | None]) -> dict[str, str]:
    """Return the checkpoint's names by the model's. Buffers belong to no model. Raises `CheckpointError` for two
    tensors of the same name."""
    names: dict[str, str] = {}
    for stored in sorted(checkpoint.tensor_names()):
        name = None if is_buffer(stored) else name_of(stored)
        if name is None:
            continue
        if name in names:
            raise CheckpointError(
                f"{checkpoint.path}: tensors {names[name]!r} and {stored!r} are the same tensor of the model"
            )
        names[name] = stored
    return names


def _check_expected(
    checkpoint: TensorSource, wanted: Iterable[str], stored_as: Mapping[str, str], ignored: frozenset[str]
) -> None:
    if unexpected := sorted(stored_as[name] for name in stored_as.keys() - set(wanted) - ignored):
        more = f" (and {len(unexpected) - 1} more)" if len(unexpected) > 1 else ""
        hint = f": {_UNDESCRIBED}" if unexpected[0].endswith(_OF_QUANTIZED_WEIGHTS) else ""
        raise CheckpointError(f"{checkpoint.path}: unexpected tensor {unexpected[0]!r}{more}{hint}")


def check_stored(checkpoint: TensorSource, part: Part, name: str) -> None:
    """Raise `CheckpointError` if the stored tensor `name` has not the type and shape of `part`."""
    stored = checkpoint.find(name)
    if stored.dtype not in part.dtypes:
        raise CheckpointError(
            f"{stored.file}: tensor {name!r} is stored as {stored.dtype}, it must be {' or '.join(part.dtypes)}"
        )
    if not (part.may_have(stored.shape) or _fits_flattened(stored.shape, part.stored_shape)):
        raise CheckpointError(
            f"{checkpoint.path}: tensor {name!r} has shape {list(stored.shape)}, "
            f"the config says {list(part.stored_shape)}"
        )


def _fits_flattened(stored: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether a stored tensor has the expected shape as a matrix with more axes behind the first, or as a single
    number with an axis of its own."""
    if len(expected) == 2 and len(stored) > 2:
        stored = (stored[0], math.prod(stored[1:]))
    return stored == expected or (not expected and stored == (1,))


class _Loading:
    """Reads each stored tensor once, copies its parts to their places, and finishes groups as they become complete."""

    def __init__(
        self,
        groups: list[WeightGroup],
        stored_as: Mapping[str, str],
        device: torch.device,
        dtype: torch.dtype,
        *,
        checks_finite: bool,
    ) -> None:
        self._device, self._dtype = device, dtype
        self._stored_as = stored_as
        self._checks_finite = checks_finite
        self._missing = [sum(len(weight.parts) for weight in group.weights) for group in groups]
        self._groups = groups
        self._wanted: dict[str, list[tuple[int, Weight, int]]] = {}
        for index, group in enumerate(groups):
            for weight in group.weights:
                for number, part in enumerate(weight.parts):
                    self._wanted.setdefault(stored_as[part.tensor], []).append((index, weight, number))

    def run(self, checkpoint: TensorSource) -> None:
        if self._device.type == "meta":
            for group in self._groups:
                for weight in group.weights:
                    self._allocate(weight)
                self._finish(group, checkpoint)
            return
        for name, tensor in checkpoint.slices(self._wanted, self._device):
            for index, weight, number in self._wanted[name]:
                self._copy(tensor, weight, number)
                self._missing[index] -= 1
                if self._missing[index] == 0:
                    self._finish(self._groups[index], checkpoint)

    def _copy(self, tensor: TensorSlices, weight: Weight, number: int) -> None:
        """Copy the weight's part with this number from a stored tensor to its place."""
        if not hasattr(weight, "data"):
            self._allocate(weight)
        part, place = weight.parts[number], weight.place(number)
        for picks, target in part.regions():
            place[target].copy_(part.read(tensor, picks))
        if weight.offset:
            place.add_(weight.offset)
        if weight.has_unit_rows:
            place.div_(place.norm(dim=1, keepdim=True).clamp_(min=1e-12))

    def _allocate(self, weight: Weight) -> None:
        weight.data = torch.empty(weight.shape, dtype=weight.dtype or self._dtype, device=self._device)

    def _finish(self, group: WeightGroup, checkpoint: TensorSource) -> None:
        if self._checks_finite:
            for weight in group.weights:
                self._check_finite(weight, checkpoint)
        try:
            group.finish()
        except TensorError as error:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {self._stored_as[error.tensor]!r} {error.problem}"
            ) from None

    def _check_finite(self, weight: Weight, checkpoint: TensorSource) -> None:
        if not weight.data.is_floating_point() or weight.data.element_size() == 1:
            return
        for part, place in weight.places():
            if not place.isfinite().all():
                name = self._stored_as[part.tensor]
                raise CheckpointError(f"{checkpoint.path}: tensor {name!r} has numbers that are not finite")
