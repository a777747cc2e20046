"""The tensors of safetensors files: their places, from checked headers, and reading them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from seesay.checkpoint.files import inside
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")

MAX_HEADER_BYTES = 25 << 20
_SAMPLE_BYTES = 4096
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_BUFFER = re.compile(
    r"\.(inv_freq|cos_cached|sin_cached|masked_bias|position_ids)$|\.(self_attn|attn|attention)\.bias$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """The place of one tensor: its file, its dtype as safetensors names it, and its shape.

    own_name: its name in the file, where it is known by another one. num_paired_heads: of a matrix for rotary
    embeddings, the heads whose rows stand in pairs in the file (x0, y0, x1, y1, …) and are read as (x0, x1, …, y0, y1,
    …); 0 for a tensor that is read as it stands.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    own_name: str | None = None
    num_paired_heads: int = 0

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def has_whole_pairs(self) -> bool:
        """Whether the rows are those of `num_paired_heads`, in pairs; true without any."""
        heads = self.num_paired_heads
        return not heads or (len(self.shape) == 2 and self.shape[0] > 0 and self.shape[0] % (2 * heads) == 0)

    def open(self, reader: object, name: str) -> TensorSlices:
        """Return what reads this tensor, which is called `name`, of its open file."""
        own = self.own_name or name
        if self.num_paired_heads:
            return PairedSlices(reader, own, self.shape, self.num_paired_heads)
        return TensorSlices(reader, own, self.shape)


class TensorSlices:
    """Reads one tensor of an open safetensors file, or a region of it."""

    def __init__(self, reader: Any, name: str, shape: tuple[int, ...]) -> None:
        self._reader, self._name, self._shape = reader, name, shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def read(self, picks: tuple[range, ...]) -> torch.Tensor:
        """Return the elements `picks` along each axis. A tensor with more axes than that is flattened behind its first
        axis."""
        shape = self._shape
        is_whole = all(pick == range(size) for pick, size in zip(picks, shape, strict=False))
        if not picks or (is_whole and len(picks) == len(shape)):
            tensor = self._reader.get_tensor(self._name)
            return tensor.view([len(pick) for pick in picks])  # type: ignore[no-any-return]
        spans = tuple(slice(pick.start, pick[-1] + 1) if pick else slice(0, 0) for pick in picks)
        if len(picks) == len(shape):
            tensor = self._reader.get_slice(self._name)[spans]
        else:
            tensor = self._reader.get_slice(self._name)[spans[0]].flatten(1)[:, spans[1]]
        return tensor[tuple(slice(None, None, pick.step) for pick in picks)]  # type: ignore[no-any-return]


class PairedSlices(TensorSlices):
    """Reads a matrix whose rows stand in pairs: see `StoredTensor.num_paired_heads`."""

    def __init__(self, reader: object, name: str, shape: tuple[int, ...], num_heads: int) -> None:
        super().__init__(reader, name, shape)
        self._num_heads = num_heads

    def read(self, picks: tuple[range, ...]) -> torch.Tensor:
        whole: torch.Tensor = self._reader.get_tensor(self._name)
        num_rows, num_columns = self._shape
        rows = whole.view(self._num_heads, -1, 2, num_columns).transpose(1, 2).reshape(num_rows, num_columns)
        spans = (slice(pick.start, pick.stop, pick.step) for pick in picks)
        return rows[tuple(spans)]


def find_stored_names(
    own: str,
    stored: Iterable[str],
    name_of: Callable[[str], str | None],
    known: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return the names under which the model would find in a checkpoint the tensor that it calls `own`: the one like
    that of another layer, else the one that it had in an earlier checkpoint, by `known`, if others have the names that
    they had there, else the one beside its neighbours, else all that begin as names of the checkpoint do, the shortest
    first. `stored` are the checkpoint's names, and `name_of` maps them to the model's. Returns `own` if none is found.
    """
    stored = sorted(stored)
    for name in stored:
        if name_of(alike := _renumber(name, name_of(name), own)) == own:
            return [alike]
    if own in known and any(known.get(name_of(name) or "") == name for name in stored):
        return [known[own]]
    if (beside := _find_beside(own, stored, name_of)) is not None:
        return [beside]
    return _find_prefixed(own, stored, name_of) or [own]


def _find_prefixed(own: str, stored: Iterable[str], name_of: Callable[[str], str | None]) -> list[str]:
    """Return the names that begin as a stored one does and that the model calls `own`: the longest if the prefix has a
    part of `own`, else all, the shortest first."""
    prefixes = {""} | {name[: end + 1] for name in stored for end, char in enumerate(name) if char == "."}
    parts = own.split(".")
    for first in (*range(1, len(parts)), 0):  # the parts before `first` are among those of the prefix
        tail = ".".join(parts[first:])
        found = [prefix + tail for prefix in prefixes if name_of(prefix + tail) == own]
        if found:
            return [max(found, key=len)] if first else sorted(found, key=len)
    return []


def _find_beside(own: str, stored: Iterable[str], name_of: Callable[[str], str | None]) -> str | None:
    """Return a name that differs from that of a nearest neighbour in its last part, in one small number or in both, or
    in its last two parts, and that the model calls `own`. So names are found that patterns change, such as `0.weight`
    for `linear_1.weight`, or `mixer.q_proj.weight` for `self_attn.q_proj.weight`."""
    last, last_two = own.rpartition(".")[2], ".".join(own.split(".")[-2:])
    for name in _find_nearest(own, stored, name_of):
        for base in (name, f"{name.rpartition('.')[0]}.{last}", f"{'.'.join(name.split('.')[:-2])}.{last_two}"):
            numbered = (
                base[: at.start()] + str(n) + base[at.end() :] for at in _NUMBER.finditer(base) for n in range(10)
            )
            found = next((each for each in (base, *numbered) if name_of(each) == own), None)
            if found is not None:
                return found
    return None


def _find_nearest(own: str, stored: Iterable[str], name_of: Callable[[str], str | None]) -> list[str]:
    """Return the stored names whose names in the model share the most leading parts with `own`; at least one part."""
    parts = own.split(".")
    near: dict[int, list[str]] = {}
    for name in stored:
        if (model_name := name_of(name)) is not None:
            pairs = zip(parts, model_name.split("."), strict=False)
            near.setdefault(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), []).append(name)
    nearest = max(near, default=0)
    return near[nearest] if nearest else []


def _renumber(name: str, model_name: str | None, own: str) -> str:
    """Return the checkpoint's `name` with the numbers by which the model's name of it differs from `own`."""
    if model_name is None or _NUMBER.sub("*", model_name) != _NUMBER.sub("*", own):
        return name
    numbers = dict(zip(_NUMBER.findall(model_name), _NUMBER.findall(own), strict=True))
    return _NUMBER.sub(lambda found: numbers.get(found[0], found[0]), name)


def is_buffer(name: str) -> bool:
    """Return whether a tensor is a buffer of a Transformers module, such as a causal mask or a rotary table, by its
    name. Some checkpoints contain buffers; no model reads them."""
    return _BUFFER.search(name) is not None


class NoWeightsError(CheckpointError):
    """There are no safetensors files in a folder."""


def find_shards(
    folder: Path, index: dict[str, object] | None, *, single: str = SINGLE_FILE, index_file: str = INDEX_FILE
) -> list[Path]:
    """Return the safetensors files of a folder, those that `index`, the content of `index_file`, lists if there is one,
    else the `single` one. Raises `CheckpointError` if there are none (`NoWeightsError`), or one is missing or outside
    of the folder."""
    if index is not None:
        return _find_listed(folder, index, index_file)
    if (folder / single).is_file():
        return [folder / single]
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise NoWeightsError(
            f"{folder}: the weights are pickles ({pickles[0]}), which can run code and are not opened. "
            "Convert the checkpoint to safetensors"
        )
    raise NoWeightsError(f"{folder}: no weights: there is neither {single} nor {index_file}")


def _find_listed(folder: Path, index: dict[str, object], index_file: str) -> list[Path]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{folder / index_file}: 'weight_map' must map tensor names to file names")
    files = [inside(folder, name) for name in sorted(set(weight_map.values()))]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"{file}: the shard is missing, but {index_file} lists it: download it")
    return files


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether all numbers of a tensor are finite. Its largest magnitude, which is NaN where one number is, tells
    that in a quarter of the time of `isfinite` for each on the CPU."""
    return not tensor.numel() or math.isfinite(tensor.abs().amax().item())


def update_framed(digest: Any, *parts: bytes | memoryview) -> None:
    """Update a digest with each part, preceded by its length."""
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def read_header(file: Path, digest: Any) -> dict[str, StoredTensor]:
    """Read the header of a safetensors file. Update `digest` with its name, size, header and a sample of its data.

    Format: u64 little-endian header length, JSON header, data (https://github.com/huggingface/safetensors#format).
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(f"{file}: truncated or not a safetensors file ({size} bytes)")
            raw = stream.read(length)
            data_bytes = size - 8 - length
            samples = []
            for at in (0, data_bytes // 2, max(0, data_bytes - _SAMPLE_BYTES)):
                stream.seek(8 + length + at)
                samples.append(stream.read(_SAMPLE_BYTES))
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error}") from None
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: its safetensors header is damaged")
    header.pop("__metadata__", None)
    update_framed(digest, file.name.encode(), size.to_bytes(8, "little"), raw, *samples)
    found = {name: make_stored(file, name, entry, data_bytes) for name, entry in header.items()}
    _expect_apart(file, header)
    return found


def _expect_apart(file: Path, header: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` for two tensors that have bytes in common."""
    spans = sorted((*entry["data_offsets"], name) for name, entry in header.items())
    for (_, stop, name), (start, _, other) in pairwise(spans):
        if start < stop:
            raise CheckpointError(f"{file}: tensors {name!r} and {other!r} overlap")


def make_stored(file: Path, name: str, entry: Any, data_bytes: int) -> StoredTensor:
    """Return the tensor that an entry of a header describes, for data of so many bytes. Raises `CheckpointError`."""
    try:
        dtype, shape, (start, stop) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        is_sound = all(isinstance(n, int) and n >= 0 for n in (*shape, start, stop))
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise CheckpointError(f"{file}: header entry of tensor {name!r} is damaged")
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{file}: tensor {name!r} has unknown dtype {dtype!r}")
    if stop > data_bytes:
        raise CheckpointError(
            f"{file}: truncated: tensor {name!r} ends at byte {stop} of the data, which has {data_bytes}"
        )
    tensor = StoredTensor(file=file, dtype=dtype, shape=shape)
    if stop - start != tensor.num_bytes:
        raise CheckpointError(
            f"{file}: tensor {name!r} takes {stop - start} bytes, which does not fit its shape {list(shape)}"
        )
    return tensor
