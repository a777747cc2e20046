"""A folder with a LoRA adapter as PEFT writes it (`adapter_config.json`, `adapter_model.safetensors`). It may be
hostile: everything in it is checked before it is used.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.checkpoint.fields import check_fields, read_count, read_number
from seesay.checkpoint.files import read_object
from seesay.checkpoint.target_parameters import TargetParameters, split
from seesay.checkpoint.tensors import PICKLE_SUFFIXES, StoredTensor, is_finite, read_header, update_framed
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512
_MAX_EXPERTS = 4096
_MAX_PATTERNS = 4096
_MATCH_TIMEOUT_S, _ALL_MATCHES_S = 1.0, 10.0
_PREFIX = "base_model.model."
_KEY = re.compile(
    r"(?P<module>.+)\.(?:lora_(?:(?P<factor>[AB])\.weight|(?P<magnitude>magnitude_vector)(?:\.weight)?)"
    r"|lora_embedding_(?P<table>[AB]))"
)
_SAVED_KEY = re.compile(r"(?P<module>(?:(?!lora_|modules_to_save|token_adapter).)+?)\.(?:base_layer\.)?weight")
"""Whole weights: PEFT writes that of a layer with an adapter as one of its `base_layer`."""
_COPY = re.compile(r"(?P<module>.+)\.(?:original_module|modules_to_save)\.weight")
"""Tensors that PEFT writes, where tokens were added, beside the weight of a module that it saves."""
_EXPERTS = re.compile(r"\.experts(\.|$)")
_MAGNITUDE, _SAVED, _TABLE_ENDING = "magnitude_vector", "weight", ".lora_embedding_A"
_ID_BITS = 63
_SPELLINGS = (
    ("", ""),
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model.language_model."),
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
    ("model.", ""),
)
"""Beginnings of modules' names in Transformers, and what checkpoints have in their place."""
_NEUTRAL = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "lora_bias": False,
    "use_qalora": False,
    "trainable_token_indices": [],
    "exclude_modules": [],
    "layer_replication": [],
}
"""Fields of the configuration whose other values are not supported. An empty list stands for null, too."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a module: scale · B A x, with A [rank, inputs] and B [outputs, rank] on the CPU.

    magnitude: float32 [outputs], the lengths that the rows of weight and product together get (Liu et al. 2024, DoRA);
    None: they keep theirs. is_stacked: it is one of many that the folder has in one for a parameter of all experts.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    magnitude: torch.Tensor | None = None
    is_stacked: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return len(self.b), self.a.shape[1]

    def turn(self) -> LowRank:
        """Return the product whose matrix is the transpose of this one's."""
        return replace(self, a=self.b.t(), b=self.a.t())


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """An adapter whose names and sizes are checked. modules: by the names that the base model's modules have in
    Transformers. An embedding table [tokens, hidden] is like a linear layer whose weight it is. saved: the weights
    [outputs, inputs] of modules that the adapter replaces (`modules_to_save`, resized embeddings). is_tied: where the
    base model's head is its table, so is that of the adapter. base: the base model
    that the configuration names, if it does."""

    path: Path
    base: str | None
    modules: Mapping[str, LowRank]
    saved: Mapping[str, torch.Tensor] = field(default_factory=dict)
    is_tied: bool = False

    @classmethod
    def load(cls, path: str | Path, *, takes_saved: bool = False) -> AdapterFolder:
        """Read an adapter. Not `takes_saved`: one that replaces weights is refused. Raises `CheckpointError` that names
        the file, and the field or tensor that is wrong."""
        path = Path(path)
        config = _read_config(path)
        stored = _read_stored(path)
        pairs = _pair(path, stored)
        if not takes_saved:
            _refuse_saved(path, pairs)
        factors = dict(_read_tensors(path, stored))
        modules = _read_modules(path, config, pairs, factors)
        base, is_tied = config.get("base_model_name_or_path"), config.get("ensure_weight_tying") is True
        saved = _pick_saved(pairs, factors)
        return cls(path, base if isinstance(base, str) and base else None, modules, saved, is_tied)

    @staticmethod
    def find_rank(path: str | Path) -> int:
        """Return the largest rank in a folder, of which this reads the names and sizes alone. Raises `CheckpointError`
        as `load` does."""
        path = Path(path)
        config, stored = _read_config(path), _read_stored(path)
        scales, parameters = _Scales(path / CONFIG_FILE, config), TargetParameters.read(config)
        found = [1]
        for module, names in _pair(path, stored).items():
            if (parameter := parameters.find(module)) is not None:
                found.append(scales.find_rank(parameter))
            elif "A" in names:
                found.append(min(MAX_RANK, stored[names["A"]].shape[0]))
        return max(found)

    @staticmethod
    def has_experts(path: str | Path) -> bool:
        """Return whether an adapter changes experts, by the names in its folder. Raises `CheckpointError` as `load`
        does."""
        return any(_EXPERTS.search(module) for module in _pair(Path(path), _read_stored(Path(path))))

    @property
    def max_rank(self) -> int:
        """The largest rank of its modules."""
        return max((len(module.a) for module in self.modules.values()), default=0)

    @property
    def origin(self) -> str:
        """What an error says of the model that it was made for, if that is known."""
        return "" if self.base is None else f" (it was made for {self.base})"

    @property
    def names(self) -> frozenset[str]:
        """The modules that it changes."""
        return frozenset(self.modules) | frozenset(self.saved)

    def pick(self, names: Container[str], *, others: bool = False) -> AdapterFolder:
        """Return the adapter with the modules of these names alone, or with all `others`."""
        modules = {name: module for name, module in self.modules.items() if (name in names) != others}
        saved = {name: weight for name, weight in self.saved.items() if (name in names) != others}
        return replace(self, modules=modules, saved=saved)

    def spell(self, module: str) -> Iterator[str]:
        """Yield the names that a module may have in the base model's checkpoint, the likeliest first."""
        for beginning, other in _SPELLINGS:
            if module.startswith(beginning):
                yield f"{other}{module.removeprefix(beginning)}"

    def make_id(self) -> int:
        """Return a number from 1 on that stands for the content: adapters that change a model alike have the same."""
        digest = hashlib.blake2b(b"tied" if self.is_tied else b"", digest_size=8)
        for name, module in sorted(self.modules.items()):
            head = f"{name} {module.scale!r} {module.a.dtype} {list(module.a.shape)} {module.b.dtype} {len(module.b)}"
            parts = (module.a, module.b) if module.magnitude is None else (module.a, module.b, module.magnitude)
            update_framed(digest, head.encode(), *map(_bytes_of, parts))
        for name, weight in sorted(self.saved.items()):
            head = f"{name} {weight.dtype} {list(weight.shape)}"
            update_framed(digest, b"saved", head.encode(), _bytes_of(weight))
        return (int.from_bytes(digest.digest(), "little") >> (64 - _ID_BITS)) or 1


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    data: memoryview = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
    return data


def _read_config(path: Path) -> Mapping[str, Any]:
    file = path / CONFIG_FILE
    config = read_object(file)
    if config is None:
        raise CheckpointError(f"{path}: there is no {CONFIG_FILE}: give a folder that PEFT's save_pretrained wrote")
    present = {name: value for name, value in config.items() if value not in (None, [], {})}
    expected = {name: value if value != [] else None for name, value in _NEUTRAL.items()}
    try:
        TargetParameters.read(present)
        check_fields(present, expected)
        read_count(config, "r", most=MAX_RANK)
        if not isinstance(config.get("use_dora"), bool | None):
            raise CheckpointError(f"use_dora must be true or false, got {config['use_dora']!r:.40}")
        for name in ("rank_pattern", "alpha_pattern"):
            _check_patterns(present, name)
        _check_saved(present.get("modules_to_save", []))
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None
    return config


def _check_patterns(config: Mapping[str, Any], name: str) -> None:
    patterns = config.get(name, {})
    if not isinstance(patterns, dict) or len(patterns) > _MAX_PATTERNS:
        raise CheckpointError(f"{name} must be an object of at most {_MAX_PATTERNS} patterns")


def _check_saved(names: object) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"modules_to_save must be a list of names, got {names!r:.40}")


def _refuse_saved(path: Path, pairs: Mapping[str, Mapping[str, str]]) -> None:
    if saved := [module for module, names in pairs.items() if _SAVED in names]:
        raise CheckpointError(
            f"{path / WEIGHTS_FILE}: it has the whole weight of {saved[0]!r} (modules_to_save), which is not supported "
            "here"
        )


def _pick_saved(
    pairs: Mapping[str, Mapping[str, str]], tensors: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    return {module: tensors[names[_SAVED]] for module, names in pairs.items() if _SAVED in names}


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
    """Return the names of the factors A and B of each module, of its magnitude, and of its whole weight, as far as it
    has them."""
    found: dict[str, dict[str, str]] = {}
    for name, tensor in stored.items():
        own = name.removeprefix(_PREFIX)
        if (copy := _COPY.fullmatch(name)) is not None and f"{copy['module']}.weight" in stored:
            continue
        if (match := _KEY.fullmatch(own) or _SAVED_KEY.fullmatch(own)) is None:
            raise CheckpointError(
                f"{path / WEIGHTS_FILE}: tensor {name!r} is not supported: an adapter may have lora_A, lora_B and "
                "lora_magnitude_vector of linear layers, lora_embedding_A and _B, and whole weights, and nothing else"
            )
        module = match["module"]
        kind = _SAVED if match.lastgroup in (None, "module") else match[match.lastgroup]
        _check_stored(path, name, tensor, num_axes=1 if kind == _MAGNITUDE else 2)
        if kind in found.setdefault(module, {}):
            raise CheckpointError(f"{path / WEIGHTS_FILE}: {found[module][kind]!r} and {name!r} are the same")
        found[module][kind] = name
    _check_complete(path, found)
    return found


def _check_complete(path: Path, found: Mapping[str, Mapping[str, str]]) -> None:
    """Raise `CheckpointError` for a module with one factor alone, and where there is none at all."""
    if not found:
        raise CheckpointError(f"{path / WEIGHTS_FILE}: it has no tensors")
    for module, factors in found.items():
        if factors.keys() != {_SAVED} and (missing := [factor for factor in "AB" if factor not in factors]):
            raise CheckpointError(f"{path / WEIGHTS_FILE}: lora_{missing[0]} of {module!r} is missing")


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
                if not is_finite(tensor):
                    raise CheckpointError(f"{path / WEIGHTS_FILE}: tensor {name!r} has numbers that are not finite")
                yield name, tensor
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {path / WEIGHTS_FILE}: {error}") from error


def _read_modules(
    path: Path,
    config: Mapping[str, Any],
    pairs: Mapping[str, Mapping[str, str]],
    factors: Mapping[str, torch.Tensor],
) -> dict[str, LowRank]:
    """Return the products of all modules, and of the experts whose weights are one parameter."""
    scales, parameters = _Scales(path / CONFIG_FILE, config), TargetParameters.read(config)
    modules: dict[str, LowRank] = {}
    adapted = parameters.find_all(path, [module for module, names in pairs.items() if "A" in names])
    for module, parameter in adapted.items():
        a, b, magnitude = (factors.get(pairs[module].get(kind, "")) for kind in ("A", "B", _MAGNITUDE))
        assert a is not None and b is not None
        if pairs[module]["A"].endswith(_TABLE_ENDING):
            a, b = b.t(), a.t()
        if parameter is None:
            _check_pair(path, module, a, b, most=MAX_RANK)
            _check_magnitude(path, module, magnitude, len(b), is_there=config.get("use_dora") is True)
            found = {module: LowRank(a, b, scales.find(module, len(a)), magnitude)}
        else:
            _check_pair(path, module, a, b, most=MAX_RANK * _MAX_EXPERTS)
            _check_magnitude(path, module, magnitude, len(b), is_there=False)
            found = _split(path, parameter, a, b, scales)
        if twice := modules.keys() & found.keys():
            raise CheckpointError(f"{path / WEIGHTS_FILE}: there are two adapters of {min(twice)!r}")
        modules |= found
    return modules


def _split(path: Path, parameter: str, a: torch.Tensor, b: torch.Tensor, scales: _Scales) -> dict[str, LowRank]:
    """Return the products of each expert that the factors of a parameter of all experts are for."""
    rank = scales.find_rank(parameter)
    try:
        parts = list(split(parameter, a, b, rank))
    except CheckpointError as error:
        raise CheckpointError(f"{path / WEIGHTS_FILE}: {error}") from None
    scale = scales.find(parameter, rank)
    return {name: LowRank(own_a, own_b, scale, is_stacked=True) for name, own_a, own_b in parts}


def _check_pair(path: Path, module: str, a: torch.Tensor, b: torch.Tensor, *, most: int) -> None:
    if not 1 <= len(a) <= most or b.shape[1] != len(a) or not a.shape[1] or not len(b):
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
        expected = self.find_rank(module)
        try:
            alpha = read_number(self._options(self._alphas, module, "lora_alpha"), "lora_alpha", 8.0)
        except CheckpointError as error:
            raise CheckpointError(f"{self._file}: {error}") from None
        if rank != expected:
            raise CheckpointError(f"{self._file}: {module!r} has rank {rank}, the configuration says {expected}")
        return alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def find_rank(self, module: str) -> int:
        """Return the rank that the configuration says of a module."""
        try:
            return read_count(self._options(self._ranks, module, "r"), "r", most=MAX_RANK)
        except CheckpointError as error:
            raise CheckpointError(f"{self._file}: {error}") from None

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
