"""How a model runs: its name, its folder and the options of its engine, and a builder of these."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

from seesay.config import ChatTemplateConfig, EngineConfig, MediaLimits, VisionConfig
from seesay.config.checks import check_instance, require
from seesay.errors import ConfigError


class TargetDevice(StrEnum):
    """The device that computes."""

    CUDA = "cuda"
    CPU = "cpu"


class CacheMode(StrEnum):
    """The numbers of the KV cache; the values are those of `EngineConfig.kv_cache_dtype`."""

    DEFAULT = "auto"
    QUANT_I8 = "int8"
    QUANT_U4 = "int4"


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """A model to install. `model_name` is its name in an `Engine`; the rest is as in `seesay.pipeline`."""

    model_name: str
    model_path: str | os.PathLike[str]
    engine_config: EngineConfig = field(default_factory=EngineConfig)
    vision_config: VisionConfig | None = None
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None = None
    media_limits: MediaLimits | None = None

    def __post_init__(self) -> None:
        is_name = isinstance(self.model_name, str) and bool(self.model_name)
        require(is_name, "model_name", self.model_name, "must be a string that is not empty")
        check_instance("model_path", self.model_path, str, os.PathLike)
        require(bool(self.model_path), "model_path", self.model_path, "must be a folder or a model's name")
        check_instance("engine_config", self.engine_config, EngineConfig)
        check_instance("vision_config", self.vision_config, VisionConfig)
        check_instance("chat_template_config", self.chat_template_config, ChatTemplateConfig, str, os.PathLike)
        check_instance("media_limits", self.media_limits, MediaLimits)


class RuntimeConfigBuilder:
    """Build a `RuntimeConfig` step by step. Every method but `build` returns the builder. A value is checked by the
    method that takes it, which raises `ConfigError`, or `TypeError` for an object of another class."""

    def __init__(self) -> None:
        self._engine = EngineConfig()
        self._options: dict[str, Any] = {}

    def model_name(self, name: str) -> Self:
        """The name of the model in the engine."""
        return self._set(model_name=name)

    def model_dir(self, path: str | os.PathLike[str]) -> Self:
        """A folder in the Hugging Face layout, a hub id, or 'seesay-demo'."""
        return self._set(model_path=path)

    def compute_unit(self, device: TargetDevice | str, device_list: Sequence[int] = (0,)) -> Self:
        """Compute on the CPU, or on the GPU of this number. A model takes one GPU."""
        known = [each.value for each in TargetDevice]
        require(device in known, "compute_unit", device, f"must be one of {', '.join(known)}")
        is_list = isinstance(device_list, Sequence) and not isinstance(device_list, str)
        numbers = list(device_list) if is_list else []
        is_one = len(numbers) == 1 and type(numbers[0]) is int and numbers[0] >= 0
        require(is_one, "device_list", device_list, "must have the number of one device")
        return self._set_engine(
            "compute_unit", device_type="cpu" if device == TargetDevice.CPU else f"{TargetDevice.CUDA}:{numbers[0]}"
        )

    def max_batch(self, num_requests: int) -> Self:
        """Most requests in a step."""
        return self._set_engine("max_batch", max_batch_size=num_requests)

    def max_length(self, num_tokens: int) -> Self:
        """Most tokens of a prompt and its answer together."""
        return self._set_engine("max_length", session_len=num_tokens)

    def kv_cache_mode(self, mode: CacheMode | str) -> Self:
        """Keys and values as they are computed, or quantized."""
        known = [each.value for each in CacheMode]
        require(mode in known, "kv_cache_mode", mode, f"must be one of {', '.join(known)}")
        return self._set_engine("kv_cache_mode", kv_cache_dtype=str(mode))

    def prefill_cache(self, enable: bool = True) -> Self:
        """Keep and reuse what prompts have in common; it is on from the start."""
        return self._set_engine("prefill_cache", enable_prefix_caching=enable)

    def engine_options(self, **options: object) -> Self:
        """Set any options of `EngineConfig` by name."""
        known = {each.name for each in fields(EngineConfig)}
        if unknown := sorted(options.keys() - known):
            raise ConfigError(f"engine_options: EngineConfig has no {unknown[0]!r}")
        return self._set_engine("engine_options", **options)

    def _set_engine(self, method: str, **options: Any) -> Self:
        """Take over options of `EngineConfig` from the builder's `method`, which an error names."""
        try:
            self._engine = replace(self._engine, **options)
        except ConfigError as error:
            raise ConfigError(f"{method}: {error}") from None
        return self

    def vision_config(self, config: VisionConfig) -> Self:
        """Options of the vision encoder."""
        return self._set(vision_config=config)

    def chat_template(self, template: ChatTemplateConfig | str | os.PathLike[str]) -> Self:
        """The chat template, instead of the checkpoint's own."""
        return self._set(chat_template_config=template)

    def media_limits(self, limits: MediaLimits) -> Self:
        """Limits on the size and the sources of media."""
        return self._set(media_limits=limits)

    def build(self) -> RuntimeConfig:
        """Return the configuration. Raises `ConfigError` where the name or the folder is missing."""
        for option, method in (("model_name", "model_name"), ("model_path", "model_dir")):
            if option not in self._options:
                raise ConfigError(f"{option} is missing: call {method}(…) before build()")
        return RuntimeConfig(engine_config=self._engine, **self._options)

    def _set(self, **options: Any) -> Self:
        RuntimeConfig(**{"model_name": "any", "model_path": "any", **options})  # which checks them
        self._options |= options
        return self
