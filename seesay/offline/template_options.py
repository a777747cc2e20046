"""The keyword arguments of a call that are for the chat template, or say how the model thinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seesay.errors import RequestError
from seesay.values import GenerationRequest

_NAMES = ("chat_template_kwargs", "tools", "documents", "enable_thinking", "reasoning_effort")
_OF_THOUGHTS: Mapping[str, type] = {"enable_thinking": bool, "reasoning_effort": str}
_OWN = ("self", "messages", "markers", "tools", "add_generation_prompt", "continue_final")


def take_template_options(
    arguments: Mapping[str, object], *, do_preprocess: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the fields of a request that concern the chat template, the other arguments).

    Raises TypeError for a value of another type, and ValueError for a variable that the package sets itself, or where
    no template is applied.
    """
    given = {name: arguments[name] for name in _NAMES if arguments.get(name) is not None}
    fields, options = _read(given)
    if given and not do_preprocess:
        raise ValueError(f"{next(iter(given))} requires do_preprocess=True: raw text has no chat template")
    if options:
        fields["template_options"] = options
    return fields, {name: value for name, value in arguments.items() if name not in _NAMES}


def _read(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return (the fields of a request that concern thoughts, the variables for the template)."""
    fields: dict[str, object] = {}
    variables: dict[str, object] = {}
    for name, value in given.items():
        if name == "chat_template_kwargs":
            variables.update(_read_variables(value))
        elif name in _OF_THOUGHTS:
            fields[name] = _read_typed(name, value)
        else:
            variables[name] = _read_dicts(name, value)
    return fields, variables


def _read_typed(name: str, value: object) -> object:
    kind = _OF_THOUGHTS[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r:.100}")
    return value


def _read_variables(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"chat_template_kwargs must be a dict with names as keys, got {value!r:.100}")
    if own := sorted(set(value) & {*_OWN}):
        raise ValueError(f"chat_template_kwargs: {own[0]!r} cannot be set")
    return value


def _read_dicts(name: str, value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
        raise TypeError(f"{name} must be a list of dicts, got {value!r:.100}")
    return list(value)


def with_template_options(
    requests: Sequence[GenerationRequest | RequestError], fields: Mapping[str, Any]
) -> list[GenerationRequest | RequestError]:
    """Return the requests with these fields."""
    return [
        replace(request, **fields) if fields and isinstance(request, GenerationRequest) else request
        for request in requests
    ]
