"""One model folder: its configuration, and its tensors one by one."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seesay.checkpoint.config_cache import keep, make_key, read_cached
from seesay.checkpoint.file_values import check_file
from seesay.checkpoint.files import inside, read_object
from seesay.checkpoint.known_classes import find_known_type
from seesay.checkpoint.layouts.config_conversion import ConfigReader, ConvertedConfig, read_as_known
from seesay.checkpoint.layouts.original_mistral import (
    CONFIG_FILE,
    PARAMS_FILE,
    find_consolidated,
    read_stand_ins,
    rename_tensors,
)
from seesay.checkpoint.model_config import ModelConfig, as_plain, list_options
from seesay.checkpoint.numbers import check_numbers
from seesay.checkpoint.overrides import apply_overrides, check_added
from seesay.checkpoint.quantization import InFlight, Quantization, read_quantization
from seesay.checkpoint.referenced_models import complete_config, find_other_tensors
from seesay.checkpoint.remote_code import CONFIG, RemoteCode
from seesay.checkpoint.tensors import (
    INDEX_FILE,
    StoredTensor,
    TensorSlices,
    find_shards,
    read_header,
    update_framed,
)
from seesay.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

_KEPT_CONFIG = "config-4"
"""The number counts what this module keeps of a configuration: raise it with a change."""

_WORD_BITS = 32
"""Of a word of packed weights."""

_ADVICE: Mapping[str, str] = {
    "fp8": ": to quantize them while they are loaded, set quantization='fp8'",
    "awq": ": `seesay lite auto_awq` quantizes them",
    "gptq": ": `seesay lite auto_gptq` quantizes them",
}
"""Advice for a checkpoint with plain weights, by the format that was expected."""


class _Described(NamedTuple):
    """A model's configuration as it is kept on disk."""

    config: ModelConfig
    text: ModelConfig
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One model folder. `config` is config.json merged with the overrides. `stored` maps tensor names to places.
    `added`: the overrides that config.json itself has no field for. `quantization`: how linear layers are stored or to
    be quantized; None for plain weights. `readers`: what reads config.json, by the architecture in it, of families from
    outside of this package. `code`: the Python that makes configuration and model; None where Transformers has both, or
    no code may be run. `runs_code`: whether that of processors may be. `remedy`: what to do if a tensor is missing.
    `stand_ins`: JSON files of Transformers' layout, by name, that stand for those of a folder in Mistral's own."""

    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    stored: Mapping[str, StoredTensor] = field(repr=False)
    quantization: Quantization | None
    revision_digest: bytes = field(repr=False)
    added: Mapping[str, Any] = field(default_factory=dict, repr=False)
    readers: Mapping[str, ConfigReader] = field(default_factory=dict, repr=False)
    code: RemoteCode | None = None
    runs_code: bool = False
    remedy: str = "download the checkpoint again"
    stand_ins: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        hf_overrides: Mapping[str, object] | None = None,
        *,
        quantization: InFlight | None = None,
        readers: Mapping[str, ConfigReader] | None = None,
        runs_code: bool = False,
    ) -> Checkpoint:
        """Read the folder's JSON files and the headers of its safetensors files. Tensors are not read yet.

        quantization: the format that plain weights get while they are loaded.
        Raises `CheckpointError` that names the file or tensor for a missing config.json, missing safetensors or shards,
        a truncated file, an index that points out of the folder, an unknown dtype or quantization format.
        """
        made = cls.load_config(path, hf_overrides, quantization=quantization, readers=readers, runs_code=runs_code)
        return made._find_tensors()

    @classmethod
    def load_config(
        cls,
        path: str | os.PathLike[str],
        hf_overrides: Mapping[str, object] | None = None,
        *,
        quantization: InFlight | None = None,
        readers: Mapping[str, ConfigReader] | None = None,
        runs_code: bool = False,
    ) -> Checkpoint:
        """Read the folder's JSON files alone: as `load`, but without tensors."""
        path = Path(path)
        stand_ins = read_stand_ins(path)
        config = stand_ins.get(CONFIG_FILE) or read_object(path / CONFIG_FILE)
        if config is None:
            raise CheckpointError(f"{path}: not a model folder: it has no config.json, nor Mistral's params.json")
        try:
            config = complete_config(config)
        except CheckpointError as error:
            raise CheckpointError(f"{path / CONFIG_FILE}: {error}") from None
        merged, added = apply_overrides(config, hf_overrides or {})
        file = path / (PARAMS_FILE if stand_ins else CONFIG_FILE)
        check_file(file, merged)
        quantized = read_quantization(file, merged, quantization)
        return cls(
            path=path,
            config=merged,
            generation_config=_read_checked(path / "generation_config.json") or {},
            stored={},
            quantization=quantized,
            revision_digest=b"",
            added=added,
            readers=readers or {},
            runs_code=runs_code,
            stand_ins=stand_ins,
        )

    def _find_tensors(self) -> Checkpoint:
        """Return the checkpoint with what the headers of its safetensors files say."""
        path = self.path
        digest = hashlib.blake2b(digest_size=32)
        update_framed(digest, _serialize(self.config))
        stored: dict[str, StoredTensor] = {}
        index = None if self.stand_ins else read_object(path / INDEX_FILE)
        files = find_consolidated(path) if self.stand_ins else find_shards(path, index)
        for file in files:
            for name, tensor in read_header(file, digest).items():
                if name in stored:
                    raise CheckpointError(f"{file}: tensor {name!r} is also in {stored[name].file.name}")
                stored[name] = tensor
        if index is not None:
            _expect_listed(path, index["weight_map"], stored)
        if self.stand_ins:
            stored = rename_tensors(stored, self.config)
        stored |= find_other_tensors(self.config, stored, digest)
        return replace(self, stored=stored, revision_digest=digest.digest())

    @property
    def config_file(self) -> Path:
        """The file that says which model this is, for messages."""
        return self.path / (PARAMS_FILE if self.stand_ins else CONFIG_FILE)

    @property
    def architecture(self) -> str:
        """The first entry of config.json's `architectures`, or else the class that its `auto_map` names, or that of
        Transformers for its `model_type`; of the one that it is read as, where `ORIGINALS` has it."""
        config = self._converted.config if self._own_reader is None else self.config
        names = config.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"{self.config_file}: architectures must be a list of names, got {names!r}")
        if names:
            return str(names[0])
        if (code := self.remote_code) is not None:
            return code.architecture
        return self._find_architecture()

    def _find_architecture(self) -> str:
        """Return the class that Transformers makes of this `model_type`, of texts with pictures or of texts."""
        from transformers.models.auto import modeling_auto

        _ = self._config_class  # raises for an unknown one
        kind = self._converted.config["model_type"]
        for table in (
            modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
            modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        ):
            if kind in table:
                return str(table[kind] if isinstance(table[kind], str) else table[kind][0])
        raise CheckpointError(
            f"{self.config_file}: architectures is missing, and Transformers has no model of texts, or of "
            f"texts with pictures, of model_type {kind!r}"
        )

    @property
    def remote_code(self) -> RemoteCode | None:
        """The code in the folder that config.json names for the model, whether it may be run or not."""
        return RemoteCode.find(self.path, self.config)

    @property
    def tower_type(self) -> str:
        """The `model_type` in config.json's vision_config, or in that which it is read as; empty without one."""
        vision = self._converted.config.get("vision_config")
        kind = vision.get("model_type") if isinstance(vision, dict) else None
        return kind if isinstance(kind, str) else ""

    @property
    def _config_class(self) -> type[PretrainedConfig]:
        from transformers import CONFIG_MAPPING

        if self.code is not None and CONFIG in self.code.classes:
            return self.code.load_class(CONFIG)
        kind = self._known_type or self._converted.config.get("model_type")
        if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
            raise CheckpointError(
                f"{self.config_file}: model_type {kind!r} is unknown to the installed transformers "
                "(code from checkpoints is not run): try a newer transformers"
            )
        config_class: type[PretrainedConfig] = CONFIG_MAPPING[kind]
        return config_class

    @cached_property
    def _known_type(self) -> str | None:
        """The `model_type` of the class that `architectures` names, where the folder's own is unknown."""
        from transformers import CONFIG_MAPPING

        config = self._converted.config
        kind = config.get("model_type")
        if self.code is not None or not isinstance(kind, str) or kind in CONFIG_MAPPING:
            return None
        try:
            return find_known_type(config)
        except CheckpointError as error:
            raise CheckpointError(f"{self.config_file}: {error}") from None

    @property
    def image_processor(self) -> Mapping[str, Any] | None:
        """The settings of the image processor, where the published code does not read them from files."""
        return self._converted.image_processor

    @property
    def _own_reader(self) -> ConfigReader | None:
        """The reader of config.json of a family from outside, which is found by the architecture in it."""
        names = self.config.get("architectures")
        first = names[0] if isinstance(names, list) and names else None
        return self.readers.get(first) if isinstance(first, str) else None

    @cached_property
    def _converted(self) -> ConvertedConfig:
        if (read := self._own_reader) is not None:
            with self.blamed():
                return read(self.config)
        try:
            return read_as_known(self.config)
        except CheckpointError as error:
            raise CheckpointError(f"{self.config_file}: {error}") from None

    @property
    def model_config(self) -> ModelConfig:
        """The values of `hf_config()`, without Transformers where a start of the same model has kept them."""
        return self._described.config

    @property
    def text_config(self) -> ModelConfig:
        """The part of `model_config` that describes the text decoder, or all of it."""
        return self._described.text

    @property
    def model_options(self) -> Mapping[str, Any]:
        """The options by which this model differs from others. Known like `model_config`."""
        return self._described.options

    @cached_property
    def _described(self) -> _Described:
        if self.code is not None:  # which may change without config.json
            return self._describe(self._read_described())
        made_from = [_serialize(self.config), _serialize(self._converted.config), _serialize(self.added)]
        key = make_key(_KEPT_CONFIG, ["transformers"], made_from)
        kept = read_cached(key)
        if kept is not None:
            check_numbers(self.config_file, self.config)
            with suppress(AttributeError, KeyError, TypeError, ValueError):  # a damaged file
                return self._describe(kept)
        made = self._read_described()
        keep(key, made)
        return self._describe(made)

    def _read_described(self) -> dict[str, object]:
        config = self.hf_config()
        if self._converted.config is self.config and self.code is None:
            check_added(config, self.added)
        return {"config": as_plain(config), "text": as_plain(self._hf_text_config()), "options": list_options(config)}

    def _describe(self, kept: Mapping[str, Any]) -> _Described:
        return _Described(
            config=ModelConfig(kept["config"], self.hf_config),
            text=ModelConfig(kept["text"], self._hf_text_config),
            options=dict(kept["options"]),
        )

    @cached_property
    def _hf_config(self) -> PretrainedConfig:
        config_class = self._config_class
        check_numbers(self.config_file, self.config)
        try:
            plain = json.loads(json.dumps(self._converted.config))
            if self._known_type is not None:
                plain["model_type"] = self._known_type
            return config_class.from_dict(_with_known_names(plain))
        except Exception as error:
            kind = self.config.get("model_type") or self._converted.config["model_type"]
            raise CheckpointError(f"{self.config_file}: not a {kind!r} config: {error}") from error

    def hf_config(self) -> PretrainedConfig:
        """The Transformers config, with overrides applied. Runs no code of the checkpoint but `code`. Imports
        Transformers, which takes seconds."""
        return self._hf_config

    def _hf_text_config(self) -> PretrainedConfig:
        text_config: PretrainedConfig = self._hf_config.get_text_config(decoder=True)
        return text_config

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

    def expect_format(self, model_format: str | None) -> None:
        """Raise `ConfigError` unless the weights are stored in this format: 'hf' for plain ones, else the
        `quant_method` of config.json, or 'fp8' for all kinds of FP8; None is any."""
        quantization = self.quantization
        if quantization is None or not quantization.is_stored:
            names, found = {"hf"}, "plain"
        else:
            names, found = {quantization.method, quantization.format}, f"quantized ({quantization.method})"
        if model_format is not None and model_format not in names:
            advice = _ADVICE.get(model_format, "") if found == "plain" else ""
            raise ConfigError(f"model_format={model_format!r}: the weights in {self.path} are {found}{advice}")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object in the file `name` of the folder, or what stands for it; None if there is neither."""
        found = _read_checked(inside(self.path, name))
        return dict(self.stand_ins[name]) if found is None and name in self.stand_ins else found

    @property
    def num_packed_numbers(self) -> int:
        """Numbers in all packed weights."""
        quantization = self.quantization
        if quantization is None or not quantization.is_packed:
            return 0
        shapes = [tensor.shape for name, tensor in self.stored.items() if name.endswith(f".{quantization.marker}")]
        return sum(math.prod(shape) for shape in shapes) * (_WORD_BITS // quantization.bits)

    def tensor_names(self) -> frozenset[str]:
        """Return the names of all tensors in the folder."""
        return frozenset(self.stored)

    def slices(self, names: Iterable[str], device: torch.device | str) -> Iterator[tuple[str, TensorSlices]]:
        """Open tensors one at a time, file by file, to read all or part of each directly to `device`, or, if a package
        added that to PyTorch, to the host: safetensors knows few of their names.

        A CPU tensor may share memory with the mapped file: copy it to keep it. Raises `CheckpointError` that names the
        tensor or file. On a terminal, reading for more than a second shows a progress bar.
        """
        import torch
        from safetensors import SafetensorError, safe_open
        from tqdm import tqdm

        is_added = torch.device(device).type == torch._C._get_privateuse1_backend_name()
        target = "cpu" if is_added else str(device)
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.find(name).file, []).append(name)
        total = sum(map(len, by_file.values()))
        with tqdm(total=total, desc="loading weights", unit="tensor", disable=None, delay=1.0, leave=False) as bar:
            for file, wanted in by_file.items():
                try:
                    with safe_open(str(file), framework="pt", device=target) as reader:
                        for name in wanted:
                            yield name, self.stored[name].open(reader, name)
                            bar.update()
                except (SafetensorError, OSError) as error:
                    raise CheckpointError(f"cannot read {file}: {error}") from error

    def find(self, name: str) -> StoredTensor:
        """Return the place of one tensor. Raises `CheckpointError` that names it if it is missing."""
        try:
            return self.stored[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: tensor {name!r} is missing from the checkpoint") from None


def _expect_listed(path: Path, weight_map: Mapping[str, str], stored: Mapping[str, StoredTensor]) -> None:
    """Raise `CheckpointError` for a tensor that is not in the file where the index lists it."""
    for name, shard in weight_map.items():
        if name not in stored or stored[name].file != path / shard:
            raise CheckpointError(
                f"{path / shard}: tensor {name!r} is missing, but {INDEX_FILE} lists it in this file: "
                "download this shard again"
            )


def _read_checked(file: Path) -> dict[str, object] | None:
    data = read_object(file)
    if data is not None:
        check_file(file, data)
    return data


def _serialize(config: Mapping[str, object]) -> bytes:
    return json.dumps(config, sort_keys=True, default=str).encode()


def _with_known_names(config: dict[str, object]) -> dict[str, object]:
    """Replace, in place, values that Transformers knows by another name: rotary scaling 'su' is 'longrope'."""
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for rotary in (part.get("rope_scaling"), part.get("rope_parameters")):
            for key in ("type", "rope_type"):
                if isinstance(rotary, dict) and rotary.get(key) == "su":
                    rotary[key] = "longrope"
    return config
