"""The base of all request bodies: unknown fields are refused, and known ones without an effect are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.requests.field_names import FieldNames
from seesay.serving.requests.fields import StrictModel
from seesay.serving.requests.neutral_values import describe_values

Refused = Mapping[str, tuple[tuple[object, ...], str]]


def pick_hints(refused: Refused, *names: str) -> Mapping[str, tuple[object, ...]]:
    """Return the `hints` of a model: these of the fields that it refuses."""
    return {name: refused[name][0] for name in names}


class RequestModel(StrictModel):
    """A request body.

    refused: known but unsupported fields. Maps each to the values that are accepted because they change nothing, and
        to the reason why other values are refused.
    rules: JSON schemas of constraints between fields.
    sources: the fields that a value of the engine may have come from, by the engine's name. The first that is given is
        the one, or the first of all. A dot leads into an object. Subclasses add to it.
    """

    refused: ClassVar[Refused] = {}
    sources: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    rules: ClassVar[tuple[JsonSchemaValue, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the fields in `refused`, with their accepted values, and the rules to the published schema."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.rules:
            schema["allOf"] = list(cls.rules)
        for name, (neutral, why) in cls.refused.items():
            schema["properties"][name] = {**describe_values(neutral), "description": why}
        return schema

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: object) -> object:
        if not isinstance(data, dict) or data.keys().isdisjoint(cls.refused):
            return data
        for name, (neutral, why) in cls.refused.items():
            if name in data and data[name] is not None and not any(is_same(data[name], value) for value in neutral):
                raise bad_request(f"{name} is {why}; got {show(data[name])}", name, code="unsupported_parameter")
        return {key: value for key, value in data.items() if key not in cls.refused}

    def field_names(self, *prompts: str) -> FieldNames:
        """Return the client's names for errors of the engine. `prompts`: of the prompts, or one for all."""
        options: dict[str, str] = {}
        for kind in reversed(type(self).__mro__):
            for option, fields in vars(kind).get("sources", {}).items():
                options[option] = next((name for name in fields if self._find(name) is not None), fields[0])
        return FieldNames(options={k: v for k, v in options.items() if k != v}, prompts=prompts)

    def _find(self, path: str) -> object:
        value: object = self
        for name in path.split("."):
            value = getattr(value, name, None)
        return value


def is_same(given: object, neutral: object) -> bool:
    """Whether two values are equal and of one type."""
    return type(given) is type(neutral) and given == neutral
