"""Read sequences of token ids from the forms that users pass. Imports neither torch nor transformers."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import compress
from numbers import Integral
from typing import Any

_NEED = "input_ids must be a list of token ids, or a list of such lists"
# Other fields that tokenizers return, with values that have no effect.
_BESIDE_IDS = ("input_ids", "attention_mask", "token_type_ids")

_MAX_DEPTH = 2  # a list of tensors, each of which holds a batch


def read_token_rows(input_ids: object) -> list[tuple[int, ...]]:
    """Return one or several sequences of token ids as tuples of plain numbers.

    `input_ids` is a list of ids or of such lists, arrays and tensors included, or what a tokenizer of Transformers
    returns: a mapping with `input_ids`, whose padding the `attention_mask` leaves out; or a list of those. Raises
    ValueError for anything else.
    """
    try:
        return _rows(input_ids, depth=0)
    except TypeError:
        raise ValueError(_NEED) from None


def _rows(value: object, *, depth: int) -> list[tuple[int, ...]]:
    """Return the sequences in `value`. Raises TypeError for an entry that is not a number."""
    if isinstance(value, Mapping):
        return _rows_of_mapping(value)
    items = [_as_list(item) for item in _as_list(value)]
    if not items:
        return [()] if depth else []
    if isinstance(items[0], Integral) or depth == _MAX_DEPTH:
        return [tuple(map(operator.index, items))]
    return [row for item in items for row in _rows(item, depth=depth + 1)]


def _rows_of_mapping(encoding: Mapping[str, object]) -> list[tuple[int, ...]]:
    if "input_ids" not in encoding:
        raise ValueError(f"{_NEED}; the mapping has no input_ids, only {', '.join(map(str, encoding)) or 'nothing'}")
    if others := sorted(str(name) for name in encoding if name not in _BESIDE_IDS):
        raise ValueError(f"{others[0]} is not supported: get_ppl takes token ids only")
    rows = read_token_rows(encoding["input_ids"])
    if encoding.get("attention_mask") is None:
        return rows
    masks = read_token_rows(encoding["attention_mask"])
    if list(map(len, masks)) != list(map(len, rows)):
        raise ValueError("attention_mask and input_ids must have the same shape")
    return [tuple(compress(row, mask)) for row, mask in zip(rows, masks)]


def _as_list(value: object) -> Any:
    """Convert an array or tensor to a list. Anything else is returned unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value
