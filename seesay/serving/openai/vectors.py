"""Embeddings over HTTP: which ones a request asks for, and how much of them one answer may hold."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from seesay.errors import RequestError
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.requests.shared_fields import TextFields
from seesay.serving.requests.state import ServerState
from seesay.values import GenerationRequest, OutputDelta, Pooling

Task = Literal[
    "query", "search_query", "retrieval.query", "code.query",
    "document", "passage", "search_document", "retrieval.passage", "code.passage",
    "text-matching", "classification", "clustering", "separation",
]  # fmt: skip
"""What clients of Cohere and Jina call what an embedding is for."""


class TaskFields(TextFields):
    """Fields that say what an embedding is for. They are for models with a prompt of their own."""

    instruction: str | None = Field(
        None, min_length=1, max_length=8192, description="extension: the task, in words; default: the model's own"
    )
    input_type: Task | None = Field(
        None, description="extension: that of a query chooses the model's own task of queries, if it has one"
    )
    task: Task | None = Field(None, description="extension: the same as input_type")

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        given = [name for name in ("instruction", "input_type", "task") if getattr(self, name) is not None]
        if len(given) > 1:
            raise bad_request(f"{given[1]} cannot be combined with {given[0]}: give one of them", given[1])
        return self

    @property
    def is_query(self) -> bool:
        return (self.input_type or self.task or "").endswith("query")


def use_own_prompt(
    state: ServerState, request: GenerationRequest, instruction: str | None, *, is_query: bool
) -> GenerationRequest:
    """Return a request for an embedding with the model's own prompt, if it has one. Raises `ApiError` 400 for an
    instruction that it does not take."""
    own = state.engine.embedding_prompt
    if own is None and instruction is not None:
        raise bad_request(
            "instruction is not supported: this model has no prompt of its own for embeddings; write it into the input",
            "instruction",
        )
    try:
        return request if own is None else own.fill(request, instruction, is_query=is_query)
    except RequestError as error:
        raise ApiError.from_error(error) from error


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
