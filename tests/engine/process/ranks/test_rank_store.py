"""The store in which ranks of several machines meet, and who is let in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
from torch import distributed
from torch.multiprocessing.spawn import spawn

from seesay.engine.process.ranks.rank_store import RankStore, StoreKeeper
from seesay.engine.process.tcp_link import Key

pytestmark = pytest.mark.timeout(120)
HOST = "127.0.0.1"


@pytest.fixture
def keeper() -> Iterator[tuple[StoreKeeper, Key]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    keeper = StoreKeeper(context, HOST, key := Key.make())
    yield keeper, key
    keeper.close()
    context.destroy(linger=0)


class Store(RankStore):
    """A `RankStore` whose socket is closed with each answer: it has one for each thread, for as long as that lives."""

    def _ask(self, *arguments: Any) -> Any:
        try:
            return super()._ask(*arguments)
        finally:
            if (socket := self._of_thread.socket) is not None:
                socket.close(linger=0)
                self._of_thread.socket = None


def test_what_one_sets_another_gets(keeper: tuple[StoreKeeper, Key]) -> None:
    store, other = (Store(keeper[0].address, keeper[1].public) for _ in range(2))
    store.set("name", "value")
    store.set("bytes", b"\x00\xff")
    assert other.get("name") == b"value" and other.get("bytes") == b"\x00\xff"
    assert [store.add("number", 2), other.add("number", 3)] == [2, 5] and other.get("number") == b"5"
    assert other.check(["name", "number"]) and not other.check(["name", "none"])


def test_it_is_waited_for_what_comes_later(keeper: tuple[StoreKeeper, Key]) -> None:
    store, other = (Store(keeper[0].address, keeper[1].public) for _ in range(2))
    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(other.get, "late") for _ in range(2)]
        waiting = threads.submit(other.wait, ["late", "later"], timedelta(seconds=60))
        store.set("late", b"1")
        assert [each.result() for each in found] == [b"1", b"1"]
        store.set("later", b"2")
        waiting.result()


def test_what_does_not_come_raises(keeper: tuple[StoreKeeper, Key]) -> None:
    store = Store(keeper[0].address, keeper[1].public)
    with pytest.raises(distributed.DistStoreError, match="rank 0 did not learn 'never' within 0 s"):
        store.wait(["never"], timedelta(milliseconds=200))
    store.set_timeout(timedelta(milliseconds=200))
    with pytest.raises(distributed.DistStoreError, match="'never'"):
        store.get("never")
    store.set_timeout(timedelta(seconds=60))
    store.set("never", b"now")
    assert store.get("never") == b"now", "an answer to an earlier question is not taken for this one"


def test_a_stranger_gets_and_sets_nothing(keeper: tuple[StoreKeeper, Key]) -> None:
    store, stranger = Store(keeper[0].address, keeper[1].public), Store(keeper[0].address, Key.make().public)
    store.set("name", b"secret")
    stranger.set_timeout(timedelta(seconds=1))
    with pytest.raises(distributed.DistStoreError):
        stranger.get("name")
    with pytest.raises(distributed.DistStoreError):
        stranger.set("name", b"other")
    assert store.get("name") == b"secret"


def test_closing_ends_the_thread() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    keeper = StoreKeeper(context, HOST, Key.make())
    keeper.close()
    assert not any(thread.name == "seesay-rank-store" for thread in threading.enumerate())
    context.destroy(linger=0)


def _meet(rank: int, address: str, public_key: bytes, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", store=RankStore(address, public_key), rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    x = torch.tensor([1.0 + rank])
    distributed.all_reduce(x)
    (Path(folder) / str(rank)).write_text(str(x.item()))
    distributed.destroy_process_group()


def test_ranks_meet_in_it(keeper: tuple[StoreKeeper, Key], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    spawn(_meet, args=(keeper[0].address, keeper[1].public, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["3.0", "3.0"]
