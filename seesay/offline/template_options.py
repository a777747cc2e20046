"""The keyword arguments of a call that are variables of the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seesay.errors import RequestError
from seesay.values import GenerationRequest

_NAMES = ("chat_template_kwargs", "tools", "documents")
_OWN = ("self", "messages", "markers", "tools", "add_generation_prompt", "continue_final")


def take_template_options(
    arguments: Mapping[str, Any], *, do_preprocess: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the variables of the chat template, the other arguments).

    Raises TypeError for a value of another type, and ValueError for a variable that the package sets itself, or where
    no template is applied.
    """
    given = {name: arguments[name] for name in _NAMES if arguments.get(name) is not None}
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name == "chat_template_kwargs":
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise TypeError(f"chat_template_kwargs must be a dict with names as keys, got {value!r:.100}")
            if own := sorted(set(value) & {*_OWN}):
                raise ValueError(f"chat_template_kwargs: {own[0]!r} cannot be set")
            options.update(value)
        elif not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
            raise TypeError(f"{name} must be a list of dicts, got {value!r:.100}")
        else:
            options[name] = list(value)
    if given and not do_preprocess:
        raise ValueError(f"{next(iter(given))} requires do_preprocess=True: raw text has no chat template")
    return options, {name: value for name, value in arguments.items() if name not in _NAMES}


def with_template_options(
    requests: Sequence[GenerationRequest | RequestError], options: Mapping[str, Any]
) -> list[GenerationRequest | RequestError]:
    """Return the requests with these variables of the chat template."""
    return [
        replace(request, template_options=options) if options and isinstance(request, GenerationRequest) else request
        for request in requests
    ]
