"""Unknown fields of a body: refused by name; or dropped and reported, for clients that send more than is known here.

A field is known if the request's model publishes it. With the unknown ones go hints, which are fields that cannot
change what an answer means on this server (`StrictModel.hints`), and what a model's `drop_extra` removes from its JSON.
Other fields that are known but not supported are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from seesay.serving.errors import bad_request

HEADER = "x-seesay-ignored"

_MAX_NAMED = 16
_PLAIN = re.compile(r"[^A-Za-z0-9_.\[\]-]")


def refuse_unknown_fields(
    value: Mapping[str, object], known: Sequence[str], place: str, *, takes_null: bool = False
) -> None:
    """Raise `ApiError` 400 for a field of the object at `place` that is not one of `known`. With `takes_null`, null
    stands for a field that is not there."""
    for key, item in value.items():
        if key not in known and not (takes_null and item is None):
            name = f"{place}.{key[:60]}"
            raise bad_request(f"unknown field: {name}", name, code="unknown_parameter")


def drop_unknown(body: object, model: type[BaseModel]) -> list[str]:
    """Remove the unknown fields and the hints from `body`, which is parsed JSON, and return their paths."""
    dropped: list[str] = []
    _walk(body, model, "", dropped)
    return dropped


def list_names(names: Sequence[str]) -> str:
    """Return the value of the header that names the ignored fields. Names may hold any characters."""
    shown = [_PLAIN.sub("?", name[:80]) for name in names[:_MAX_NAMED]]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(shown)}{more}"


def _walk(value: object, hint: object, where: str, dropped: list[str]) -> None:
    if isinstance(value, dict):
        model = _find_model(value, hint)
        if model is not None:
            dropped += getattr(model, "drop_extra", _drop_nothing)(value)
            _walk_object(value, model, where, dropped)
    elif isinstance(value, list):
        items = [get_args(option)[0] for option in _options(hint) if get_origin(option) is list]
        for index, item in enumerate(value if items else ()):
            _walk(item, Union[tuple(items)], f"{where}[{index}]", dropped)  # noqa: UP007 - the types are not known here


def _walk_object(value: dict[str, object], model: type[BaseModel], where: str, dropped: list[str]) -> None:
    known = {**dict.fromkeys(getattr(model, "refused", ())), **model.model_fields}
    hints: Mapping[str, Sequence[object]] = getattr(model, "hints", {})
    for key in list(value):
        place = f"{where}.{key}" if where else key
        if key not in known or _is_hint(value[key], hints.get(key)):
            del value[key]
            dropped.append(place)
        elif (field := known[key]) is not None:
            _walk(value[key], field.annotation, place, dropped)


def _drop_nothing(_body: object) -> Sequence[str]:
    return ()


def _is_hint(value: object, neutral: Sequence[object] | None) -> bool:
    """Return whether a field whose accepted values are `neutral` is a hint that has another value."""
    return neutral is not None and value is not None and value not in neutral


def _find_model(value: dict[str, object], hint: object) -> type[BaseModel] | None:
    """Return the model of an object. In a union, it is the one with the object's `type` or `role`."""
    models = [option for option in _options(hint) if isinstance(option, type) and issubclass(option, BaseModel)]
    fitting = [model for model in models if all(value.get(name) in tags for name, tags in _tags(model))]
    return fitting[0] if len(fitting) == 1 else models[0] if len(models) == 1 else None


def _tags(model: type[BaseModel]) -> Iterator[tuple[str, tuple[object, ...]]]:
    for name in ("type", "role"):
        field = model.model_fields.get(name)
        if field is not None and field.is_required() and get_origin(field.annotation) is Literal:
            yield name, get_args(field.annotation)


def _options(hint: object) -> Iterator[object]:
    """Yield the members of a union, or the type itself if it is not a union."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _options(get_args(hint)[0])
    elif origin in (Union, UnionType):
        for option in get_args(hint):
            yield from _options(option)
    else:
        yield hint
