"""The fields by which clients of OpenAI, vLLM, SGLang and LMDeploy ask for an answer that follows a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from seesay.config.grammar import FORM_TYPES, read_grammar
from seesay.errors import ConfigError, show
from seesay.serving.errors import bad_request
from seesay.serving.requests.field_names import FieldNames

# Each field, the type of `response_format` that means the same, and the key of its value there.
_FIELDS: Mapping[str, tuple[str, str]] = {
    "guided_json": ("json_schema", "schema"),
    "guided_regex": ("regex", "regex"),
    "guided_choice": ("choice", "choice"),
    "guided_grammar": ("grammar", "grammar"),
    "json_schema": ("json_schema", "schema"),
    "regex": ("regex", "regex"),
    "ebnf": ("grammar", "grammar"),
    "grammar": ("grammar", "grammar"),
    "choice": ("choice", "choice"),
}
_STRUCTURED: Mapping[str, tuple[str, str]] = {
    "json": ("json_schema", "schema"),
    "regex": ("regex", "regex"),
    "choice": ("choice", "choice"),
    "grammar": ("grammar", "grammar"),
}
_MAX_KEY_CHARS = 60
FIELD_NAMES = ("response_format", "structured_outputs", "structural_tag", *_FIELDS)

_TYPES = {"properties": {"type": {"enum": list(FORM_TYPES)}}, "required": ["type"]}
Form = dict[str, Any]
Format = Annotated[dict[str, Any], Field(json_schema_extra=_TYPES)]
"""The type of a field that is a `response_format`."""


def find_format(given: Mapping[str, object]) -> Form | None:
    """Return the `response_format` that a request's fields ask for (`FIELD_NAMES`, None where not given). Raises
    `ApiError` 400 that names the field at fault, or two that are given together."""
    names = [name for name in FIELD_NAMES if given.get(name) is not None]
    if not names:
        return None
    if len(names) > 1:
        raise bad_request(f"{names[1]} cannot be combined with {names[0]}: give one of them", names[1])
    [name] = names
    form = _make_form(name, given[name])
    return None if form is None else check_format(form, FieldNames(options=name_format(given)))


def name_format(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the client's name of `response_format`, and of its parts, where one of `FIELD_NAMES` stands for it."""
    name = next((name for name in FIELD_NAMES if given.get(name) is not None), "response_format")
    if name == "response_format":
        return {}
    if name != "structured_outputs":
        _, key = _FIELDS.get(name, ("", ""))
    else:
        inner = next((key for key, item in given[name].items() if item is not None and item is not False), "")
        name = f"{name}.{inner[:_MAX_KEY_CHARS]}" if inner else name
        _, key = _STRUCTURED.get(inner, ("", ""))
    return {"response_format": name, **({f"response_format.{key}": name} if key else {})}


def check_format(form: Mapping[str, object], names: FieldNames) -> Form:
    """Return `form`. Raises `ApiError` 400, in the client's `names`, for one that is not a `response_format`."""
    try:
        read_grammar(form)
    except ConfigError as error:
        raise names.explain(error) from error
    return dict(form)


def _make_form(name: str, value: Any) -> Form | None:
    if name == "response_format":
        return dict(value)
    if name == "structural_tag":
        return _make_tag(name, value)
    if name == "structured_outputs":
        return _make_structured(value)
    kind, key = _FIELDS[name]
    return {"type": kind, key: value}


def _make_structured(value: Mapping[str, Any]) -> Form | None:
    """Return the form of the one key of `structured_outputs` that is set; None if none is."""
    set_keys = [key for key, item in value.items() if item is not None and item is not False]
    if not set_keys:
        return None
    known = (*_STRUCTURED, "json_object", "structural_tag")
    for key in set_keys:
        if key not in known:
            raise bad_request(
                f"structured_outputs.{key[:_MAX_KEY_CHARS]} is not supported, only one of {', '.join(known)}",
                f"structured_outputs.{key[:_MAX_KEY_CHARS]}",
            )
    if len(set_keys) > 1:
        raise bad_request(f"structured_outputs has {set_keys[0]} and {set_keys[1]}: give one", "structured_outputs")
    [key] = set_keys
    if key == "json_object":
        return {"type": "json_object"}
    if key == "structural_tag":
        return _make_tag("structured_outputs.structural_tag", value[key])
    kind, inner = _STRUCTURED[key]
    return {"type": kind, inner: value[key]}


def _make_tag(name: str, value: Any) -> Form:
    """`value` is a structural tag, or JSON text of one, with or without its own type."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise bad_request(f"{name} must be JSON: {str(error)[:100]}", name) from error
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object, got {show(value)}", name)
    return {**value, "type": "structural_tag"}
