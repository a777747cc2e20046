"""Adapters of a decoder's table of embeddings and of its head: whole matrices in their place, as `modules_to_save` has
them, and products of low rank.

They are on the device as long as their adapter is loaded, and are computed one adapter after another, without graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from seesay.llm.ops import SlotRows

TABLE, HEAD = "embed_tokens", "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedMatrix:
    """What an adapter makes of a matrix [tokens, hidden]. whole: takes its place; None: it stays. low_rank: A [rank,
    hidden] and scale · B [tokens, rank], which are added to it; None for nothing. num_tokens: those that the adapter
    knows; others have no logits. Of a rank's share, `whole` and B have this rank's tokens."""

    num_tokens: int
    whole: torch.Tensor | None = None
    low_rank: tuple[torch.Tensor, torch.Tensor] | None = None

    def to(self, device: torch.device) -> AdaptedMatrix:
        """Return it on a device."""
        return AdaptedMatrix(
            num_tokens=self.num_tokens,
            whole=None if self.whole is None else self.whole.to(device),
            low_rank=None if self.low_rank is None else (self.low_rank[0].to(device), self.low_rank[1].to(device)),
        )

    def look_up(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens int64 [N], of which the model's own are `rows` [N, hidden]."""
        is_known = (token_ids < self.num_tokens)[:, None]
        known = token_ids.clamp(max=self.num_tokens - 1)
        if self.whole is not None:
            rows = torch.where(is_known, F.embedding(known, self.whole), rows)
        if self.low_rank is not None:
            a, b = self.low_rank
            rows = torch.where(is_known, rows + F.embedding(known, b) @ a, rows)
        return rows

    def multiply(
        self, hidden: torch.Tensor, own: torch.Tensor, bias: torch.Tensor | None, tokens: range
    ) -> torch.Tensor:
        """Return the logits [N, own] of hidden states [N, hidden], of which the model's own are `own`. tokens: those of
        this rank."""
        logits = own.clone()
        num_known = max(0, min(self.num_tokens, tokens.stop) - tokens.start)
        if self.whole is not None:
            known = hidden @ self.whole.t()
            logits[:, :num_known] = known if bias is None else known + bias[:num_known]
        if self.low_rank is not None:
            a, b = self.low_rank
            logits[:, :num_known] += (hidden @ a.t()) @ b.t()
        logits[:, num_known:] = -torch.inf
        return logits


class HostEnds(NamedTuple):
    """The changes of an adapter to the table of embeddings and to the head, in host memory; None: nothing."""

    table: AdaptedMatrix | None = None
    head: AdaptedMatrix | None = None

    def to(self, device: torch.device) -> HostEnds:
        """Return both on a device."""
        return HostEnds(*(None if each is None else each.to(device) for each in self))


class AdaptedEnds:
    """The adapters that change the ends of a decoder, by their ids. in_slot: the ids of adapters, by their slots; it
    may change from step to step. tokens: those of the vocabulary whose logits this rank computes."""

    def __init__(
        self,
        in_slot: Mapping[int, int],
        *,
        tokens: range,
        is_base: Callable[[str, torch.Tensor], bool],
        device: torch.device,
    ) -> None:
        """is_base(name, whole): whether a matrix on the device is the model's own table or head."""
        self._in_slot, self._tokens, self._is_base, self._device = in_slot, tokens, is_base, device
        self._there: dict[int, HostEnds] = {}

    def add(self, adapter_id: int, ends: HostEnds) -> None:
        """Take what an adapter makes of the ends. Raises `torch.OutOfMemoryError`; nothing is taken then."""
        if adapter_id not in self._there:
            table, head = ends.to(self._device)
            self._there[adapter_id] = HostEnds(self._leave_out(TABLE, table), self._leave_out(HEAD, head))

    def _leave_out(self, name: str, matrix: AdaptedMatrix | None) -> AdaptedMatrix | None:
        """Return a matrix without a whole one that is the model's own."""
        if matrix is None or matrix.whole is None or not self._is_base(name, matrix.whole):
            return matrix
        return replace(matrix, whole=None)

    def drop(self, adapter_id: int) -> None:
        """Forget an adapter, of which no sequence is alive."""
        self._there.pop(adapter_id, None)

    def are_changed(self, slots: npt.NDArray[np.int64] | None) -> bool:
        """Return whether the adapter in any of these slots changes the ends."""
        if not self._there or slots is None:
            return False
        return any(self._in_slot.get(slot) in self._there for slot in np.unique(slots).tolist())

    def look_up(self, embeddings: torch.Tensor, token_ids: torch.Tensor, rows: SlotRows) -> None:
        """Change the embeddings [T, hidden] of tokens int64 [T] in place, where their adapters do that."""
        if not self._there or rows.runs is None:  # none of a graph's does
            return
        for slot, start, stop, _ in rows.runs:
            ends = self._there.get(self._in_slot.get(slot, 0))
            if ends is not None and ends.table is not None:
                places = rows.tokens[start:stop].long()
                own = embeddings.index_select(0, places)
                changed = ends.table.look_up(token_ids.index_select(0, places), own)
                embeddings.index_copy_(0, places, changed)

    def multiply(
        self,
        hidden: torch.Tensor,
        logits: torch.Tensor,
        slots: npt.NDArray[np.int64],
        bias: torch.Tensor | None,
    ) -> None:
        """Change the logits [N, own] of hidden states [N, hidden] in place, where the adapters in `slots` int64 [n], of
        the first of them, do that. bias: of the head."""
        for slot in np.unique(slots).tolist() if self._there else ():
            ends = self._there.get(self._in_slot.get(slot, 0))
            if ends is not None and ends.head is not None:
                places = torch.from_numpy(np.flatnonzero(slots == slot)).to(hidden.device)
                own = ends.head.multiply(
                    hidden.index_select(0, places), logits.index_select(0, places), bias, self._tokens
                )
                logits.index_copy_(0, places, own)
