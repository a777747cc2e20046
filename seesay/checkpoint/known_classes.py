"""Configurations of a `model_type` that Transformers has not, whose `architectures` names a class that it has. The code
beside the weights is not run: such a model is that class if its configuration says no more than that of the class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_ENDING = "ForCausalLM"
_GENERAL = ("auto_map", "quantization_config", "torch_dtype")
_ROTARY = ("rope_scaling", "rope_theta")
_NEEDED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "rms_norm_eps", "layer_norm_eps",
)  # fmt: skip
"""Fields that a configuration has if its class has them: authors' defaults may be others than Transformers'."""


def find_known_type(config: Mapping[str, object]) -> str | None:
    """Return the `model_type` of Transformers' text model whose class is the first of `architectures`; None if it has
    none of this name, or no code beside the weights stands for the unknown type. Imports Transformers.

    Raises `CheckpointError` naming fields that the configuration of this class does not have, or needs.
    """
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    has_code = isinstance(config.get("auto_map"), Mapping)
    if not has_code or not isinstance(name, str) or not name.endswith(_ENDING):
        return None
    own = f"{name.removesuffix(_ENDING)}Config"
    for kind, model in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if model == name and CONFIG_MAPPING[kind].__name__ == own:
            _check_fields(config, name, CONFIG_MAPPING[kind])
            return str(kind)
    return None


def _check_fields(config: Mapping[str, object], architecture: str, known: type[PretrainedConfig]) -> None:
    fields = {*known().to_dict(), *known.attribute_map, *_GENERAL}
    needed = {name for name in _NEEDED if name in fields}
    if "rope_parameters" in fields:
        fields.update(_ROTARY)
        if "rope_parameters" not in config:
            needed.add("rope_theta")
    given = {name for name, value in config.items() if value is not None}
    for fault, found in (("has unknown fields", given - fields), ("lacks fields", needed - given)):
        if found:
            raise CheckpointError(
                f"model_type {str(config.get('model_type'))[:40]!r} is unknown to the installed transformers, and as a "
                f"{architecture} the configuration {fault} ({', '.join(sorted(found))[:200]}; code from checkpoints is "
                "not run): try a newer transformers"
            )
