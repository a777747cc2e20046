"""Keyword arguments of older LMDeploy versions. They work with a warning; unknown ones are refused by name."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from seesay.config import ChatTemplateConfig, EngineConfig, GenerationConfig, TurbomindEngineConfig, VisionConfig

BackendConfig = EngineConfig | TurbomindEngineConfig

_GENERATION = {
    "request_output_len": "max_new_tokens",
    **{
        name: name
        for name in (
            "max_new_tokens",
            "top_k",
            "top_p",
            "min_p",
            "temperature",
            "repetition_penalty",
            "ignore_eos",
            "random_seed",
            "stop_words",
            "bad_words",
            "do_sample",
            "skip_special_tokens",
        )
    },
}


def with_call_arguments(
    gen_config: GenerationConfig | Sequence[GenerationConfig] | None, arguments: Mapping[str, Any], *, function: str
) -> GenerationConfig | Sequence[GenerationConfig] | None:
    """Return `gen_config` with the deprecated sampling arguments of a call.

    As in older versions, temperature, top_k or top_p given this way turn on sampling, unless their values mean greedy.
    Raises TypeError for an unknown argument.
    """
    if not arguments:
        return gen_config
    unknown = sorted(set(arguments) - set(_GENERATION))
    if unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument {unknown[0]!r}")
    _warn(f"{', '.join(sorted(arguments))}: deprecated, use gen_config=GenerationConfig(…)")
    changes = _read_changes(arguments)
    if gen_config is None or isinstance(gen_config, GenerationConfig):
        return replace(gen_config or GenerationConfig(), **changes)
    return [replace(config, **changes) for config in gen_config]


def _read_changes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    changes = {_GENERATION[name]: value for name, value in arguments.items() if value is not None}
    if {"temperature", "top_k", "top_p", "min_p"} & set(changes):
        is_greedy = changes.get("temperature") == 0 or changes.get("top_k") == 1
        changes.setdefault("do_sample", not is_greedy)
    return changes


def _check_pipeline_arguments(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if name not in ("backend", "model_name", "tp", "instance_num"):
            raise TypeError(f"pipeline() got an unexpected keyword argument {name!r}{_advise_argument(name, value)}")
    if arguments:
        names = ", ".join(sorted(arguments))
        _warn(f"{names}: deprecated, use backend_config and chat_template_config")
    backend = arguments.get("backend")
    if backend not in (None, "turbomind", "pytorch"):
        raise ValueError(f"backend must be 'turbomind' or 'pytorch' (both mean seesay's one engine), got {backend!r}")


def with_pipeline_arguments(
    backend_config: BackendConfig | None,
    chat_template_config: ChatTemplateConfig | str | os.PathLike[str] | None,
    arguments: Mapping[str, Any],
) -> tuple[BackendConfig | None, ChatTemplateConfig | str | os.PathLike[str] | None]:
    """Return the two configurations with the deprecated arguments of `pipeline()`: backend, model_name, tp,
    instance_num. Raises TypeError for an unknown argument."""
    _check_pipeline_arguments(arguments)
    given = {"tp": arguments.get("tp"), "max_batch_size": arguments.get("instance_num")}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if changes:
        backend_config = replace(backend_config or EngineConfig(), **changes)
    model_name = arguments.get("model_name")
    if model_name is not None and chat_template_config is None:
        chat_template_config = ChatTemplateConfig(model_name=model_name)
    return backend_config, chat_template_config


def _advise_argument(name: str, value: object) -> str:
    """Return where an argument belongs that `pipeline()` does not have; empty if nothing has it."""
    if name in _names_of(EngineConfig):
        return f": use backend_config=EngineConfig({name}={value!r})"
    if name in ("gen_config", "generation_config"):
        return ": it belongs to a call, as in pipe(prompts, gen_config=GenerationConfig(max_new_tokens=100))"
    if name in _names_of(VisionConfig):
        return f": use vision_config=VisionConfig({name}={value!r})"
    if name in _names_of(GenerationConfig):
        return f": it belongs to a call, as in pipe(prompts, gen_config=GenerationConfig({name}={value!r}))"
    return ""


def _names_of(config: type[EngineConfig | VisionConfig | GenerationConfig]) -> set[str]:
    return {field.name for field in fields(config)}


def _warn(message: str) -> None:
    """Issue a warning that points to the caller's line outside of seesay."""
    level = 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "seesay":
        level += 1
        frame = frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)
