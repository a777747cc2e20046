"""The state of rows on the device around a round of proposals: tokens are put there before the model computes them, and
the rows go on behind those that were right. One kernel does each where there are kernels: a round is a hundred small
operations otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.backends import has_kernels
from seesay.llm.running.device_rows import LENGTH, NUM_COLUMNS, TOKEN


class LentSlots(NamedTuple):
    """The slots of tokens that are proposed, int64 [L] each: `slots`; those of their sequences, `owners`; of which row
    of the step they are, and at how many places behind its last known token, from 1 on."""

    slots: torch.Tensor
    owners: torch.Tensor
    rows: torch.Tensor
    offsets: torch.Tensor


class VerifiedTokens(NamedTuple):
    """What a model made of R sequences' last known tokens and up to D proposed ones behind each, on the device.

    tokens int64 [R, D + 1]: what it chose behind each; beyond those of a row, its last one again. num_right int64 [R]:
    proposed ones that were those which it chose. lasts int64 [R]: what it chose behind these. places int64 [R]: of the
    first tokens. states [tokens of all rows, hidden]: its states of all of them.
    """

    tokens: torch.Tensor
    num_right: torch.Tensor
    lasts: torch.Tensor
    places: torch.Tensor
    states: torch.Tensor


class HostRound(NamedTuple):
    """A round on the host. tokens int64 and is_finite bool [R, W]: what the model chose, and whether all that was
    computed for it is. num_right and num_proposed int64 [R]."""

    tokens: npt.NDArray[np.int64]
    is_finite: npt.NDArray[np.bool_]
    num_right: npt.NDArray[np.int64]
    num_proposed: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CountedRound:
    """A round of R rows of up to W tokens. packed: int64 [R · (2 W + 4)]: what was chosen [R, W], whether it is finite
    [R, W], how many were right [R] and proposed [R], the last token [R] and the place of the first one [R]."""

    packed: torch.Tensor
    num_rows: int
    width: int

    @property
    def for_host(self) -> torch.Tensor:
        """The part of `packed` that `read` takes."""
        return self.packed[: self.num_rows * (2 * self.width + 2)]

    def verified(self, states: torch.Tensor) -> VerifiedTokens:
        """Return it with the model's states."""
        tokens, num_rows = self.num_rows * self.width, self.num_rows
        each = self.packed[2 * tokens :].view(4, num_rows)
        return VerifiedTokens(self.packed[:tokens].view(num_rows, self.width), each[0], each[2], each[3], states)

    def read(self, packed: npt.NDArray[np.int64]) -> HostRound:
        """Return what the host has of it."""
        tokens, num_rows = self.num_rows * self.width, self.num_rows
        chosen, is_finite = packed[: 2 * tokens].reshape(2, num_rows, self.width)
        num_right, num_proposed = packed[2 * tokens :].reshape(2, num_rows)
        return HostRound(chosen, is_finite.astype(np.bool_), num_right, num_proposed)


def put_proposed(state: torch.Tensor, lent: LentSlots, proposed: torch.Tensor) -> None:
    """Let what is proposed, int64 [R, D], be the tokens of the lent slots of `state` (`DeviceRows.state`), behind the
    last known ones; -1, which stands for none, is some token."""
    if has_kernels(state.device):
        from seesay.kernels import rounds

        rounds.put_proposed(state, *lent, proposed)
        return
    places = state[:, LENGTH].index_select(0, lent.owners) + lent.offsets
    state[:, TOKEN].index_copy_(0, lent.slots, proposed[lent.rows, lent.offsets - 1].clamp(min=0))
    state[:, LENGTH].index_copy_(0, lent.slots, places)


def count_round(
    state: torch.Tensor,
    own: torch.Tensor,
    at: torch.Tensor,
    proposed: torch.Tensor,
    token_ids: torch.Tensor,
    best: torch.Tensor,
) -> CountedRound:
    """Count what was proposed, int64 [R, W - 1], as far as it is what the model chose, `token_ids` int64 [n] with
    logits `best` [n], and let the rows in slots `own` int64 [R] of `state`, whose lengths have grown by one, go on
    behind it. at int64 [R, W]: where the tokens of each row are among these."""
    if has_kernels(state.device):
        from seesay.kernels import rounds

        return CountedRound(rounds.count_round(state, own, at, proposed, token_ids, best), *at.shape)
    tokens, is_finite = token_ids[at], best[at].isfinite()
    num_right = (proposed == tokens[:, :-1]).long().cumprod(dim=1).sum(dim=1)
    lasts = tokens.gather(1, num_right[:, None])[:, 0]
    places = state[:, LENGTH].index_select(0, own) - 1
    state[:, TOKEN].index_copy_(0, own, lasts)
    state[:, LENGTH].index_copy_(0, own, places + 1 + num_right)
    parts = tokens.flatten(), is_finite.long().flatten(), num_right, (proposed >= 0).sum(dim=1), lasts, places
    return CountedRound(torch.cat(parts), *at.shape)


def put_missing(
    state: torch.Tensor,
    slots: torch.Tensor,
    lasts: torch.Tensor,
    owners: torch.Tensor,
    lent: torch.Tensor,
    verified: VerifiedTokens,
) -> None:
    """Let the tokens that the model chose behind the proposed ones be those which a layer lacks, and as many as were
    right: in the slots `lent` int64 [R, D] of `state`, and the last of a row in its own, `owners` int64 [R].

    slots int64 [n ≥ R (D + 1)] gets the slots of all of them, the last one of `state` where there is none; lasts int64
    [≥ R] where among these the last ones of the rows are.
    """
    if has_kernels(state.device):
        from seesay.kernels import rounds

        rounds.put_missing(state, slots, lasts, owners, lent, *verified[:-1])
        return
    tokens, num_right, last_tokens, places, _ = verified
    (num_rows, width), scratch_slot = tokens.shape, len(state) - 1
    index = torch.arange(width, device=state.device)
    found = torch.where(index[:-1] < num_right[:, None], lent, scratch_slot)
    found = torch.cat((found, torch.full_like(owners[:, None], scratch_slot)), dim=1)
    found.scatter_(1, num_right[:, None], owners[:, None])
    slots[: found.numel()].copy_(found.view(-1))
    slots[found.numel() :].fill_(scratch_slot)
    each = lent.reshape(-1)
    state[:, TOKEN].index_copy_(0, each, tokens[:, :-1].reshape(-1))
    state[:, LENGTH].index_copy_(0, each, (places[:, None] + index[:-1]).reshape(-1))
    state[:, TOKEN].index_copy_(0, owners, last_tokens)
    state[:, LENGTH].index_copy_(0, owners, places + num_right)
    lasts[:num_rows].copy_(torch.arange(num_rows, device=state.device) * width + num_right)


def choose(
    logits: torch.Tensor, known_ids: torch.Tensor | None, owners: torch.Tensor, state: torch.Tensor, found: torch.Tensor
) -> None:
    """Write the tokens of the greatest logits [R, V] to `found` int64 [R], and as the next ones of the slots `owners`
    int64 [R] of `state`. known_ids int64 [V]: the tokens that the logits are of; None: all in their order."""
    if has_kernels(state.device):
        from seesay.kernels import rounds

        rounds.choose(logits, known_ids, owners, state, found)
        return
    chosen = logits.argmax(dim=-1)
    found.copy_(chosen if known_ids is None else known_ids.index_select(0, chosen))
    state[:, TOKEN].index_copy_(0, owners, found)


def warm_up(device: torch.device, dtype: torch.dtype) -> None:
    """Compile or load the kernels of a round of a model of this type, so that no request waits for that."""
    if not has_kernels(device):
        return
    state = torch.zeros(2, NUM_COLUMNS, dtype=torch.int64, device=device)
    zeros = torch.zeros(1, 2, dtype=torch.int64, device=device)
    row, each = zeros[0, :1], zeros[:, :1]
    put_proposed(state, LentSlots(row, row, row, row + 1), each)
    counted = count_round(state, row, zeros, each, zeros[0], zeros[0].to(dtype))
    put_missing(state, zeros[0].clone(), row.clone(), row, each, counted.verified(zeros))
