"""Which rows of embeddings go into the rows of a plan, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import mark_used
from seesay.errors import RequestError
from seesay.llm.plans.step_plan import Row, StepPlan
from seesay.llm.running.row_table import RowState, RowTable
from seesay.llm.running.seen_media import Embeddings, Seen, find_embedding, find_seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Splices:
    """Embedding rows of one sequence's row: target offsets from its first token, the embeddings in pieces, and whether
    a piece has the last row of its item. All are empty for tokens between media. seen: what its tokens attend to."""

    offsets: list[npt.NDArray[np.int64]]
    pieces: list[torch.Tensor]
    are_ends: list[bool]
    seen: tuple[Seen, ...] = ()


class PlanSplices(NamedTuple):
    """By sequence id, the splices of the rows of a plan that begin before the end of their sequence's media, or attend
    to media, and the errors of those whose embeddings are missing or do not fit."""

    splices: Mapping[int, Splices]
    errors: Mapping[int, RequestError]


def find_splices(
    plan: StepPlan, table: RowTable, embeddings: Embeddings, *, embedding_size: int, attends_media: bool = False
) -> PlanSplices:
    """Look up the embedding rows that go into the rows of a plan, or with `attends_media` those that tokens see."""
    splices: dict[int, Splices] = {}
    errors: dict[int, RequestError] = {}
    for row in plan.rows:
        member = table[row.seq_id]
        if row.start >= member.media_end and not (attends_media and member.items):
            continue
        try:
            if attends_media:
                seen = find_seen(row, member, embeddings, embedding_size)
                splices[row.seq_id] = Splices(offsets=[], pieces=[], are_ends=[], seen=seen)
            else:
                splices[row.seq_id] = _find_splices(row, member, embeddings, embedding_size)
        except RequestError as error:
            errors[row.seq_id] = error
    return PlanSplices(splices, errors)


def place_splices(plan: StepPlan, table: RowTable) -> Mapping[int, Splices]:
    """Return the places of the embedding rows that go into the rows of a plan, without pieces: another rank has them,
    and has found no errors."""
    pairs = [(row, table[row.seq_id]) for row in plan.rows]
    return {row.seq_id: _place_splices(row, member) for row, member in pairs if row.start < member.media_end}


def _place_splices(row: Row, member: RowState) -> Splices:
    offsets, are_ends = [], []
    for splice in member.splices(row.start, row.start + row.num_tokens):
        slots = member.items[splice.item_index].slots
        offsets.append(slots[splice.row_start : splice.row_stop] - row.start)
        are_ends.append(splice.row_stop == len(slots))
    return Splices(offsets=offsets, pieces=[], are_ends=are_ends)


def _find_splices(row: Row, member: RowState, embeddings: Embeddings, embedding_size: int) -> Splices:
    pieces = []
    for splice in member.splices(row.start, row.start + row.num_tokens):
        item = member.items[splice.item_index]
        embedding = find_embedding(
            member, splice.item_index, embeddings, num_rows=len(item.slots), embedding_size=embedding_size
        )
        pieces.append(embedding[splice.row_start : splice.row_stop])
    return replace(_place_splices(row, member), pieces=pieces)


def join_embeddings(splices: Mapping[int, Splices], device: torch.device) -> torch.Tensor | None:
    """Return the pieces of all splices as one tensor; None without any."""
    pieces = [piece for found in splices.values() for piece in found.pieces]
    for piece in pieces:
        mark_used(piece)
    return torch.cat([piece.to(device) for piece in pieces]) if pieces else None
