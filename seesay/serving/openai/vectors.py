"""Embeddings over HTTP: which ones a request asks for, and how much of them one answer may hold."""

from __future__ import annotations

from seesay.serving.errors import bad_request
from seesay.serving.requests.state import ServerState
from seesay.values import OutputDelta, Pooling


def find_pooling(state: ServerState, asked: Pooling | None) -> Pooling:
    """Return what the embeddings of a request are: what it asks for, or the server's, or the model's."""
    return asked or state.settings.embedding_pooling or state.engine.pooling


class VectorRoom:
    """Count the numbers of vectors while they are collected. `add` raises `ApiError` 400, which names `param`, when
    there are more than `most`."""

    def __init__(self, most: int, param: str) -> None:
        self._most, self._param = most, param
        self._num_numbers = 0

    def add(self, delta: OutputDelta) -> None:
        """Count the embedding that is in a delta, if there is one."""
        if delta.pooled is None or delta.pooled.ndim == 1:
            return
        self._num_numbers += delta.pooled.numel()
        if self._num_numbers > self._most:
            message = (
                f"{self._param}: the vectors of all tokens of this request are more than {self._most} numbers: send "
                "fewer or shorter texts and pictures at a time"
            )
            raise bad_request(message, self._param)
