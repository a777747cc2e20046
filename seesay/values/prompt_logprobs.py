"""Log-probabilities of the tokens of a prompt, on the way from the engine to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

NO_TOKEN = -1
"""The id at a position that has no log-probability: a picture is there, or the model has no logit for the token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptLogprobs:
    """The log-probabilities of the tokens of a prompt after its first, and those of the most likely alternatives.

    ids int64 [n, 1 + k]: in the first column the token of the prompt, or `NO_TOKEN`; behind it the k most likely tokens
    at its position, the likeliest first. values float32 [n, 1 + k]: theirs. ranks int32 [n]: of the prompt's token
    among all tokens, 1 for the most likely.
    """

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, some: slice) -> PromptLogprobs:
        return PromptLogprobs(ids=self.ids[some], values=self.values[some], ranks=self.ranks[some])

    @classmethod
    def join(cls, pieces: Sequence[PromptLogprobs]) -> PromptLogprobs:
        """Return consecutive pieces as one. No pieces are the log-probabilities of a prompt of one token."""
        if not pieces:
            return cls(ids=np.empty((0, 1), np.int64), values=np.empty((0, 1), np.float32), ranks=np.empty(0, np.int32))
        return cls(**{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in cls.__slots__})

    def narrow(self, count: int) -> PromptLogprobs:
        """Return the log-probabilities with no more than `count` alternatives."""
        return PromptLogprobs(ids=self.ids[:, : 1 + count], values=self.values[:, : 1 + count], ranks=self.ranks)

    @property
    def is_token(self) -> npt.NDArray[np.bool_]:
        """Bool [n]: whether the position has a log-probability."""
        is_token: npt.NDArray[np.bool_] = self.ids[:, 0] != NO_TOKEN
        return is_token

    @property
    def mean(self) -> float:
        """The mean log-probability of the tokens that have one; NaN where none has."""
        known = self.values[self.is_token, 0].astype(np.float64)
        return float(known.mean()) if len(known) else float("nan")

    def to_list(self) -> list[dict[int, float] | None]:
        """Return {token id: log-probability} for each position of the prompt, the most likely first, and None for the
        first position and those without a token."""
        return [None, *(self._entry(*row) for row in zip(self.ids.tolist(), self.values.tolist(), strict=True))]

    @staticmethod
    def _entry(ids: list[int], values: list[float]) -> dict[int, float] | None:
        if ids[0] == NO_TOKEN:
            return None
        entry = dict(zip(ids[1:], values[1:], strict=True))
        entry.setdefault(ids[0], values[0])
        return entry

    @classmethod
    def of(cls, ids: Any, values: Any, ranks: Any) -> PromptLogprobs:
        """Return what `as_arrays` was called of."""
        return cls(ids=ids, values=values, ranks=ranks)

    def as_arrays(self) -> tuple[Any, Any, Any]:
        """Return (ids, values, ranks)."""
        return self.ids, self.values, self.ranks
