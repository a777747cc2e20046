"""Types of request fields. Their validation ends at the first fault, so that a long list of faults costs nothing, and
what is published of them is as strict as it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_MAX_FIELDS = 256
_NOT_NULL = {"not": {"type": "null"}}

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]


def _at_most(number: int) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > number:
            raise ValueError(f"at most {number} entries are allowed, got {len(value)}")
        return value

    return BeforeValidator(check)


_BIASES = {
    "maxProperties": 1024,
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
_MAX_STOP_WORDS, _MAX_STOP_CHARS = 256, 1 << 14


def check_stop_words(words: Sequence[str]) -> None:
    """Raises ValueError for words at which no answer can end, and for more than are worth looking for at each token."""
    if not all(words):
        raise ValueError("a stop string must not be empty")
    if len(words) > _MAX_STOP_WORDS:
        raise ValueError(f"at most {_MAX_STOP_WORDS} stop strings are allowed, got {len(words)}")
    if (num_chars := sum(map(len, words))) > _MAX_STOP_CHARS:
        raise ValueError(f"at most {_MAX_STOP_CHARS} characters are allowed in all stop strings, got {num_chars}")


Biases = Annotated[dict[str, float], _at_most(1024), Field(json_schema_extra=_BIASES)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    _at_most(16),
    Field(json_schema_extra={"maxProperties": 16}),
]


# Their readers check these, and say which is wrong: here they are for the published schema.
Text = Annotated[str, Field(json_schema_extra={"minLength": 1})]
StopTexts = Annotated[
    list[str],
    Field(fail_fast=True, json_schema_extra={"items": {"type": "string", "minLength": 1}, "maxItems": 256}),
]
StopIds = Annotated[list[TokenId], Field(fail_fast=True, json_schema_extra={"maxItems": 256})]
_OneOrMore = Field(min_length=1)
Prompts = (
    Annotated[str, _OneOrMore]
    | Annotated[list[Annotated[str, _OneOrMore]], _OneOrMore]
    | Annotated[list[TokenId], _OneOrMore]
    | Annotated[list[Annotated[list[TokenId], _OneOrMore]], _OneOrMore]
)


def exactly_one(first: str, second: str) -> dict[str, Any]:
    """Return the JSON schema of an object that has one of two fields (null is as good as none)."""
    given = [{"required": [name], "properties": {name: _NOT_NULL}} for name in (first, second)]
    return {"oneOf": given}


def needs(name: str, other: str, value: Mapping[str, Any] = _NOT_NULL) -> dict[str, Any]:
    """Return the JSON schema of an object whose field `name` may have such a `value` (default: any) only if the field
    `other` is true."""
    return {
        "if": {"required": [name], "properties": {name: value}},
        "then": {"required": [other], "properties": {other: {"const": True}}},
    }


class StrictModel(BaseModel):
    """An object without unknown fields, whose values have exactly their types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > _MAX_FIELDS:
            raise ValueError(f"at most {_MAX_FIELDS} fields are allowed, got {len(data)}")
        return data
