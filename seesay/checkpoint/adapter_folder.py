"""A folder with a LoRA adapter as PEFT writes it (`adapter_config.json`, `adapter_model.safetensors`). It may be
hostile: everything in it is checked before it is used.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.checkpoint.fields import check_fields, read_count, read_number
from seesay.checkpoint.files import read_object
from seesay.checkpoint.tensors import PICKLE_SUFFIXES, StoredTensor, read_header, update_framed
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
_MAX_PATTERNS = 4096
_MATCH_TIMEOUT_S, _ALL_MATCHES_S = 1.0, 10.0
_PREFIX = "base_model.model."
_KEY = re.compile(r"(?P<module>.+)\.lora_(?:(?P<factor>[AB])\.weight|(?P<magnitude>magnitude_vector)(?:\.weight)?)")
_MAGNITUDE = "magnitude_vector"
_ID_BITS = 63
_SPELLINGS = (
    ("", ""),
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model.language_model."),
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
)
"""Beginnings of modules' names in Transformers, and what checkpoints have in their place."""
_NEUTRAL = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "lora_bias": False,
    "use_qalora": False,
    "modules_to_save": [],
    "trainable_token_indices": [],
    "target_parameters": [],
    "exclude_modules": [],
    "layer_replication": [],
}
"""Fields of the configuration whose other values are not supported. An empty list stands for null, too."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a module: scale · B A x, with A [rank, inputs] and B [outputs, rank] on the CPU.

    magnitude: float32 [outputs], the lengths that the rows of weight and product together get (Liu et al. 2024, DoRA);
    None: they keep theirs.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    magnitude: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """An adapter whose names and sizes are checked. modules: by the names that the base model's modules have in
    Transformers. base: the base model that the configuration names, if it does."""

    path: Path
    base: str | None
    modules: Mapping[str, LowRank]

    @classmethod
    def load(cls, path: str | Path) -> AdapterFolder:
        """Read an adapter. Raises `CheckpointError` that names the file, and the field or tensor that is wrong."""
        path = Path(path)
        config = _read_config(path)
        stored = _read_stored(path)
        pairs = _pair(path, stored)
        factors = dict(_read_tensors(path, stored))
        scales = _Scales(path / CONFIG_FILE, config)
        modules = {}
        for module, names in pairs.items():
            a, b = factors[names["A"]], factors[names["B"]]
            magnitude = factors.get(names.get(_MAGNITUDE, ""))
            _check_pair(path, module, a, b)
            _check_magnitude(path, module, magnitude, len(b), is_there=config.get("use_dora") is True)
            modules[module] = LowRank(a, b, scales.find(module, len(a)), magnitude)
        base = config.get("base_model_name_or_path")
        return cls(path, base if isinstance(base, str) and base else None, modules)

    @staticmethod
    def find_rank(path: str | Path) -> int:
        """Return the largest rank in a folder, of which this reads the names and sizes alone. Raises `CheckpointError`
        as `load` does."""
        stored = _read_stored(Path(path))
        return max(min(MAX_RANK, stored[names["A"]].shape[0]) for names in _pair(Path(path), stored).values())

    @property
    def max_rank(self) -> int:
        """The largest rank of its modules."""
        return max(len(module.a) for module in self.modules.values())

    def spell(self, module: str) -> Iterator[str]:
        """Yield the names that a module may have in the base model's checkpoint, the likeliest first."""
        for beginning, other in _SPELLINGS:
            if module.startswith(beginning):
                yield f"{other}{module.removeprefix(beginning)}"

    def make_id(self) -> int:
        """Return a number from 1 on that stands for the content: adapters that change a model alike have the same."""
        digest = hashlib.blake2b(digest_size=8)
        for name, module in sorted(self.modules.items()):
            head = f"{name} {module.scale!r} {module.a.dtype} {list(module.a.shape)} {module.b.dtype} {len(module.b)}"
            parts = (module.a, module.b) if module.magnitude is None else (module.a, module.b, module.magnitude)
            update_framed(digest, head.encode(), *map(_bytes_of, parts))
        return (int.from_bytes(digest.digest(), "little") >> (64 - _ID_BITS)) or 1


def _bytes_of(tensor: torch.Tensor) -> bytes:
    import torch

    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _read_config(path: Path) -> Mapping[str, Any]:
    file = path / CONFIG_FILE
    config = read_object(file)
    if config is None:
        raise CheckpointError(f"{path}: there is no {CONFIG_FILE}: give a folder that PEFT's save_pretrained wrote")
    present = {name: value for name, value in config.items() if value not in (None, [], {})}
    expected = {name: value if value != [] else None for name, value in _NEUTRAL.items()}
    try:
        check_fields(present, expected)
        read_count(config, "r", most=MAX_RANK)
        if not isinstance(config.get("use_dora"), bool | None):
            raise CheckpointError(f"use_dora must be true or false, got {config['use_dora']!r:.40}")
        for name in ("rank_pattern", "alpha_pattern"):
            _check_patterns(present, name)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None
    return config


def _check_patterns(config: Mapping[str, Any], name: str) -> None:
    patterns = config.get(name, {})
    if not isinstance(patterns, dict) or len(patterns) > _MAX_PATTERNS:
        raise CheckpointError(f"{name} must be an object of at most {_MAX_PATTERNS} patterns")


def _read_stored(path: Path) -> Mapping[str, StoredTensor]:
    if (path / WEIGHTS_FILE).is_file():
        return read_header(path / WEIGHTS_FILE, hashlib.blake2b())
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in PICKLE_SUFFIXES) if path.is_dir() else []
    if pickles:
        raise CheckpointError(
            f"{path}: the weights are a pickle ({pickles[0]}), which can run code and is not opened: save the adapter "
            "as safetensors"
        )
    raise CheckpointError(f"{path}: there is no {WEIGHTS_FILE}")


def _pair(path: Path, stored: Mapping[str, StoredTensor]) -> dict[str, dict[str, str]]:
    """Return the names of the factors A and B of each module, and that of its magnitude, if it has one."""
    found: dict[str, dict[str, str]] = {}
    for name, tensor in stored.items():
        match = _KEY.fullmatch(name.removeprefix(_PREFIX))
        if match is None:
            raise CheckpointError(
                f"{path / WEIGHTS_FILE}: tensor {name!r} is not supported: an adapter may have lora_A, lora_B and "
                "lora_magnitude_vector of linear layers, and nothing else"
            )
        _check_stored(path, name, tensor, num_axes=1 if match["magnitude"] else 2)
        found.setdefault(match["module"], {})[match["factor"] or match["magnitude"]] = name
    if not found:
        raise CheckpointError(f"{path / WEIGHTS_FILE}: it has no tensors")
    for module, factors in found.items():
        if missing := [factor for factor in "AB" if factor not in factors]:
            raise CheckpointError(f"{path / WEIGHTS_FILE}: lora_{missing[0]} of {module!r} is missing")
    return found


def _check_stored(path: Path, name: str, tensor: StoredTensor, *, num_axes: int) -> None:
    if len(tensor.shape) != num_axes or tensor.dtype not in ("BF16", "F16", "F32"):
        kind = "a vector" if num_axes == 1 else "a matrix"
        raise CheckpointError(
            f"{path / WEIGHTS_FILE}: tensor {name!r} is {tensor.dtype} {list(tensor.shape)}, it must be {kind} of "
            "BF16, F16 or F32"
        )


def _read_tensors(path: Path, stored: Mapping[str, StoredTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path / WEIGHTS_FILE), framework="pt", device="cpu") as reader:
            for name in stored:
                tensor = reader.get_tensor(name)
                if not tensor.isfinite().all():
                    raise CheckpointError(f"{path / WEIGHTS_FILE}: tensor {name!r} has numbers that are not finite")
                yield name, tensor
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {path / WEIGHTS_FILE}: {error}") from error


def _check_pair(path: Path, module: str, a: torch.Tensor, b: torch.Tensor) -> None:
    if not 1 <= len(a) <= MAX_RANK or b.shape[1] != len(a) or not a.shape[1] or not len(b):
        raise CheckpointError(
            f"{path / WEIGHTS_FILE}: lora_A {list(a.shape)} and lora_B {list(b.shape)} of {module!r} do not fit: both "
            f"have the rank in common, from 1 to {MAX_RANK}"
        )


def _check_magnitude(
    path: Path, module: str, magnitude: torch.Tensor | None, num_outputs: int, *, is_there: bool
) -> None:
    if (magnitude is not None) != is_there:
        found = "is missing" if is_there else "is there"
        raise CheckpointError(
            f"{path / WEIGHTS_FILE}: lora_{_MAGNITUDE} of {module!r} {found}, and {CONFIG_FILE} has use_dora: "
            f"{str(is_there).lower()}"
        )
    if magnitude is not None and len(magnitude) != num_outputs:
        raise CheckpointError(
            f"{path / WEIGHTS_FILE}: lora_{_MAGNITUDE} of {module!r} has {len(magnitude)} numbers, lora_B has "
            f"{num_outputs} outputs"
        )


class _Scales:
    """The factor of each module: alpha / rank (Hu et al. 2021), or alpha / √rank (Kalajdzievski 2023)."""

    def __init__(self, file: Path, config: Mapping[str, Any]) -> None:
        self._file, self._config = file, config
        self._seconds_left = _ALL_MATCHES_S
        self._alphas, self._ranks = config.get("alpha_pattern") or {}, config.get("rank_pattern") or {}

    def find(self, module: str, rank: int) -> float:
        """Return the factor of a module whose matrices have this rank. Raises `CheckpointError` where the
        configuration says another one."""
        try:
            expected = read_count(self._options(self._ranks, module, "r"), "r", most=MAX_RANK)
            alpha = read_number(self._options(self._alphas, module, "lora_alpha"), "lora_alpha", 8.0)
        except CheckpointError as error:
            raise CheckpointError(f"{self._file}: {error}") from None
        if rank != expected:
            raise CheckpointError(f"{self._file}: {module!r} has rank {rank}, the configuration says {expected}")
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def _options(self, patterns: Mapping[str, object], module: str, name: str) -> Mapping[str, object]:
        begun_s = time.thread_time()
        key = next((key for key in patterns if _matches(key, module)), None)
        self._seconds_left -= time.thread_time() - begun_s
        if self._seconds_left < 0:
            raise CheckpointError(f"its patterns take more than {_ALL_MATCHES_S:g} s for all modules")
        return self._config if key is None else {name: patterns[key]}


def _matches(pattern: str, module: str) -> bool:
    """Return whether a pattern, which ends a module's name, is for this module. Patterns may be hostile."""
    import regex

    try:
        return regex.match(rf"(?:.*\.)?(?:{pattern})$", module, timeout=_MATCH_TIMEOUT_S) is not None
    except (regex.error, TimeoutError) as error:
        raise CheckpointError(f"the pattern {pattern[:80]!r} cannot be used: {error}") from None
