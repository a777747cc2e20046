"""Turn the sampling fields of a request, of any API, into a `GenerationConfig`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.config import GenerationConfig
from seesay.errors import ConfigError
from seesay.serving.requests.field_names import ENGINE_NAMES, FieldNames
from seesay.serving.settings import ServerSettings

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine

logger = logging.getLogger("seesay")

# Below this temperature only one token is likely, and logits divided by it may overflow: sampling becomes greedy.
_OPENAI: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


class SamplingDefaults:
    """Fill in the sampling fields that a request leaves out.

    With `generation_defaults='model'`, values in the checkpoint's generation_config.json take precedence over OpenAI's
    defaults. With `do_sample: false` there, sampling is greedy unless the request gives a temperature.
    """

    def __init__(self, engine: AsyncEngine, settings: ServerSettings) -> None:
        self._session_len = engine.session_len
        self.values = dict(_OPENAI)
        if settings.generation_defaults == "model":
            recommended = engine.checkpoint.generation_config
            for name in _OPENAI:
                value = recommended.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool) and _is_taken(name, value):
                    self.values[name] = value
            if recommended.get("do_sample") is False:
                self.values["temperature"] = 0.0

    def make_config(
        self, *, max_new_tokens: int | None, names: FieldNames = ENGINE_NAMES, **given: object
    ) -> GenerationConfig:
        """Return a config from `given` (field names of `GenerationConfig`; None means not given).

        max_new_tokens: None allows as many as fit into the context. names: the client's, for errors. Raises `ApiError`
        400 that names the field with a bad value.
        """
        options: dict[str, Any] = {**self.values, **{k: v for k, v in given.items() if v is not None}}
        options["top_k"] = max(0, int(options["top_k"]))  # clients of other servers send -1 for 'off'
        options["do_sample"] = options["temperature"] > 0
        try:
            return GenerationConfig(max_new_tokens=max_new_tokens or self._session_len, **options)
        except ConfigError as error:
            raise names.explain(error) from error


def _is_taken(name: str, value: float) -> bool:
    """Return whether a request may have this value. A negative top_k is allowed and means 'off'."""
    try:
        option: dict[str, Any] = {name: max(0, int(value)) if name == "top_k" else value}
        GenerationConfig(**option)
    except (ArithmeticError, ValueError) as error:  # ConfigError is a ValueError; int() refuses NaN and infinity
        logger.warning("generation_config.json: %s=%r is ignored: %s", name, value, error)
        return False
    return True
