"""Which adapter is in which slot of the device, which sequences use it, and who waits for a slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Set
from typing import TYPE_CHECKING, NamedTuple

from seesay.llm.plans.step_plan import AdapterLoad

if TYPE_CHECKING:
    from seesay.llm.scheduling.blocked_sequences import BlockedSequences
    from seesay.llm.scheduling.sequence import Sequence


class AdapterSlots:
    """An adapter stays in its slot while running sequences use it, and behind that until another one takes its place:
    the one that has been idle longest goes first.

    Where all slots are in use, sequences of other adapters wait in `blocked`, and let others pass. For each adapter
    that waits, the adapter that was loaded first takes no sequences that arrived later than those that wait, so that
    its slot becomes free when its present ones have ended: none waits for ever.
    """

    def __init__(self, num_slots: int, blocked: BlockedSequences) -> None:
        self._blocked = blocked
        self._free = list(range(num_slots))[::-1]
        self._slot_of: dict[int, int] = {}  # in the order of their loads; idle ones behind, by when they became so
        self._num_users: Counter[int] = Counter()
        self._waiting = _Waiting()
        self._loads: list[AdapterLoad] = []

    def has_room(self, seq: Sequence) -> bool:
        """Whether a sequence may begin: its adapter has a slot, or may take one."""
        if not seq.adapter_id:
            return True
        wanting = [each for each in self._waiting.list_beside(self._slot_of) if each.adapter_id != seq.adapter_id]
        if seq.adapter_id not in self._slot_of:
            return self._num_idle > sum(each.arrival < seq.arrival for each in wanting)
        num_leaving = max(0, len(wanting) - self._num_idle)
        leaving = [other for other in self._slot_of if self._num_users[other]][:num_leaving]
        return seq.adapter_id not in leaving or seq.arrival < wanting[0].arrival

    def wait(self, seq: Sequence) -> Hashable:
        """Return what a sequence waits for that `has_room` has none for."""
        self._waiting.add(seq)
        return _cause(seq.adapter_id)

    def take(self, seq: Sequence) -> None:
        """Give a sequence that begins the slot of its adapter."""
        adapter_id = seq.adapter_id
        if not adapter_id:
            return
        if adapter_id not in self._slot_of:
            if not self._free:
                self.forget(next(other for other in self._slot_of if not self._num_users[other]))
            self._slot_of[adapter_id] = self._free.pop()
            self._loads.append(AdapterLoad(self._slot_of[adapter_id], adapter_id))
        self._num_users[adapter_id] += 1
        seq.adapter_slot = self._slot_of[adapter_id]
        self._waiting.discard(seq)

    def release(self, seq: Sequence) -> None:
        """A sequence has ended, or begins again later. Nothing happens where it neither has a slot nor waits for
        one."""
        adapter_id = seq.adapter_id
        if seq.adapter_slot >= 0:
            seq.adapter_slot = -1
            self._num_users[adapter_id] -= 1
            if not self._num_users[adapter_id]:
                del self._num_users[adapter_id]
                self._slot_of[adapter_id] = self._slot_of.pop(adapter_id)
                self._wake()
        elif self._waiting.discard(seq):
            self._wake()

    def forget(self, adapter_id: int) -> None:
        """Free the slot of an adapter that nobody uses; nothing happens where it has none."""
        assert not self._num_users[adapter_id], adapter_id
        if (slot := self._slot_of.pop(adapter_id, None)) is not None:
            self._free.append(slot)

    def renew(self) -> None:
        """Load all adapters with the next plan: those before it are lost."""
        self._loads = [AdapterLoad(slot, adapter_id) for adapter_id, slot in self._slot_of.items()]

    def take_loads(self) -> tuple[AdapterLoad, ...]:
        """The loads since the last call."""
        loads, self._loads = tuple(self._loads), []
        return loads

    @property
    def _num_idle(self) -> int:
        return len(self._free) + len(self._slot_of) - len(self._num_users)

    def _wake(self) -> None:
        """Wake the sequences that may have room now."""
        wanting = self._waiting.list_beside(self._slot_of)[: self._num_idle]
        for adapter_id in (*(each.adapter_id for each in wanting), *self._slot_of):
            self._blocked.wake(_cause(adapter_id))

    def check_integrity(self, running: Iterable[Sequence], waiting: Iterable[Sequence]) -> set[Hashable]:
        """Assert that slots, users and those that wait agree with the sequences. Returns what some wait for."""
        users = Counter[int]()
        for seq in running:
            assert seq.adapter_slot == (self._slot_of[seq.adapter_id] if seq.adapter_id else -1), seq
            users[seq.adapter_id] += seq.adapter_id != 0
        assert +users == self._num_users, (users, self._num_users)
        slots = sorted((*self._free, *self._slot_of.values()))
        assert slots == list(range(len(slots))), slots
        return set(map(_cause, self._waiting.check_integrity({seq.seq_id for seq in waiting})))


class _Wanting(NamedTuple):
    """An adapter that waits for a slot, and the arrival of the first sequence that waits for it."""

    arrival: int
    adapter_id: int


class _Waiting:
    """The sequences that wait for room, by their adapters."""

    def __init__(self) -> None:
        self._arrivals: dict[int, dict[int, int]] = {}  # by adapter, by the ids of sequences

    def add(self, seq: Sequence) -> None:
        self._arrivals.setdefault(seq.adapter_id, {})[seq.seq_id] = seq.arrival

    def discard(self, seq: Sequence) -> bool:
        """Forget a sequence. Returns whether it was here."""
        arrivals = self._arrivals.get(seq.adapter_id)
        if arrivals is None or arrivals.pop(seq.seq_id, None) is None:
            return False
        if not arrivals:
            del self._arrivals[seq.adapter_id]
        return True

    def list_beside(self, loaded: Container[int]) -> list[_Wanting]:
        """Return the adapters beside those that are loaded, by the arrivals of their first sequences."""
        beside = ((other, arrivals) for other, arrivals in self._arrivals.items() if other not in loaded)
        return sorted(_Wanting(min(arrivals.values()), other) for other, arrivals in beside)

    def check_integrity(self, alive: Set[int]) -> Iterable[int]:
        """Assert that only those wait that are alive. Returns their adapters."""
        assert all(arrivals.keys() <= alive for arrivals in self._arrivals.values())
        return self._arrivals.keys()


def _cause(adapter_id: int) -> Hashable:
    return "adapter", adapter_id
