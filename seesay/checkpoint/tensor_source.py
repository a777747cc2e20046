"""Tensors that are handed over, not read from a folder: in memory, or as the bytes of a safetensors file."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from seesay.checkpoint.tensors import DTYPE_BYTES, MAX_HEADER_BYTES, StoredTensor, TensorSlices, make_stored
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SOURCE = Path("update_weights")
"""Names the source in messages."""
_TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32",
    "U32": "uint32", "F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenTensor:
    """One tensor. name: as in the checkpoint. dtype: as safetensors names it. data: its bytes, uint8 [n]."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8] = field(repr=False)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise CheckpointError(f"{SOURCE}: tensor {self.name!r} has unknown dtype {self.dtype!r}")
        if any(n < 0 for n in self.shape) or math.prod(self.shape) * DTYPE_BYTES[self.dtype] != len(self.data):
            raise CheckpointError(
                f"{SOURCE}: tensor {self.name!r} has {len(self.data)} bytes, which does not fit its type {self.dtype} "
                f"and shape {list(self.shape)}"
            )

    @classmethod
    def of(cls, name: object, value: object) -> GivenTensor:
        """Return a torch tensor or NumPy array under its name, in memory of its own. Raises `CheckpointError`."""
        import torch

        if not isinstance(name, str):
            raise CheckpointError(f"{SOURCE}: the name of a tensor must be a string, got {type(name).__name__}")
        tensor = _read_tensor(name, value)
        torch_name = str(tensor.dtype).removeprefix("torch.")
        names = {torch: stored for stored, torch in _TORCH_NAMES.items()}
        if torch_name not in names:
            raise CheckpointError(f"{SOURCE}: {name!r} is of type {torch_name}, which no checkpoint has")
        own = tensor.detach().to(device="cpu", memory_format=torch.contiguous_format, copy=True).contiguous()
        data = own.flatten().view(torch.uint8).numpy() if own.numel() else np.empty(0, np.uint8)
        return cls(name=name, dtype=names[torch_name], shape=tuple(tensor.shape), data=data)

    @property
    def stored(self) -> StoredTensor:
        return StoredTensor(file=SOURCE, dtype=self.dtype, shape=self.shape)

    def read(self) -> torch.Tensor:
        """Return the tensor, which shares the memory of `data` where that is aligned."""
        import torch

        dtype: torch.dtype = getattr(torch, _TORCH_NAMES[self.dtype])
        data = self.data
        if data.ctypes.data % dtype.itemsize or not data.flags.writeable:
            data = data.copy()
        return torch.from_numpy(data).view(dtype).view(self.shape)


def _read_tensor(name: str, value: object) -> torch.Tensor:
    """Return a torch tensor or NumPy array as a dense torch tensor. Raises `CheckpointError` for anything else."""
    import torch

    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        value = torch.from_numpy(np.ascontiguousarray(value, value.dtype.newbyteorder("=")))
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        raise CheckpointError(
            f"{SOURCE}: {name!r} must be a dense torch tensor or a NumPy array of numbers, got {type(value).__name__}"
        )
    if value.is_meta:
        raise CheckpointError(f"{SOURCE}: {name!r} is on the meta device: give a tensor that has numbers")
    return value


def iterate_given(source: object) -> Iterator[GivenTensor]:
    """Yield the tensors of a mapping, or of an iterable of names and tensors. Raises `CheckpointError` for anything
    else."""
    entries = source.items() if isinstance(source, Mapping) else source
    if not isinstance(entries, Iterable):
        raise CheckpointError(
            f"{SOURCE}: give a model folder, a dict of tensors, or an iterable of names and tensors, "
            f"got {type(source).__name__}"
        )
    for entry in entries:
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise CheckpointError(f"{SOURCE}: each entry must be a name and a tensor, got {type(entry).__name__}")
        yield GivenTensor.of(*entry)


def read_safetensors(content: bytes) -> Iterator[GivenTensor]:
    """Yield the tensors in the bytes of a safetensors file. Raises `CheckpointError` for anything else."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, MAX_HEADER_BYTES):
        raise CheckpointError(f"{SOURCE}: truncated or not safetensors ({len(content)} bytes)")
    try:
        header = json.loads(content[8 : 8 + length], object_pairs_hook=_make_unique)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{SOURCE}: the safetensors header is damaged, or names a tensor twice")
    header.pop("__metadata__", None)
    data = np.frombuffer(content, np.uint8, offset=8 + length)
    for name, entry in header.items():
        stored = make_stored(SOURCE, name, entry, len(data))
        start, stop = entry["data_offsets"]
        yield GivenTensor(name=name, dtype=stored.dtype, shape=stored.shape, data=data[start:stop])


def _make_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


class HandedTensors:
    """A `TensorSource` of tensors that were handed over."""

    path = SOURCE
    remedy = "give it, too; partial=True is for some of the layers"

    def __init__(self, tensors: Mapping[str, GivenTensor]) -> None:
        self._tensors = tensors

    @property
    def tensors(self) -> Collection[GivenTensor]:
        """All of them."""
        return self._tensors.values()

    def tensor_names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def find(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise CheckpointError(f"{SOURCE}: tensor {name!r} is missing")
        return self._tensors[name].stored

    def slices(self, names: Iterable[str], device: torch.device | str) -> Iterator[tuple[str, TensorSlices]]:  # noqa: ARG002
        """Yield tensors that are still on the host: only what is taken of them is copied to a device."""
        for name in names:
            tensor = self._tensors[name]
            yield name, TensorSlices(_Reader(tensor), name, tensor.shape)


class _Reader:
    """One tensor, read as `safetensors.safe_open` reads those of a file."""

    def __init__(self, tensor: GivenTensor) -> None:
        self._tensor = tensor

    def get_tensor(self, name: str) -> torch.Tensor:  # noqa: ARG002
        return self._tensor.read()

    get_slice = get_tensor
