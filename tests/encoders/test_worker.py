from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from gpu_work import keep_gpu_busy, make_gpu_event, make_gpu_stream
from waiting import wait_until

from seesay.config import VisionConfig
from seesay.device.tower_pacer import TowerPacer
from seesay.encoders.store import EmbeddingStore, Lookup
from seesay.encoders.worker import EncoderWorker, EncodeTiming
from seesay.errors import ErrorCode, RequestError
from seesay.values import MediaItem, Modality


def make_item(number: int, *, rows: int = 3, units: int = 12, **features: Any) -> MediaItem:
    return MediaItem(
        modality=Modality.IMAGE,
        span=(5, 5 + rows),
        slots=np.arange(5, 5 + rows),
        hash=number.to_bytes(32, "little"),
        features={"number": number, "rows": rows, **features},
        num_units=units,
    )


class FakeEncoder:
    """Embeds item n as rows of n. `fail(batch)` may raise. Returns views into one packed tensor, as towers do."""

    device = torch.device("cpu")

    def __init__(self, fail: Callable[[list[int]], None] = lambda batch: None) -> None:
        self.batches: list[list[int]] = []
        self.fail = fail

    def disable_graphs(self) -> None:
        pass

    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
        batch = [f["number"] for f in features]
        self.batches.append(batch)
        self.fail(batch)
        packed = torch.cat([torch.full((f.get("made", f["rows"]), 4), float(f["number"])) for f in features])
        return list(torch.split(packed, [f.get("made", f["rows"]) for f in features]))


class Desk:
    """A worker and the answers that it gave."""

    def __init__(self, encoder: FakeEncoder, **options: Any) -> None:
        config = VisionConfig(max_batch_size=options.pop("size", 4), max_batch_tokens=options.pop("units", 10_000))
        self.encoder = encoder
        self.store = EmbeddingStore(options.pop("limit", 1 << 20))
        self.ready: list[int] = []
        self.timings: list[EncodeTiming] = []
        self.failed: dict[int, RequestError] = {}
        self.num_answers = threading.Semaphore(0)
        self.gate = threading.Event()  # more is coming until it is set
        options.setdefault("is_more_coming", lambda: not self.gate.is_set())
        options.setdefault("max_wait_s", 20.0)
        self.worker = EncoderWorker(
            encoder,
            self.store,
            config,
            embedding_size=4,
            on_ready=self.note_ready,
            on_failed=self.note_failed,
            **options,
        )

    def note_ready(self, item_hash: bytes, timing: EncodeTiming) -> None:
        self.ready.append(int.from_bytes(item_hash, "little"))
        self.timings.append(timing)
        self.num_answers.release()

    def note_failed(self, item_hash: bytes, error: RequestError) -> None:
        self.failed[int.from_bytes(item_hash, "little")] = error
        self.num_answers.release()

    def send(self, *items: MediaItem, answers: int | None = None) -> None:
        """Submit all items, then say that no more come, then wait for the answers."""
        self.gate.clear()
        for item in items:
            self.worker.submit(item)
        self.gate.set()
        for _ in range(len(items) if answers is None else answers):
            assert self.num_answers.acquire(timeout=60), "no answer"


@pytest.fixture
def desks() -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(encoder: FakeEncoder | None = None, **options: Any) -> Desk:
        made.append(Desk(encoder or FakeEncoder(), **options))
        return made[-1]

    yield make
    for desk in made:
        desk.worker.close()


def test_eight_requests_with_one_image_each_make_two_calls_and_the_same_again_none(desks: Callable[..., Desk]) -> None:
    desk = desks(size=4)
    items = [make_item(n, rows=2 + n) for n in range(8)]
    desk.send(*items)
    assert desk.encoder.batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    desk.send(*items)
    assert desk.worker.num_calls == 2 and desk.worker.num_items == 8
    assert sorted(desk.ready) == sorted([*range(8), *range(8)])
    for n in range(8):
        embedding = desk.store.get(items[n].hash)
        assert embedding is not None
        assert torch.equal(embedding, torch.full((2 + n, 4), float(n)))


def test_a_batch_has_one_adapter(desks: Callable[..., Desk]) -> None:
    """Items of others wait, and keep their order."""
    is_sent, applied = threading.Event(), list[tuple[str, list[int]]]()
    current = [""]

    def hold(batch: list[int]) -> None:
        assert is_sent.wait(60)
        applied.append((current[0], batch))

    class Adapter:
        def __init__(self, name: str) -> None:
            self._name = name

        @contextmanager
        def applied(self) -> Iterator[None]:
            current[0] = self._name
            yield
            current[0] = ""

    desk = desks(FakeEncoder(hold), size=3, is_more_coming=lambda: False)
    adapters: dict[str, Any] = {"-": None, "a": Adapter("a"), "b": Adapter("b")}
    for number, name in enumerate("-ab-abaaa-"):
        desk.worker.submit(make_item(number), adapters[name])
        wait_until(lambda: desk.encoder.batches == [[0]])
    is_sent.set()
    for _ in range(10):
        assert desk.num_answers.acquire(timeout=60)
    assert applied == [("", [0]), ("a", [1, 4, 6]), ("b", [2, 5]), ("", [3, 9]), ("a", [7, 8])]


def test_equal_items_in_flight_are_encoded_once_and_answered_once(desks: Callable[..., Desk]) -> None:
    desk = desks()
    desk.send(make_item(1), make_item(1), make_item(1), answers=1)
    assert desk.encoder.batches == [[1]]
    assert desk.ready == [1]


def test_an_embedding_does_not_keep_its_batch_alive(desks: Callable[..., Desk]) -> None:
    desk = desks()
    desk.send(make_item(1), make_item(2))
    assert desk.store.stats().embedding_bytes == 2 * 3 * 4 * 4
    embedding = desk.store.get(make_item(1).hash)
    assert embedding is not None and embedding.untyped_storage().nbytes() == embedding.nbytes


def test_the_unit_budget_splits_batches_and_a_larger_item_goes_alone(desks: Callable[..., Desk]) -> None:
    desk = desks(size=8, units=100)
    desk.send(*(make_item(n, units=units) for n, units in enumerate([40, 60, 40, 500, 40, 40])))
    assert desk.encoder.batches == [[0, 1], [2], [3], [4, 5]]


def test_a_full_batch_does_not_wait_and_a_part_waits_at_most_the_bound(desks: Callable[..., Desk]) -> None:
    desk = desks(size=2, is_more_coming=lambda: True, max_wait_s=0.5)
    desk.send(make_item(1), make_item(2), make_item(3))
    assert desk.encoder.batches == [[1, 2], [3]]
    assert desk.timings[2].queue_s > 0.45


def test_only_the_bad_item_of_a_batch_fails(desks: Callable[..., Desk]) -> None:
    def fail(batch: list[int]) -> None:
        if 2 in batch:
            raise ValueError("bad pixels")

    desk = desks(FakeEncoder(fail))
    desk.send(*(make_item(n) for n in range(4)))
    assert desk.encoder.batches == [[0, 1, 2, 3], [0], [1], [2], [3]]
    assert desk.ready == [0, 1, 3]
    assert desk.failed[2].code is ErrorCode.INTERNAL
    assert "bad pixels" in desk.failed[2].message
    desk.send(make_item(2))
    assert desk.encoder.batches[-1] == [2], "a failed item may be tried again"


def test_out_of_memory_halves_the_batch_and_fails_only_what_does_not_fit_alone(desks: Callable[..., Desk]) -> None:
    def fail(batch: list[int]) -> None:
        if len(batch) > 2 or 3 in batch:
            raise MemoryError

    desk = desks(FakeEncoder(fail))
    desk.send(*(make_item(n) for n in range(4)))
    assert desk.encoder.batches == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3]]
    assert desk.failed[3].code is ErrorCode.OUT_OF_MEMORY
    assert "12 patches" in desk.failed[3].message
    assert desk.ready == [0, 1, 2]


def test_rows_that_do_not_match_the_prompt_are_an_error(desks: Callable[..., Desk]) -> None:
    desk = desks()
    desk.send(make_item(1, made=5), make_item(2))
    assert desk.ready == [2]
    assert "[5, 4]" in desk.failed[1].message and "an item of 3 rows" in desk.failed[1].message


def test_every_embedding_of_a_batch_is_checked(desks: Callable[..., Desk]) -> None:
    desk = desks()
    desk.send(make_item(1), make_item(2, made=5), make_item(3, made=2))
    assert desk.ready == [1] and sorted(desk.failed) == [2, 3]


def test_draining_waits_for_all_that_was_asked_for(desks: Callable[..., Desk]) -> None:
    may_go_on = threading.Event()

    def wait(batch: list[int]) -> None:
        assert may_go_on.wait(60)

    desk = desks(FakeEncoder(wait), size=1, max_wait_s=0.0)
    for number in range(3):
        desk.worker.submit(make_item(number))
    drained = threading.Event()

    def drain() -> None:
        desk.worker.drain()
        drained.set()

    thread = threading.Thread(target=drain)
    thread.start()
    wait_until(lambda: len(desk.encoder.batches) == 1)
    assert not drained.wait(0.1)
    may_go_on.set()
    thread.join(60)
    assert drained.is_set() and len(desk.encoder.batches) == 3
    desk.worker.drain()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_embedding_that_is_not_finite_is_not_kept(desks: Callable[..., Desk], value: float) -> None:
    class Flaky(FakeEncoder):
        def encode(self, features: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
            embeddings = super().encode(features)
            if len(self.batches) == 1:
                embeddings[1][2, 3] = value
            return embeddings

    desk = desks(Flaky())
    desk.send(*(make_item(n) for n in range(4)))
    assert desk.ready == [0, 2, 3] and desk.worker.num_not_finite == 1
    assert desk.failed[1].code is ErrorCode.INTERNAL and "not finite" in desk.failed[1].message
    assert desk.store.get(make_item(1).hash) is None
    desk.send(make_item(1))
    assert desk.ready[-1] == 1 and desk.store.get(make_item(1).hash) is not None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda embedding: embedding[:, :3], ["[3, 3]", "[3, 4]"]),
        (lambda embedding: embedding.to("meta"), ["meta"]),
        (lambda embedding: embedding.long(), ["int64"]),
    ],
)
def test_an_embedding_that_no_prompt_takes_is_not_kept(
    desks: Callable[..., Desk], spoil: Callable[[torch.Tensor], torch.Tensor], words: list[str]
) -> None:
    class Odd(FakeEncoder):
        def encode(self, features: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
            embeddings = super().encode(features)
            return [spoil(e) if f["number"] == 1 else e for e, f in zip(embeddings, features, strict=True)]

    desk = desks(Odd())
    desk.send(make_item(1), make_item(2))
    assert desk.ready == [2] and all(word in desk.failed[1].message for word in words), desk.failed[1].message
    assert desk.store.get(make_item(1).hash) is None


def test_an_error_that_cannot_be_printed_fails_its_item_only(desks: Callable[..., Desk]) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    def fail(batch: list[int]) -> None:
        if 2 in batch:
            raise Unprintable

    desk = desks(FakeEncoder(fail))
    desk.send(*(make_item(n) for n in range(4)))
    assert desk.ready == [0, 1, 3] and desk.worker.num_restarts == 0
    assert "Unprintable" in desk.failed[2].message


def test_a_thread_that_dies_is_started_again_and_only_what_it_held_fails(desks: Callable[..., Desk]) -> None:
    def fail(batch: list[int]) -> None:
        if batch[0] == 0:
            raise SystemExit("killed")

    desk = desks(FakeEncoder(fail), size=2)
    desk.send(*(make_item(n) for n in range(4)))
    assert sorted(desk.failed) == [0, 1]
    assert desk.failed[0].code is ErrorCode.INTERNAL and "killed" in desk.failed[0].message
    assert desk.ready == [2, 3]
    assert desk.worker.num_restarts == 1


def test_a_worker_whose_neighbour_breaks_answers_all_the_same(desks: Callable[..., Desk]) -> None:
    def is_more_coming() -> bool:
        raise ZeroDivisionError

    desk = desks(is_more_coming=is_more_coming)
    desk.send(make_item(1))
    assert "ZeroDivisionError" in desk.failed[1].message


def test_closing_ends_the_thread_and_answers_what_is_left(desks: Callable[..., Desk]) -> None:
    started, go_on = threading.Event(), threading.Event()

    def hold(batch: list[int]) -> None:
        started.set()
        assert go_on.wait(60)

    desk = desks(FakeEncoder(hold), size=1, is_more_coming=lambda: False)
    desk.worker.submit(make_item(1))
    assert started.wait(60)
    desk.worker.submit(make_item(2))
    closing = threading.Thread(target=desk.worker.close)
    closing.start()
    wait_until(lambda: 2 in desk.failed)
    go_on.set()
    closing.join()
    assert desk.ready == [1]
    assert desk.failed[2].code is ErrorCode.CLOSED
    desk.worker.submit(make_item(3))
    assert desk.failed[3].code is ErrorCode.CLOSED
    assert not any(thread.name == "seesay-encoder" and thread.is_alive() for thread in [desk.worker._thread])
    desk.worker.close()


class SlowEncoder(FakeEncoder):
    """Computes on a GPU for about 50 ms."""

    device = torch.device("cuda")

    def encode(self, features: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
        rows = [torch.zeros(f["rows"], 4, device=self.device) for f in features]
        keep_gpu_busy(100_000_000)
        self.batches.append([f["number"] for f in features])
        self.fail(self.batches[-1])
        return [row.add_(f["number"]) for row, f in zip(rows, features)]


@pytest.mark.gpu
def test_on_a_gpu_embeddings_are_done_when_they_are_announced(desks: Callable[..., Desk]) -> None:
    desk, reader = desks(SlowEncoder(), size=1), make_gpu_stream()
    values = []

    def read(item_hash: bytes, timing: EncodeTiming) -> None:
        embedding = desk.store.get(item_hash)
        assert embedding is not None
        with torch.cuda.stream(reader):
            values.append(torch.unique(embedding.cpu()).tolist())
        desk.note_ready(item_hash, timing)

    desk.worker._on_ready = read
    desk.send(make_item(1))
    desk.send(make_item(2))
    desk.send(*(make_item(n) for n in range(3, 8)))
    assert values == [[1], [2], [3], [4], [5], [6], [7]]
    alone_s, behind_s = desk.timings[1].encode_s, desk.timings[5].encode_s
    assert behind_s > 1.5 * alone_s > 0.02, "the next was not launched while one was computed"


@pytest.mark.gpu
def test_embeddings_are_copied_to_the_device_of_the_language_model(desks: Callable[..., Desk]) -> None:
    desk = desks(FakeEncoder(), target=torch.device("cuda"))
    desk.send(*(make_item(n) for n in range(1, 4)))
    for number in range(1, 4):
        embedding = desk.store.get(make_item(number).hash)
        assert embedding is not None and embedding.is_cuda and embedding.tolist() == [[float(number)] * 4] * 3


@pytest.mark.gpu
def test_on_a_gpu_that_rests_embeddings_are_lent_while_they_are_computed(desks: Callable[..., Desk]) -> None:
    pacer, lent = TowerPacer(), []

    def note(item_hash: bytes) -> None:
        lent.append((desk.store.find(item_hash), desk.store.get(item_hash) is not None))

    desk = desks(SlowEncoder(), pacer=pacer, on_launched=note)
    desk.send(make_item(1))
    assert lent == [(Lookup.IN_FLIGHT, True)] and desk.ready == [1]
    with pacer.step(make_gpu_stream()):
        pass
    desk.send(make_item(2))
    pacer.rest()
    assert len(lent) == 1 and desk.ready == [1, 2]
    desk.send(make_item(3))
    assert len(lent) == 2 and desk.store.find(make_item(3).hash) is Lookup.READY


@pytest.mark.gpu
def test_on_a_gpu_other_streams_are_not_waited_for(desks: Callable[..., Desk]) -> None:
    desk = desks(SlowEncoder())
    desk.send(make_item(1))
    busy = make_gpu_event()
    keep_gpu_busy(4_000_000_000)
    busy.record()
    desk.send(make_item(2))
    assert not busy.query()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_on_a_gpu_only_the_bad_item_of_a_batch_fails(desks: Callable[..., Desk]) -> None:
    def fail(batch: list[int]) -> None:
        if 3 in batch:
            raise ValueError("bad pixels")

    desk = desks(SlowEncoder(fail), size=2)
    desk.send(*(make_item(n) for n in range(6)))
    assert sorted(desk.ready) == [0, 1, 2, 4, 5] and list(desk.failed) == [3]
