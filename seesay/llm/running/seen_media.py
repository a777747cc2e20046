"""The embeddings to which the tokens of a step attend (`DecoderTraits.attends_media`)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import mark_used
from seesay.errors import ErrorCode, RequestError
from seesay.llm.models.decoder import MediaAttention, SeenMedia
from seesay.llm.plans.step_plan import Row
from seesay.llm.running.row_table import RowState


class Embeddings(Protocol):
    """Embeddings [R, hidden] by media hash: a dict, or the embedding store."""

    def get(self, key: bytes, /) -> torch.Tensor | None:
        """The embedding, None when it is not there."""


class Seen(NamedTuple):
    """The tokens `start` … `stop` - 1 of a row, counted from its first one, attend to these embeddings."""

    start: int
    stop: int
    embeddings: tuple[torch.Tensor, ...]


def find_seen(row: Row, member: RowState, embeddings: Embeddings, embedding_size: int) -> tuple[Seen, ...]:
    """Look up what the tokens of a row of a sequence attend to. Raises `RequestError` for an embedding that is missing
    or has not `embedding_size` columns."""
    return tuple(
        Seen(
            sight.start - row.start,
            sight.stop - row.start,
            tuple(
                find_embedding(member, index, embeddings, num_rows=None, embedding_size=embedding_size)
                for index in sight.item_indexes
            ),
        )
        for sight in member.sights(row.start, row.start + row.num_tokens)
    )


def find_embedding(
    member: RowState, index: int, embeddings: Embeddings, *, num_rows: int | None, embedding_size: int
) -> torch.Tensor:
    """Return the embedding of an item. Raises `RequestError` for one that is missing or has another shape; num_rows:
    None for any number."""
    item = member.items[index]
    embedding = embeddings.get(item.hash)
    count = num_rows if num_rows is not None or embedding is None else len(embedding)
    if embedding is None or tuple(embedding.shape) != (count, embedding_size):
        shape = "is missing" if embedding is None else f"has shape {list(embedding.shape)}"
        raise RequestError(
            ErrorCode.INTERNAL,
            f"the embedding of {item.modality.value} {index} {shape}; its place in the prompt takes "
            f"{[count, embedding_size]}",
        )
    return embedding


def find_seeing(seen: Mapping[int, tuple[Seen, ...]], cu_seqlens: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the tokens of a step that attend to media, int64 [R]. `seen` are by the index of a row, and the tokens of
    row i begin at cu_seqlens[i]."""
    spans = [(cu_seqlens[i] + each.start, cu_seqlens[i] + each.stop) for i, found in seen.items() for each in found]
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in spans])


def attend_media(seen: Mapping[int, tuple[Seen, ...]], rows: torch.Tensor) -> MediaAttention:
    """Return what the tokens `rows` of `find_seeing` attend to, on their device."""
    found, start = [], 0
    for each in chain.from_iterable(seen.values()):
        for embedding in each.embeddings:
            mark_used(embedding)
        stop = start + each.stop - each.start
        found.append(SeenMedia(start, stop, tuple(embedding.to(rows.device) for embedding in each.embeddings)))
        start = stop
    return MediaAttention(rows, tuple(found))
