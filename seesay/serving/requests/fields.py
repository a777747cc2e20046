"""Types of request fields. Validation stops at the first error, so a body with a million errors is refused quickly. The
published schemas are as strict as the validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_MAX_FIELDS = 256
_MAX_KEY_CHARS = 1024
_NOT_NULL = {"not": {"type": "null"}}

MAX_TOKEN_IDS = 1 << 31
TokenId = Annotated[int, Field(ge=0, lt=MAX_TOKEN_IDS)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]


def _check_keys(value: Mapping[str, object], most: int, what: str) -> None:
    """Raise ValueError for too many keys, and for a long one, which a report of the fault would copy."""
    if len(value) > most:
        raise ValueError(f"at most {most} {what} are allowed, got {len(value)}")
    if (num_chars := max(map(len, value), default=0)) > _MAX_KEY_CHARS:
        raise ValueError(f"keys must have at most {_MAX_KEY_CHARS} characters, got one of {num_chars}")


def at_most(number: int) -> BeforeValidator:
    """Return a validator of an object with at most `number` entries."""

    def check(value: object) -> Any:
        if isinstance(value, dict):
            _check_keys(value, number, "entries")
        return value

    return BeforeValidator(check)


_BIASES = {
    "maxProperties": 1024,
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
_MAX_STOP_WORDS, _MAX_STOP_CHARS = 256, 1 << 14


def check_stop_words(words: Sequence[str]) -> None:
    """Raise ValueError for an empty stop string, and for more stop strings than can be searched for at each token."""
    if not all(words):
        raise ValueError(f"a stop string must not be empty, got '' at index {list(words).index('')}")
    if len(words) > _MAX_STOP_WORDS:
        raise ValueError(f"at most {_MAX_STOP_WORDS} stop strings are allowed, got {len(words)}")
    if (num_chars := sum(map(len, words))) > _MAX_STOP_CHARS:
        raise ValueError(f"at most {_MAX_STOP_CHARS} characters are allowed in all stop strings, got {num_chars}")


Biases = Annotated[dict[str, float], at_most(1024), Field(json_schema_extra=_BIASES)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    at_most(16),
    Field(json_schema_extra={"maxProperties": 16}),
]


# These types are for the published schema only. The code that reads the fields validates them and names the bad entry.
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
    """Return the JSON schema of an object that has exactly one of two fields. A null field counts as absent."""
    given = [{"required": [name], "properties": {name: _NOT_NULL}} for name in (first, second)]
    return {"oneOf": given}


def needs(name: str, other: str, value: Mapping[str, object] = _NOT_NULL) -> dict[str, Any]:
    """Return the JSON schema of an object whose field `name` may match `value` (default: any value) only if the field
    `other` is true."""
    return {
        "if": {"required": [name], "properties": {name: value}},
        "then": {"required": [other], "properties": {other: {"const": True}}},
    }


class StrictModel(BaseModel):
    """An object that refuses unknown fields and converts no types.

    hints: fields of which some values are refused although they cannot change what an answer means here. Maps each to
        the values that are accepted. Where unknown fields are ignored, the others are ignored too.
    """

    hints: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_fields(cls, data: object) -> object:
        if isinstance(data, dict):
            _check_keys(data, _MAX_FIELDS, "fields")
        return data
