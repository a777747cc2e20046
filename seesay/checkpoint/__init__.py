"""Find a model folder in the Hugging Face layout, read its JSON files, and read its tensors one by one.

This module knows file formats, not models. Nothing in a folder is trusted: sizes, offsets and paths are validated
before use, and pickles are never opened. Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.checkpoint.numbers import check_numbers
from seesay.checkpoint.quantization import Quantization, read_quantization
from seesay.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

DEMO_MODEL = "seesay-demo"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
HUB_PATTERNS = ("*.json", "*.safetensors", "tokenizer*", "*.jinja", "*.txt", "*.model", "*.tiktoken")

_MAX_TEXT_BYTES = 16 << 20
"""Largest JSON or text file that is read. The index of 100,000 tensors is half as large."""
_MAX_TOKENIZER_BYTES = 64 << 20
"""Largest file of a tokenizer. A tokenizer of 250,000 tokens is half as large."""
_MAX_HEADER_BYTES = 25 << 20
_SAMPLE_BYTES = 4096
_DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_BUFFER = re.compile(
    r"\.(inv_freq|cos_cached|sin_cached|masked_bias|position_ids)$|\.(self_attn|attn|attention)\.bias$"
)


def resolve_checkpoint(
    model_path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    download_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """Return the local folder of `model_path`: a folder, 'seesay-demo', or a hub id (downloaded if needed).

    revision: branch, tag or commit; download_dir: the cache folder. Both apply to hub ids only.
    Raises `CheckpointError` if there is no such folder or the download fails.
    """
    if not isinstance(model_path, str | os.PathLike):
        raise TypeError(f"model_path must be the path of a folder or a hub id, got {type(model_path).__name__}")
    name = os.fspath(model_path)
    if not name:
        raise CheckpointError(f"model path must not be empty: pass a folder, a hub id, or {DEMO_MODEL!r}")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name == DEMO_MODEL:
        return Path(__file__).parents[1] / "demo" / "checkpoint"
    if path.is_file():
        raise CheckpointError(f"model path {name!r} is a file: pass the folder that holds its config.json")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1 or "\\" in name:
        raise CheckpointError(
            f"model path {name!r}: no such folder. Pass a folder with config.json and safetensors files, "
            f"a hub id like 'Qwen/Qwen2.5-VL-3B-Instruct', or {DEMO_MODEL!r}"
        )
    return _download(name, revision=revision, download_dir=download_dir)


def _download(repo_id: str, *, revision: str | None, download_dir: str | os.PathLike[str] | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    at = f" at revision {revision!r}" if revision else ""
    advice = "If you have the model on disk, pass the path of its folder instead of the id."
    try:
        folder = snapshot_download(
            repo_id,
            revision=revision,
            cache_dir=None if download_dir is None else os.fspath(download_dir),
            allow_patterns=list(HUB_PATTERNS),
            tqdm_class=_make_bar_class(),
        )
    except HFValidationError as error:
        raise CheckpointError(f"model path {repo_id!r} is neither a folder nor a hub id: {error}") from None
    except LocalEntryNotFoundError:
        raise CheckpointError(
            f"model {repo_id!r}{at} is not in the local cache and the Hugging Face hub cannot be reached. {advice}"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"model {repo_id!r}{at} cannot be downloaded: {reason} {advice}") from None
    return Path(folder)


def _make_bar_class() -> type:
    """Return the class of the hub's progress bars. They are hidden if standard error is not a terminal."""
    from huggingface_hub.utils.tqdm import tqdm

    class TerminalBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if not sys.stderr.isatty():
                kwargs["disable"] = True
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

    return TerminalBar


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """The place of one tensor: its file, its dtype as safetensors names it, and its shape."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


class TensorSlices:
    """Reads one tensor of an open safetensors file, or a region of it."""

    def __init__(self, reader: Any, name: str, shape: tuple[int, ...]) -> None:
        self._reader, self._name, self._shape = reader, name, shape

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


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One model folder. `config` is config.json merged with the overrides. `stored` maps tensor names to places.
    `quantization`: how linear layers are stored or to be quantized; None for plain weights."""

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    stored: Mapping[str, StoredTensor] = field(repr=False)
    quantization: Quantization | None
    revision_digest: bytes = field(repr=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        hf_overrides: Mapping[str, Any] | None = None,
        *,
        quantization: str | None = None,
    ) -> Checkpoint:
        """Read the folder's JSON files and the headers of its safetensors files. Tensors are not read yet.

        quantization: the format that plain weights get while they are loaded ('fp8').
        Raises `CheckpointError` that names the file or tensor for a missing config.json, missing safetensors or shards,
        a truncated file, an index that points out of the folder, an unknown dtype or quantization format.
        """
        path = Path(path)
        config = _read_object(path / "config.json")
        if config is None:
            raise CheckpointError(f"{path}: not a model folder: it has no config.json")
        merged = _merge(config, hf_overrides or {}, where="hf_overrides")
        quantized = read_quantization(path / "config.json", merged, quantization)
        digest = hashlib.blake2b(digest_size=32)
        _update_framed(digest, json.dumps(merged, sort_keys=True, default=str).encode())
        stored: dict[str, StoredTensor] = {}
        index = _read_object(path / INDEX_FILE)
        files = _shard_files(path, index)
        for file in files:
            for name, tensor in _read_header(file, digest).items():
                if name in stored:
                    raise CheckpointError(f"{file}: tensor {name!r} is also in {stored[name].file.name}")
                stored[name] = tensor
        if index is not None:
            for name, shard in index["weight_map"].items():
                if name not in stored or stored[name].file.name != Path(shard).name:
                    raise CheckpointError(
                        f"{path / shard}: tensor {name!r} is missing, but {INDEX_FILE} lists it in this file"
                    )
        return cls(
            path=path,
            config=merged,
            generation_config=_read_object(path / "generation_config.json") or {},
            stored=stored,
            quantization=quantized,
            revision_digest=digest.digest(),
        )

    @property
    def architecture(self) -> str:
        """The first entry of config.json's `architectures`, or else the base model of its `model_type`."""
        names = self.config.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"{self.path / 'config.json'}: architectures must be a list of names, got {names!r}")
        return names[0] if names else f"{self._config_class.__name__.removesuffix('Config')}Model"

    @property
    def _config_class(self) -> type[PretrainedConfig]:
        from transformers import CONFIG_MAPPING

        kind = self.config.get("model_type")
        if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
            raise CheckpointError(
                f"{self.path / 'config.json'}: model_type {kind!r} is unknown to the installed transformers "
                "(code from checkpoints is not run): try a newer transformers"
            )
        config_class: type[PretrainedConfig] = CONFIG_MAPPING[kind]
        return config_class

    @cached_property
    def _hf_config(self) -> PretrainedConfig:
        config_class = self._config_class
        check_numbers(self.path / "config.json", self.config)
        try:
            return config_class.from_dict(_with_known_names(json.loads(json.dumps(self.config))))
        except Exception as error:
            kind = self.config["model_type"]
            raise CheckpointError(f"{self.path / 'config.json'}: not a {kind!r} config: {error}") from error

    def hf_config(self) -> PretrainedConfig:
        """The Transformers config, with overrides applied. Never runs code of the checkpoint."""
        return self._hf_config

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Turn exceptions inside the block, which builds the model from this folder, into `CheckpointError`. Our own
        errors and those of options are passed on unchanged."""
        try:
            yield
        except (CheckpointError, ConfigError):
            raise
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise CheckpointError(f"{self.path}: the model cannot be built from its files: {reason}") from error

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in the file `name` of the folder, or None if there is no such file."""
        return _read_object(_inside(self.path, name))

    def tensor_names(self) -> frozenset[str]:
        """Return the names of all tensors in the folder."""
        return frozenset(self.stored)

    def slices(self, names: Iterable[str], device: torch.device | str) -> Iterator[tuple[str, TensorSlices]]:
        """Open tensors one at a time, file by file, to read all or part of each directly to `device`.

        A CPU tensor may share memory with the mapped file: copy it to keep it. Raises `CheckpointError` that names the
        tensor or file. On a terminal, reading for more than a second shows a progress bar.
        """
        from safetensors import SafetensorError, safe_open
        from tqdm import tqdm

        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.find(name).file, []).append(name)
        total = sum(map(len, by_file.values()))
        with tqdm(total=total, desc="loading weights", unit="tensor", disable=None, delay=1.0, leave=False) as bar:
            for file, wanted in by_file.items():
                try:
                    with safe_open(str(file), framework="pt", device=str(device)) as reader:
                        for name in wanted:
                            yield name, TensorSlices(reader, name, self.stored[name].shape)
                            bar.update()
                except (SafetensorError, OSError) as error:
                    raise CheckpointError(f"cannot read {file}: {error}") from error

    def find(self, name: str) -> StoredTensor:
        """Return the place of one tensor. Raises `CheckpointError` that names it if it is missing."""
        try:
            return self.stored[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: tensor {name!r} is missing from the checkpoint") from None


def guess_stored_name(own: str, stored_as: Mapping[str, str]) -> str:
    """Guess the checkpoint's name of the tensor that the model names `own`, by the names of its neighbors. `stored_as`
    maps the model's names to the checkpoint's. Returns `own` if there is no similar name."""
    module = own.partition(".")[0]
    for neighbour, stored in stored_as.items():
        if neighbour.partition(".")[0] == module and stored.endswith(neighbour):
            return stored.removesuffix(neighbour) + own
    return own


def is_buffer(name: str) -> bool:
    """Return whether a tensor is a buffer of a Transformers module, such as a causal mask or a rotary table, by its
    name. Some checkpoints contain buffers; no model reads them."""
    return _BUFFER.search(name) is not None


def _with_known_names(config: dict[str, Any]) -> dict[str, Any]:
    """Replace, in place, values that Transformers knows by another name: rotary scaling 'su' is 'longrope'."""
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for rotary in (part.get("rope_scaling"), part.get("rope_parameters")):
            for key in ("type", "rope_type"):
                if isinstance(rotary, dict) and rotary.get(key) == "su":
                    rotary[key] = "longrope"
    return config


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            merged[key] = _merge(inner, value, where=f"{where}.{key}")
        elif isinstance(inner, Mapping) and value is not None:
            raise CheckpointError(f"{where}.{key} must be a dict, as in config.json, got {value!r}")
        else:
            merged[key] = value
    return merged


def read_text(file: Path) -> str:
    """Return the content of a file of a model folder. Raises `CheckpointError` if it is too large or not a regular file
    (reading a pipe or a device may never end), and OSError or UnicodeDecodeError if it cannot be read."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # `open` would name a folder by its descriptor
            raise CheckpointError(f"{file}: not a regular file")
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(_MAX_TEXT_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > _MAX_TEXT_BYTES:
        raise _too_large(file, _MAX_TEXT_BYTES)
    return data.decode()


def check_tokenizer_files(folder: Path, names: Iterable[str]) -> None:
    """Check the files `names`, which other libraries will read. Raises `CheckpointError` for an existing file that
    `read_text` would refuse, with the larger size limit of tokenizers."""
    for file in (folder / name for name in names):
        try:
            found = file.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error}") from None
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{file}: not a regular file")
        if found.st_size > _MAX_TOKENIZER_BYTES:
            raise _too_large(file, _MAX_TOKENIZER_BYTES)


def _too_large(file: Path, most: int) -> CheckpointError:
    return CheckpointError(f"{file}: has more than {most} bytes, the limit for a file of this kind")


def _read_object(file: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(read_text(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{file}: must hold a JSON object, got a {type(data).__name__}")
    return data


def _inside(folder: Path, name: str) -> Path:
    """Return `folder / name`. Raises `CheckpointError` if `name` is absolute or has '..'.

    Symbolic links may lead out of the folder: the hub's cache is made of links to files beside it.
    """
    if not name or Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
        raise CheckpointError(f"{folder}: file name {name!r} points out of the folder")
    return folder / name


def _shard_files(folder: Path, index: dict[str, Any] | None) -> list[Path]:
    if index is not None:
        weight_map = index.get("weight_map")
        is_map = isinstance(weight_map, dict) and all(isinstance(v, str) for v in weight_map.values())
        if not isinstance(weight_map, dict) or not is_map:
            raise CheckpointError(f"{folder / INDEX_FILE}: 'weight_map' must map tensor names to file names")
        files = [_inside(folder, name) for name in sorted(set(weight_map.values()))]
        for file in files:
            if not file.is_file():
                raise CheckpointError(f"{file}: the shard is missing, but {INDEX_FILE} lists it")
        return files
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise CheckpointError(
            f"{folder}: the weights are pickles ({pickles[0]}), which can run code and are not opened. "
            "Convert the checkpoint to safetensors"
        )
    raise CheckpointError(f"{folder}: no weights: there is neither {SINGLE_FILE} nor {INDEX_FILE}")


def _update_framed(digest: Any, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _read_header(file: Path, digest: Any) -> dict[str, StoredTensor]:
    """Read the header of a safetensors file. Update `digest` with its name, size, header and a sample of its data.

    Format: u64 little-endian header length, JSON header, data (https://github.com/huggingface/safetensors#format).
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(f"{file}: truncated or not a safetensors file ({size} bytes)")
        raw = stream.read(length)
        data_bytes = size - 8 - length
        samples = []
        for at in (0, data_bytes // 2, max(0, data_bytes - _SAMPLE_BYTES)):
            stream.seek(8 + length + at)
            samples.append(stream.read(_SAMPLE_BYTES))
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: its safetensors header is damaged")
    header.pop("__metadata__", None)
    _update_framed(digest, file.name.encode(), size.to_bytes(8, "little"), raw, *samples)
    return {name: _stored_tensor(file, name, entry, data_bytes) for name, entry in header.items()}


def _stored_tensor(file: Path, name: str, entry: Any, data_bytes: int) -> StoredTensor:
    try:
        dtype, shape, (start, stop) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        is_sound = all(isinstance(n, int) and n >= 0 for n in (*shape, start, stop))
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise CheckpointError(f"{file}: header entry of tensor {name!r} is damaged")
    if dtype not in _DTYPE_BYTES:
        raise CheckpointError(f"{file}: tensor {name!r} has unknown dtype {dtype!r}")
    if stop > data_bytes:
        raise CheckpointError(
            f"{file}: truncated: tensor {name!r} ends at byte {stop} of the data, which has {data_bytes}"
        )
    if stop - start != math.prod(shape) * _DTYPE_BYTES[dtype]:
        raise CheckpointError(
            f"{file}: tensor {name!r} takes {stop - start} bytes, which does not fit its shape {list(shape)}"
        )
    return StoredTensor(file=file, dtype=dtype, shape=shape)
