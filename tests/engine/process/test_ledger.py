"""Which requests wait, which a process has, and which arrays were sent with them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from seesay.engine.process.remote.ledger import Ledger, name_owner
from seesay.engine.token_messages import TokenRequest
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.values import MediaItem, Modality, MultimodalInput

PROCESS, OTHER = object(), object()


def make_item(number: int, *, has_arrays: bool = True, is_reloadable: bool = True) -> MediaItem:
    return MediaItem(
        modality=Modality.IMAGE,
        span=(0, 2),
        slots=np.arange(2),
        hash=bytes([number]) * 32,
        features={"pixels": np.zeros(3), "size": 3},
        num_units=4,
        has_arrays=has_arrays,
        is_reloadable=is_reloadable,
    )


def make_request(request_id: int, *items: MediaItem, owner: Hashable = None) -> TokenRequest:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3, items=items)
    return TokenRequest(request_id=request_id, prompt=prompt, params=SamplingParams(), owner=owner)


def arrays_sent(ledger: Ledger, request_id: int) -> list[bool]:
    """Send a request; which of its items have their arrays."""
    entry = ledger.find(request_id)
    assert entry is not None
    message = ledger.send(entry, PROCESS)
    assert all(("pixels" in item.features) is item.has_arrays and "size" in item.features for item in message.items)
    return [item.has_arrays for item in message.items]


@pytest.mark.parametrize(
    ("owner", "name"), [("a", b"sa"), (b"a", b"ba"), ("\ud800", b"s\xed\xa0\x80"), (3, None), (None, None)]
)
def test_names_of_owners(owner: Hashable, name: bytes | None) -> None:
    assert name_owner(owner) == name


def test_owners_without_a_name_have_a_number_while_they_have_requests() -> None:
    ledger = Ledger()
    owners: list[Any] = ["name", (1,), (2,), (1,)]
    entries = [ledger.add(make_request(number, owner=owner)) for number, owner in enumerate(owners)]
    found = [ledger.send(entry, PROCESS).owner for entry in entries]
    assert found == [b"sname", 2, 3, 2]
    for request_id in (1, 2):
        assert ledger.remove(request_id)
    again = [ledger.add(make_request(9 + number, owner=owner)) for number, owner in enumerate([(1,), (2,)])]
    assert [ledger.send(entry, PROCESS).owner for entry in again] == [2, 4], "one that has none left is a new one"
    assert len(ledger._owners) == len(ledger._num_requests) == 3


def test_a_request_is_removed_once() -> None:
    ledger = Ledger()
    ledger.add(make_request(1))
    assert ledger.find(1) is not None and ledger.all_ids() == [1]
    assert ledger.remove(1) and not ledger.remove(1) and not ledger.remove(2)
    assert ledger.find(1) is None and ledger.all_ids() == [] and not ledger._owners


def test_arrays_are_sent_once_while_they_may_be_there() -> None:
    ledger = Ledger()
    for number in range(3):
        ledger.add(make_request(number, make_item(1), make_item(2, has_arrays=False)))
    assert arrays_sent(ledger, 0) == [True, False] and arrays_sent(ledger, 1) == [False, False]
    assert bytes([1]) * 32 in ledger.embeddings and bytes([2]) * 32 not in ledger.embeddings
    ledger.remove(0)
    assert bytes([1]) * 32 not in ledger.embeddings, "the process may not have encoded them"
    assert arrays_sent(ledger, 2) == [True, False]


def test_what_the_process_tells_of_its_embeddings() -> None:
    ledger = Ledger()
    ledger.add(make_request(1, make_item(1)))
    ledger.embeddings.update([bytes([1]) * 32, bytes([2]) * 32], [])
    assert arrays_sent(ledger, 1) == [False] and not ledger.embeddings._sent
    ledger.embeddings.update([], [bytes([1]) * 32])
    assert bytes([1]) * 32 not in ledger.embeddings and bytes([2]) * 32 in ledger.embeddings
    ledger.embeddings.update([bytes([3]) * 32], [bytes([3]) * 32])
    assert bytes([3]) * 32 not in ledger.embeddings, "it has come and gone"


def test_arrays_are_dropped_when_they_are_written_where_they_can_be_made_again() -> None:
    ledger = Ledger()
    items = make_item(1), make_item(2, is_reloadable=False), make_item(3, has_arrays=False)
    entry = ledger.add(make_request(1, *items))
    ledger.send(entry, PROCESS)
    was_written = entry.is_written
    ledger.note_written(entry)
    assert (was_written, entry.is_written) == (False, True)
    assert ["pixels" in item.features for item in entry.request.prompt.items][:2] == [False, True]
    assert [item.has_arrays for item in entry.request.prompt.items] == [False, True, False]
    plain = ledger.add(make_request(2, make_item(2, is_reloadable=False)))
    before = plain.request
    ledger.note_written(plain)
    assert plain.request is before


def test_requests_wait_until_they_are_sent_and_again_when_their_process_ends() -> None:
    ledger = Ledger()
    entries = [ledger.add(make_request(number, make_item(number))) for number in range(4)]
    assert ledger.waiting() == entries
    ledger.send(entries[0], PROCESS)
    ledger.send(entries[1], PROCESS)
    ledger.send(entries[2], OTHER)
    ledger.note_written(entries[0])
    assert ledger.waiting() == entries[3:]
    assert ledger.end_receiver(PROCESS) == [0], "the process can have had it"
    assert ledger.waiting() == [entries[1], entries[3]]
    assert (entries[1].sent_hashes, entries[1].is_written) == ((), False)
    assert bytes([0]) * 32 in ledger.embeddings and bytes([1]) * 32 not in ledger.embeddings
    ledger.take_back(entries[0])
    assert entries[0].receiver is None and not entries[0].is_written and bytes([0]) * 32 not in ledger.embeddings


def test_items_of_live_requests_are_found() -> None:
    ledger = Ledger()
    item = make_item(2)
    ledger.add(make_request(1, make_item(1), item))
    assert ledger.find_item(1, 1) is item and ledger.find_item(2, 0) is None
