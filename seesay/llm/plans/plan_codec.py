"""Step plans as bytes, for ranks and processes that follow them: msgpack by msgspec, which is imported on first use."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.llm.plans.step_plan import StepPlan

if TYPE_CHECKING:
    import msgspec

_KINDS = ("<i8", "<i4")
"""Types of arrays in plans: token ids, positions and slots; bits of masks."""


def encode_plan(plan: StepPlan) -> bytes:
    """Return the plan as bytes. Equal plans have equal bytes."""
    return _encoder().encode(plan)


def decode_plan(data: bytes) -> StepPlan:
    """Return the plan of which `encode_plan` made `data`. Raises `ValueError` for bytes that are no plan's."""
    plan: StepPlan = _decoder().decode(data)
    return plan


@cache
def _encoder() -> msgspec.msgpack.Encoder:
    import msgspec

    return msgspec.msgpack.Encoder(enc_hook=_encode_array)


@cache
def _decoder() -> msgspec.msgpack.Decoder[StepPlan]:
    import msgspec

    return msgspec.msgpack.Decoder(StepPlan, dec_hook=_decode_array)


def _encode_array(value: object) -> tuple[str, tuple[int, ...], bytes]:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a {type(value).__name__} has no place in a plan")
    kind = value.dtype.newbyteorder("<").str
    return kind, value.shape, np.ascontiguousarray(value, dtype=kind).tobytes()


def _decode_array(kind: type, value: Any) -> Any:
    if kind is not np.ndarray and getattr(kind, "__origin__", None) is not np.ndarray:
        raise TypeError(f"a {kind} has no place in a plan")
    name, shape, data = value
    if name not in _KINDS:
        raise ValueError(f"the type of an array must be one of {_KINDS}, got {name!r}")
    return np.frombuffer(data, dtype=name).reshape(shape)
