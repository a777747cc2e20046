"""Types of request fields whose validation ends at the first fault, so that a long list of faults costs nothing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_MAX_FIELDS = 256

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]


def _at_most(number: int) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > number:
            raise ValueError(f"at most {number} entries are allowed, got {len(value)}")
        return value

    return BeforeValidator(check)


Biases = Annotated[dict[str, float], _at_most(1024)]
Metadata = Annotated[dict[str, str], _at_most(16)]


class StrictModel(BaseModel):
    """An object without unknown fields, whose values have exactly their types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > _MAX_FIELDS:
            raise ValueError(f"at most {_MAX_FIELDS} fields are allowed, got {len(data)}")
        return data
