"""Errors survive pickling: between the processes of a pool they are sent so."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from seesay.errors import (
    CheckpointError,
    ConfigError,
    ErrorCode,
    MissingExtraError,
    RequestError,
    SeesayError,
    StateError,
)


def all_errors(base: type[SeesayError] = SeesayError) -> set[type[SeesayError]]:
    return {base}.union(*map(all_errors, base.__subclasses__()))


EXAMPLES = [
    SeesayError("a"),
    RequestError(ErrorCode.INVALID_MEDIA, "wrong", "messages[0]"),
    RequestError(ErrorCode.CLOSED, "closed"),
    ConfigError("tp=2: no"),
    CheckpointError("no config.json"),
    StateError("stop_model comes first"),
    MissingExtraError("reading clips", package="av", extra="video"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_pickled_and_back(error: Any) -> None:
    back = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)


def test_every_kind_is_tested() -> None:
    ours = {kind for kind in all_errors() if kind.__module__ == "seesay.errors"}
    assert ours == {type(error) for error in EXAMPLES}
