"""JSON in pieces is the JSON that `json.dumps` makes at once, and no piece is long."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seesay.templates.json_pieces import PieceSizes, dump_in_pieces

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=9), inner), max_leaves=40
)


@given(VALUES, st.sampled_from([0, 30, 1000]))
def test_pieces_are_what_json_makes(value: object, num_short_chars: int) -> None:
    pieces = dump_in_pieces(value, PieceSizes(slice_chars=5, batch=3, short_chars=num_short_chars))
    assert "".join(pieces) == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    "value",
    [
        [1.5e-300] * 200_000,
        {"x": [10**4000] * 300},
        {f"{i:08d}": i for i in range(100_000)},
        "how many red circles? " * 100_000,
        ["\n" * 300_000],
    ],
    ids=["floats", "large numbers", "members", "text", "escapes"],
)
def test_each_call_is_short(value: object) -> None:
    pieces = dump_in_pieces(value)
    assert "".join(pieces) == json.dumps(value, ensure_ascii=False)
    assert max(map(len, pieces)) <= 2 << 16
