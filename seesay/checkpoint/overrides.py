"""`hf_overrides`: values of config.json that are replaced. They reach the part of config.json that has the field.

A configuration with a vision encoder has the fields of its text model at its root, or in a part such as `text_config`:
published folders have both. What the overrides say at the one place is applied at the other, under the name that
config.json has. What would change nothing is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seesay.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_WHERE = "hf_overrides"
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_ROTARY = ("rope_parameters", "rope_scaling", "rope_theta")
_KINDS = ("rope_type", "type")
_SIZES = ("hidden_size", "num_hidden_layers", "n_layer", "n_embd", "d_model", "num_layers")
"""One of these at the root means that the text model is described there."""
_GENERAL = (
    "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "model_type", "pad_token_id",
    "quantization_config", "tie_word_embeddings", "torch_dtype", "transformers_version",
)  # fmt: skip
"""Fields that a root may have beside the same ones of its parts."""
_OF_TEXTS = (*_ROTARY, "max_position_embeddings", "sliding_window")
"""Fields of a text model that are often missing from config.json, and are not its root's."""


def apply_overrides(
    config: Mapping[str, object], overrides: Mapping[str, object]
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return (`config` with what `overrides` replaces, nested by key; those of them that `config` has no field for).
    Raises `CheckpointError` naming an override that has another form than its field, or comes twice."""
    placed = _place(config, overrides)
    return _merge(config, placed, _WHERE), _find_added(config, placed)


def check_added(config: PretrainedConfig, added: Mapping[str, object], where: str = _WHERE) -> None:
    """Raise `CheckpointError` naming an override of a field that the configuration class does not have. `added`: the
    overrides that config.json has no field for."""
    from transformers import PretrainedConfig

    if not added:
        return
    fields = {*type(config)().to_dict(), *config.attribute_map, *_GENERAL, *_ROTARY}
    parts = {name: part for name, part in vars(config).items() if isinstance(part, PretrainedConfig)}
    for name, value in added.items():
        if name in parts and isinstance(value, Mapping):
            check_added(parts[name], value, f"{where}.{name}")
        elif name not in fields:
            raise CheckpointError(
                f"{where}.{name}: neither config.json nor {type(config).__name__} of Transformers has a field of this "
                f"name{_advise_part(name, parts)}"
            )


def _advise_part(name: str, parts: Mapping[str, PretrainedConfig]) -> str:
    """Return how to write the override of a field that one of the parts has; empty if none has it."""
    found = next((place for place, part in parts.items() if name in type(part)().to_dict()), None)
    return "" if found is None else f": it is a field of {found}, so write {{'{found}': {{'{name}': …}}}}"


def _find_added(config: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    added = {}
    for name, value in overrides.items():
        inner = config.get(name)
        if name not in config:
            added[name] = value
        elif isinstance(value, Mapping) and isinstance(inner, Mapping) and name.endswith("_config"):
            added[name] = _find_added(inner, value)
    return {name: value for name, value in added.items() if value != {} or name not in config}


def _find_text_part(config: Mapping[str, Any]) -> str | None:
    return next((name for name in _TEXT_PARTS if isinstance(config.get(name), Mapping)), None)


def _place(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `overrides` nested as `config` is."""
    part = _find_text_part(config)
    placed = _rename_parts(config, overrides, part)
    if part is None or not isinstance(placed.get(part, {}), Mapping):
        return placed
    moved = {name: value for name, value in placed.items() if _belongs_to_part(name, config, config[part])}
    if moved:
        # Some versions of Transformers have written the text model's fields at both places.
        stay = config.keys() - {*_ROTARY}
        placed = {name: value for name, value in placed.items() if name in stay or name not in moved}
        placed[part] = _unite(placed.get(part, {}), moved, f"{_WHERE}.{part}")
    return placed


def _rename_parts(config: Mapping[str, Any], overrides: Mapping[str, Any], part: str | None) -> dict[str, Any]:
    """Return `overrides` of a text model under the name that `config` has for it: `part`, or the root if that has the
    text model's fields."""
    placed = dict(overrides)
    for name in _TEXT_PARTS:
        given = placed.get(name)
        if name in config or not isinstance(given, Mapping):
            continue
        if part is not None:
            del placed[name]
            placed[part] = _unite(placed.get(part, {}), given, f"{_WHERE}.{part}")
        elif any(size in config for size in _SIZES):
            del placed[name]
            placed = _unite(placed, given, _WHERE)
    return placed


def _belongs_to_part(name: str, config: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
    """Return whether the root's field `name` describes the text model, whose own fields are `inner`."""
    if name in _GENERAL:
        return False
    return name in _OF_TEXTS or (name in inner and config.get(name, inner[name]) == inner[name])


def _unite(first: object, second: Mapping[str, object], where: str) -> dict[str, Any]:
    if not isinstance(first, Mapping):
        raise CheckpointError(f"{where} must be a dict, as in config.json, got {first!r}")
    if twice := sorted(first.keys() & second.keys()):
        raise CheckpointError(f"{where}.{twice[0]} is given twice, at the root and in a part: leave one of them out")
    return {**first, **second}


def _merge(base: Mapping[str, object], changes: Mapping[str, object], where: str) -> dict[str, object]:
    merged = dict(base)
    for key, value in _name_rotary(base, changes, where).items():
        inner = merged.get(key)
        if not isinstance(inner, Mapping) or value is None:
            merged[key] = value
        elif isinstance(value, Mapping):
            if key in _ROTARY and any(kind in value for kind in _KINDS):  # by either name
                inner = {name: stored for name, stored in inner.items() if name not in _KINDS}
            merged[key] = _merge(inner, value, f"{where}.{key}")
        else:
            raise CheckpointError(f"{where}.{key} must be a dict, as in config.json, got {value!r}")
    return merged


def _name_rotary(base: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return `changes` with the rotary embedding's settings under the names of `base`, which has either
    `rope_parameters`, or `rope_scaling` and `rope_theta`: where there are both, Transformers reads one of them."""
    if isinstance(stored := base.get("rope_parameters"), Mapping):
        return _name_parameters(stored, changes, where)
    if isinstance(changes.get("rope_parameters"), Mapping) and isinstance(base.get("rope_scaling"), Mapping):
        return _name_scaling(changes, where)
    return changes


def _name_parameters(stored: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `changes` with the older names' settings under `rope_parameters`, which are `stored`."""
    named = dict(changes)
    by_kind_of_layer = bool(stored) and all(isinstance(item, Mapping) for item in stored.values())
    for name in ("rope_scaling", "rope_theta"):
        if name not in named:
            continue
        value = named.pop(name)
        change = {name: value} if name == "rope_theta" else value
        if by_kind_of_layer or not isinstance(change, Mapping):
            raise CheckpointError(
                f"{where}.{name}: config.json has rope_parameters instead, whose fields ({', '.join(stored)}) are "
                "to be overridden: write {'rope_parameters': {…}}"
            )
        named["rope_parameters"] = _unite(named.get("rope_parameters", {}), change, f"{where}.rope_parameters")
    return named


def _name_scaling(changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `changes` with the settings of `rope_parameters` under `rope_scaling` and `rope_theta`."""
    named = dict(changes)
    change = dict(named.pop("rope_parameters"))
    if "rope_theta" in change:
        named = _unite(named, {"rope_theta": change.pop("rope_theta")}, where)
    named["rope_scaling"] = _unite(named.get("rope_scaling", {}), change, f"{where}.rope_scaling")
    return named
