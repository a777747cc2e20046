"""What harnesses give a model, as the configurations of a pipeline and of an answer."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from seesay.config import EngineConfig, GenerationConfig
from seesay.errors import ConfigError
from seesay.offline.pipeline import Pipeline, pipeline

_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""How harnesses call the most tokens of an answer; the first that is given counts."""
_DEFAULT_DEVICE = "cuda:0"
"""What a harness says without `--device`, with a GPU or without."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def open_pipeline(model: str, device: str | None, options: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline of `--model_args`. `options` are those of `EngineConfig`; `device` counts where they have no
    `device_type`. A harness's `batch_size` changes nothing: the engine gets all requests of a task, and batches them.
    Raises `ConfigError` for another option, and what `pipeline` raises."""
    options = {name: value for name, value in options.items() if name != "batch_size" and value is not None}
    known = [field.name for field in fields(EngineConfig)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"model_args: {name!r} is no option of EngineConfig{f'; did you mean {near[0]}?' if near else ''}"
            )
    where = "auto" if device in (None, _DEFAULT_DEVICE) else device
    return pipeline(model, backend_config=EngineConfig(**{"device_type": where, **options}))


def read_generation(given: Mapping[str, Any], max_new_tokens: int) -> GenerationConfig:
    """Return the configuration of a task's `generation_kwargs`, greedy unless they say otherwise; `max_new_tokens`:
    where they do not say how many. Raises `ConfigError` for what is none."""
    kwargs = {name: value for name, value in given.items() if value is not None}
    lengths = _take(kwargs, _TOKENS)
    until = kwargs.pop("until", ())
    stop_words = list(filter(None, [until] if isinstance(until, str) else until))
    is_sampled = kwargs.pop("do_sample", "temperature" in kwargs) and kwargs.get("temperature") != 0
    sampling = _take(kwargs, _SAMPLING)
    _refuse_unknown(kwargs)
    return GenerationConfig(
        max_new_tokens=int(next(iter(lengths.values()), max_new_tokens)),
        do_sample=is_sampled,
        stop_words=stop_words or None,
        **(sampling if is_sampled else {}),
        **kwargs,
    )


def _take(kwargs: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Take what is called so out of `kwargs`, and return it in the order of the names."""
    return {name: kwargs.pop(name) for name in names if name in kwargs}


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    """Raise `ConfigError` for what is no option of `GenerationConfig`; take out the number of beams."""
    if (beams := kwargs.pop("num_beams", 1)) != 1:
        raise ConfigError(f"generation_kwargs: num_beams={beams!r} is not supported: it must be 1")
    if unknown := set(kwargs) - {field.name for field in fields(GenerationConfig)}:
        raise ConfigError(f"generation_kwargs: {sorted(unknown)[0]!r} is no option of GenerationConfig")
