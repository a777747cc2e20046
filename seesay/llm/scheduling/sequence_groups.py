"""Sequences of one group, which share the KV of the tokens with which they begin: the answers to one prompt, and the
beams of a search. Works without the prefix cache, and to the token, not to the block.

A member begins with the blocks of another one that has computed the same tokens: full blocks are shared, and the block
in which the common tokens end is copied.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.llm.scheduling.blocked_sequences import BlockedSequences
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.sequence import Sequence, SequenceStatus


class Fork(NamedTuple):
    """The first `num_tokens` tokens of a member, in its blocks: `block_ids` are full of them, `tail` holds the rest."""

    num_tokens: int
    block_ids: tuple[int, ...]
    tail: int | None


class _Kept(NamedTuple):
    """The prompt of a member that has ended, in blocks to which the group holds a reference."""

    token_ids: npt.NDArray[np.int64]
    stretch: float
    block_ids: tuple[int, ...]


@dataclass(slots=True)
class _Group:
    members: list[Sequence] = field(default_factory=list)
    kept: list[_Kept] = field(default_factory=list)
    stays: bool = False


class SequenceGroups:
    """The groups of the live sequences, by their `group_id`. Those without one are in none.

    The blocks of a member that ends are kept while others of its group wait to begin, and for members that are still to
    come when it says so (`Sequence.keeps_blocks`). The group releases them when the pool needs them.
    """

    def __init__(self, pool: BlockPool, blocked: BlockedSequences) -> None:
        self._pool = pool
        self._blocked = blocked
        self._groups: dict[int, _Group] = {}
        self._awaited: dict[int, set[int]] = {}  # id of who computes → up to which tokens others wait for it

    @property
    def is_awaited(self) -> bool:
        """Whether a member waits for what another one computes."""
        return bool(self._awaited)

    def add(self, seq: Sequence) -> None:
        """Take a new sequence. The members of a group have the same media, owner, salt and adapter."""
        if seq.group_id is not None:
            group = self._groups.setdefault(seq.group_id, _Group())
            group.members.append(seq)
            group.stays |= seq.keeps_blocks

    def find(self, seq: Sequence, new_ids: Container[int]) -> Fork | None:
        """The longest computed beginning of a waiting sequence that another one of its group has. At least one token is
        left to compute: the one whose output gives the next token. `new_ids`: of sequences that begin with the plan
        that is being made; the contents of their first blocks may still have to be copied."""
        if seq.group_id is None or seq.params.needs_prompt_outputs:
            return None
        group, most = self._groups[seq.group_id], seq.num_tokens - 1
        best = 0
        blocks: tuple[int, ...] = ()
        for token_ids, stretch, block_ids in self._iterate_computed(group, new_ids):
            if stretch == seq.stretch and (length := _count_common(seq.token_ids[:most], token_ids)) > best:
                best, blocks = length, block_ids
                if best == most:
                    break
        if not best:
            return None
        num_full = best // self._pool.block_size
        return Fork(best, blocks[:num_full], blocks[num_full] if best % self._pool.block_size else None)

    def _iterate_computed(
        self, group: _Group, new_ids: Container[int]
    ) -> Iterator[tuple[npt.NDArray[np.int64], float, tuple[int, ...]]]:
        """(computed tokens, stretch, blocks) of all that have some."""
        for other in group.members:
            if other.status is SequenceStatus.RUNNING and other.shares_blocks and other.seq_id not in new_ids:
                yield other.token_ids[: other.num_computed], other.stretch, other.block_ids
        yield from group.kept

    def find_coming(self, seq: Sequence, num_found: int) -> tuple[int, int] | None:
        """Whether another member is going to compute more of this sequence's tokens than the `num_found` that are there
        already. Returns what it should wait for: the member's id, and how many of its tokens."""
        if seq.group_id is None or seq.params.needs_prompt_outputs:
            return None
        for other in self._groups[seq.group_id].members:
            if other is seq or other.status is not SequenceStatus.RUNNING or not other.shares_blocks:
                continue
            if other.stretch != seq.stretch or other.num_computed >= seq.num_tokens - 1:
                continue
            length = _count_common(seq.token_ids[: seq.num_tokens - 1], other.token_ids)
            if length > max(num_found, other.num_computed):
                self._awaited.setdefault(other.seq_id, set()).add(length)
                return other.seq_id, length
        return None

    def settle(self, seq: Sequence) -> None:
        """Tokens of a sequence were computed: wake those that waited for no more than these."""
        if (lengths := self._awaited.get(seq.seq_id)) is None:
            return
        for length in [length for length in lengths if length <= seq.num_computed]:
            lengths.remove(length)
            self._blocked.wake((seq.seq_id, length))
        if not lengths:
            del self._awaited[seq.seq_id]

    def forget(self, seq: Sequence) -> None:
        """A sequence computes nothing more for now, or ever: wake those that waited for it."""
        for length in self._awaited.pop(seq.seq_id, ()):
            self._blocked.wake((seq.seq_id, length))

    def end(self, seq: Sequence, *, is_good: bool) -> tuple[int, ...]:
        """A sequence has ended. Returns the blocks that it releases; the group owns the others from now on.
        `is_good`: whether what it computed may be used."""
        if seq.group_id is None:
            return seq.block_ids
        group, kept = self._groups[seq.group_id], 0
        group.members.remove(seq)
        if is_good and seq.shares_blocks and seq.block_ids and self._is_wanted(group, seq):
            num_tokens = min(seq.num_computed, seq.num_prompt_tokens)
            kept = self._pool.blocks_for(num_tokens)
            # A next request has one more token: nobody comes for much shorter ones any more.
            self._release(group, [old for old in group.kept if len(old.token_ids) < num_tokens - 1])
            group.kept.append(_Kept(seq.token_ids[:num_tokens].copy(), seq.stretch, seq.block_ids[:kept]))
        if not group.members and not group.stays:
            self._drop(seq.group_id)
        return seq.block_ids[kept:]

    def _is_wanted(self, group: _Group, seq: Sequence) -> bool:
        if seq.keeps_blocks:
            return True
        is_waited_for = any(other.status is not SequenceStatus.RUNNING for other in group.members)
        num_prompt = seq.num_prompt_tokens
        has_other = group.kept or any(
            other.status is SequenceStatus.RUNNING and other.num_computed >= num_prompt for other in group.members
        )
        return is_waited_for and not has_other

    def end_group(self, group_id: int) -> None:
        """No more members follow. The group releases its blocks once the live members have ended."""
        if (group := self._groups.get(group_id)) is not None:
            group.stays = False
            if not group.members:
                self._drop(group_id)

    def try_give_back(self) -> bool:
        """Give back the oldest blocks that are kept. Returns whether there were any."""
        for group in self._groups.values():
            if group.kept:
                self._release(group, group.kept[:1])
                return True
        return False

    def drop_kept(self) -> None:
        """Give back all blocks that are kept."""
        while self.try_give_back():
            pass

    def _drop(self, group_id: int) -> None:
        group = self._groups.pop(group_id)
        self._release(group, group.kept)

    def _release(self, group: _Group, kept: Iterable[_Kept]) -> None:
        for table in list(kept):
            self._pool.release(table.block_ids)
            group.kept = [other for other in group.kept if other is not table]

    def tables(self) -> list[tuple[int, ...]]:
        """The block tables that groups hold."""
        return [table.block_ids for group in self._groups.values() for table in group.kept]

    def check_integrity(self, sequences: Iterable[Sequence]) -> set[Hashable]:
        """Assert all invariants. Returns what members may wait for."""
        members = sorted(seq.seq_id for group in self._groups.values() for seq in group.members)
        live = {seq.seq_id: seq for seq in sequences}
        assert members == sorted(seq.seq_id for seq in live.values() if seq.group_id is not None)
        assert all(group.members or group.stays for group in self._groups.values())
        return set(self._iterate_awaited(live))

    def _iterate_awaited(self, live: Mapping[int, Sequence]) -> Iterator[tuple[int, int]]:
        """Yield the lengths of running sequences that others wait for. Asserts that they are not computed yet."""
        for seq_id, lengths in self._awaited.items():
            assert live[seq_id].status is SequenceStatus.RUNNING, live[seq_id]
            assert min(lengths) > live[seq_id].num_computed, live[seq_id]
            yield from ((seq_id, length) for length in lengths)


def _count_common(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> int:
    """How many leading tokens of both are equal."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    return int(differs.argmax()) if length and differs.any() else length
