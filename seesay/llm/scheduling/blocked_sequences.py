"""The sequences that wait for something that a step or an encoder brings, by what that is."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seesay.llm.scheduling.sequence import Sequence


class BlockedSequences:
    """Each waits for one thing: the hash of an embedding, that of a KV block, or tokens of one of its group.

    What has come wakes those that waited for it. They stay here until `take_woken`, a limited number at a time: many
    may wait for one thing.

    by_cause: the sequences by what they wait for, and their ids.
    """

    def __init__(self) -> None:
        self.by_cause: dict[Hashable, dict[int, Sequence]] = {}
        self._cause_of: dict[int, Hashable] = {}
        self._woken: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._cause_of) + len(self._woken)

    def __iter__(self) -> Iterator[Sequence]:
        for sequences in (*self.by_cause.values(), self._woken):
            yield from sequences.values()

    def __contains__(self, seq: Sequence) -> bool:
        return seq.seq_id in self._cause_of or seq.seq_id in self._woken

    @property
    def has_woken(self) -> bool:
        """Whether any need not wait any more."""
        return bool(self._woken)

    def add(self, seq: Sequence, cause: Hashable) -> None:
        """Let a sequence wait for `cause`."""
        assert seq not in self, seq
        self.by_cause.setdefault(cause, {})[seq.seq_id] = seq
        self._cause_of[seq.seq_id] = cause

    def discard(self, seq: Sequence) -> None:
        """Forget a sequence, which need not be here."""
        self._woken.pop(seq.seq_id, None)
        self._leave(seq)

    def wake(self, cause: Hashable) -> None:
        """The value that these sequences waited for has arrived, or never will."""
        for seq_id, seq in self.by_cause.pop(cause, {}).items():
            del self._cause_of[seq_id]
            self._woken[seq_id] = seq

    def wake_one(self, seq: Sequence) -> None:
        """A sequence need not wait any more; nothing happens when it does not."""
        if self._leave(seq):
            self._woken[seq.seq_id] = seq

    def take_woken(self, most: int) -> list[Sequence]:
        """Remove and return those that were woken first, at most so many."""
        taken = list(islice(self._woken.values(), most))
        for seq in taken:
            del self._woken[seq.seq_id]
        return taken

    def _leave(self, seq: Sequence) -> bool:
        if seq.seq_id not in self._cause_of:
            return False
        cause = self._cause_of.pop(seq.seq_id)
        sequences = self.by_cause[cause]
        del sequences[seq.seq_id]
        if not sequences:
            del self.by_cause[cause]
        return True

    def check_integrity(self) -> None:
        """Assert that both directions agree."""
        pairs = {seq_id: cause for cause, sequences in self.by_cause.items() for seq_id in sequences}
        assert pairs == self._cause_of and not pairs.keys() & self._woken.keys()
        assert all(self.by_cause.values())
