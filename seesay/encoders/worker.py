"""Runs a vision tower beside the language engine: a thread with a queue that batches items of different requests.

Knows nothing about sequences: items come in, and for each hash exactly one answer goes out, ready or failed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from seesay.device.activity import Activity
from seesay.device.query import is_out_of_memory, is_same_device, synchronize
from seesay.device.streams import make_stream, on_stream, record_done, traced
from seesay.device.tower_pacer import TowerPacer
from seesay.device.transfers import HostCopy
from seesay.encoders.encoder import EncoderLostError
from seesay.encoders.store import Lookup
from seesay.errors import ErrorCode, RequestError, describe
from seesay.values import EngineStats

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from seesay.config import VisionConfig
    from seesay.encoders.encoder import Encoder
    from seesay.encoders.store import EmbeddingStore
    from seesay.encoders.tower_adapters import TowerAdapter
    from seesay.values import MediaItem

logger = logging.getLogger(__name__)

POLL_S = 0.005
ENOUGH_UNITS = 8192
"""Most units of a batch on a GPU: with so many rows the matrix products reach their full rate, and a larger batch would
only delay its first picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeTiming:
    """Seconds an item waited for its batch, and seconds its batch took; both 0 for a stored embedding.

    started_s: the start of the batch, a `time.perf_counter()` reading."""

    queue_s: float = 0.0
    encode_s: float = 0.0
    started_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    item: MediaItem
    adapter: TowerAdapter | None
    since_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Launched:
    """A batch whose work is queued on a GPU. `wait` returns when it is done; `sums` holds the sum of each embedding."""

    batch: Sequence[_Queued]
    embeddings: Sequence[Tensor]
    sums: HostCopy
    started_s: float
    wait: Callable[[], None]


class EncoderWorker:
    """Feeds `encoder` in batches of at most `config.max_batch_size` items and `config.max_batch_tokens` units; a larger
    item is encoded alone. An embedding that is not finite, or does not have `embedding_size` columns, is not kept. On a
    GPU the tower runs on a low-priority stream of its own, and the next batch is launched while one is computed.

    on_ready(hash, timing): the embedding is in `store`. on_failed(hash, error): encoding failed with `error`, a
    `RequestError`. on_launched(hash): before either of them, when a GPU that rested computes the embedding; `store`
    lends it, and a step that is launched now is computed behind it. All are called in the worker's thread or in that of
    `submit`, and must be quick. By the time they are handled, an unpinned embedding may have been evicted and asked for
    again.
    is_more_coming(): whether further items will be submitted soon; on the CPU a batch that is not full then waits for
    them, at most `max_wait_s` in all. pacer: decides when tower calls run beside steps of the language engine.
    target: the device of that, to which embeddings are copied; by default they stay on the encoder's.
    """

    def __init__(
        self,
        encoder: Encoder,
        store: EmbeddingStore,
        config: VisionConfig,
        *,
        embedding_size: int,
        on_ready: Callable[[bytes, EncodeTiming], None],
        on_failed: Callable[[bytes, RequestError], None],
        on_launched: Callable[[bytes], None] = lambda _hash: None,
        is_more_coming: Callable[[], bool] = lambda: False,
        max_wait_s: float = 0.2,
        pacer: TowerPacer | None = None,
        target: torch.device | None = None,
    ) -> None:
        self._encoder: Encoder | None = encoder  # None once closed, so that its weights are freed
        self._store = store
        self._embedding_size = embedding_size
        self._stream = make_stream(encoder.device, is_urgent=False)
        is_gpu = self._stream is not None
        self._max_batch_size = config.max_batch_size
        self._max_units = min(config.max_batch_tokens, ENOUGH_UNITS) if is_gpu else config.max_batch_tokens
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._on_launched = on_launched
        self._is_more_coming = is_more_coming
        self._pacer = pacer or TowerPacer()
        self._target = target or encoder.device
        self._max_wait_s = 0.0 if is_gpu else max_wait_s
        self._changed = threading.Condition()
        self._queue: deque[_Queued] = deque()
        self._in_hand: list[_Queued] = []
        self._launched: deque[_Launched] = deque()
        self._is_closing = False
        self.activity = Activity()
        self.num_calls = 0
        self.num_items = 0
        self.num_restarts = 0
        self.num_not_finite = 0
        self._sizes: dict[int, int] = {}  # of calls: number of items → number of calls
        synchronize(encoder.device)  # its weights may have been loaded on another stream just now
        self._thread = self._start_thread()

    def stats(self) -> EngineStats:
        """Return the counts of the tower's calls."""
        with self._changed:
            return EngineStats(
                num_encode_queued=len(self._queue),
                encode_sizes=tuple(sorted(self._sizes.items())),
                total_encoder_calls=self.num_calls,
                total_encoder_items=self.num_items,
                total_encoder_restarts=self.num_restarts,
                total_not_finite=self.num_not_finite,
            )

    def submit(self, item: MediaItem, adapter: TowerAdapter | None = None) -> bool:
        """Ask for the embedding that the tower makes of an item, changed by `adapter`, if there is one. The answer for
        its hash comes once: at once and in this thread when the embedding is there, with that of an equal item when one
        is being encoded. Returns False, and nothing happens, when the item would have to be encoded but has no
        arrays."""
        with self._changed:
            is_closed = self._is_closing
            lookup = None if is_closed else self._store.begin(item.hash, can_encode=item.has_arrays)
            if lookup is Lookup.MISSING and item.has_arrays:
                self._queue.append(_Queued(item, adapter, time.perf_counter()))
                self._changed.notify()
        if is_closed:
            self._on_failed(item.hash, RequestError(ErrorCode.CLOSED, "the engine is closed"))
        elif lookup is Lookup.READY:
            self._on_ready(item.hash, EncodeTiming())
        return lookup is not Lookup.MISSING or item.has_arrays

    def drain(self) -> None:
        """Wait until all requested items are encoded. Must not run beside new requests."""
        while True:
            with self._changed:
                if self._is_closing or not (self._queue or self._in_hand or self._launched):
                    return
            time.sleep(POLL_S)

    def close(self) -> None:
        """Finish the current batch, fail the queued items, end the thread and release the encoder. Further items
        fail."""
        with self._changed:
            self._is_closing = True
            queued = list(self._queue)
            self._queue.clear()
            self._changed.notify()
            thread = self._thread
        for entry in queued:
            self._fail(entry, RequestError(ErrorCode.CLOSED, "the engine was closed before the media was encoded"))
        if thread is not threading.current_thread():
            thread.join()
            self._encoder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="seesay-encoder", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        """Encode batches until closed. An exception that escapes is not the fault of an item: the items of the current
        batches fail, and a new thread continues with the rest."""
        try:
            with on_stream(self._stream):
                while True:
                    batch = self._take_batch()
                    if batch:
                        self._encode(batch)
                    elif not self._launched:
                        return
                    # While more is queued, leave one batch computing and launch the next.
                    while len(self._launched) > bool(self._queue):
                        self._finish(self._launched.popleft())
        except BaseException as error:
            logger.exception("the encoder worker died and is started again")
            self._recover(error)

    def _recover(self, error: BaseException) -> None:
        """Fail the items that the dead thread was encoding, or all queued ones if it failed before it took any."""
        with self._changed:
            if not self._in_hand:
                self._in_hand = list(self._queue)
                self._queue.clear()
        for entry in list(self._in_hand):
            failure = RequestError(ErrorCode.INTERNAL, f"the vision encoder stopped unexpectedly: {describe(error)}")
            try:
                self._fail(entry, failure)
            except Exception:
                logger.exception("an encoder failure could not be reported")
        self._in_hand.clear()
        self._launched.clear()
        with self._changed:
            if not self._is_closing:
                self.num_restarts += 1
                self._thread = self._start_thread()

    def _take_batch(self) -> list[_Queued]:
        """Wait for items, and take a batch of them. Empty when closing, or when nothing is queued while batches are
        being computed."""
        with self._changed:
            while not self._queue and not self._launched and not self._is_closing:
                self._changed.wait()
        deadline_s = time.perf_counter() + self._max_wait_s
        # Called without holding the lock: the callback may take a lock of its own.
        while not self._is_batch_full() and self._is_more_coming():
            remaining_s = deadline_s - time.perf_counter()
            if remaining_s <= 0:
                break
            with self._changed:
                self._changed.wait(min(remaining_s, POLL_S))
        with self._changed:
            batch = self._pick_batch()
            for entry in batch:
                self._queue.remove(entry)
            self._in_hand += batch
        return batch

    def _pick_batch(self) -> list[_Queued]:
        """Return the queued items that form the next batch: the first one, and others of its adapter in their order."""
        batch: list[_Queued] = []
        num_units = 0
        for entry in self._queue:
            if batch and entry.adapter is not batch[0].adapter:
                continue
            num_units += entry.item.num_units
            if len(batch) == self._max_batch_size or (batch and num_units > self._max_units):
                break
            batch.append(entry)
        return batch

    def _is_batch_full(self) -> bool:
        """Return whether the next batch cannot grow by waiting, or others wait for it."""
        with self._changed:
            batch = self._pick_batch()
            if self._is_closing or len(batch) < len(self._queue) or len(batch) == self._max_batch_size:
                return True
            return sum(entry.item.num_units for entry in batch) >= self._max_units

    def _encode(self, batch: Sequence[_Queued]) -> None:
        """Encode a batch, and report each item; on a GPU later, when the batch is done. A batch that runs out of memory
        is halved; one that fails otherwise is retried item by item, so that only the bad item fails."""
        started_s = time.perf_counter()
        try:
            embeddings, sums = self._call_encoder([entry.item for entry in batch], batch[0].adapter)
        except Exception as error:
            failure = error
        else:
            launched = _Launched(batch, embeddings, sums, started_s, record_done(self._stream))
            if self._stream is None:
                self._finish(launched)
            else:
                self._launched.append(launched)
                self._lend(launched)
            return
        self._encode_smaller(batch, failure)

    def _lend(self, launched: _Launched) -> None:
        """Let the first step behind a batch be prepared while it is computed, where no other step can be."""
        if self._pacer.is_resting:
            for entry, embedding in zip(launched.batch, launched.embeddings, strict=True):
                self._store.lend(entry.item.hash, embedding)
                self._on_launched(entry.item.hash)

    def _finish(self, launched: _Launched) -> None:
        """Wait for a batch, and report its items."""
        with self.activity:
            launched.wait()
        encode_s = time.perf_counter() - launched.started_s
        [sums] = launched.sums.wait()
        for entry, embedding, total in zip(launched.batch, launched.embeddings, sums.tolist(), strict=True):
            if not math.isfinite(total):
                self.num_not_finite += 1
                self._fail(entry, _make_not_finite_error(entry.item))
                continue
            self._store.put(entry.item.hash, embedding)
            queue_s = launched.started_s - entry.since_s
            self._on_ready(
                entry.item.hash, EncodeTiming(queue_s=queue_s, encode_s=encode_s, started_s=launched.started_s)
            )
            self._in_hand.remove(entry)

    def _encode_smaller(self, batch: Sequence[_Queued], error: Exception) -> None:
        """Retry after a failed call. Called outside of its `except` block, where the traceback would keep tensors
        alive."""
        is_memory = is_out_of_memory(error)
        if len(batch) == 1:
            self._fail(batch[0], _make_failure(batch[0].item, error, is_memory=is_memory))
            return
        logger.warning("a batch of %d media failed (%s): retried in smaller ones", len(batch), describe(error))
        size = (len(batch) + 1) // 2 if is_memory else 1
        error.__traceback__ = None
        for start in range(0, len(batch), size):
            self._encode(batch[start : start + size])

    def _call_encoder(self, items: Sequence[MediaItem], adapter: TowerAdapter | None) -> tuple[list[Tensor], HostCopy]:
        """Call the tower once, with an adapter or none. Returns tensors that own their memory, on `target`, and their
        sums; on a GPU they are still being computed."""
        import torch

        with self._changed:
            self.num_calls += 1
            self._sizes[len(items)] = self._sizes.get(len(items), 0) + 1
        assert self._encoder is not None, "a closed worker was asked to encode"
        device = self._encoder.device
        is_traced = traced(f"encode {len(items)}", device)
        with self.activity, self._pacer.call(self._stream), torch.inference_mode(), is_traced:
            with nullcontext() if adapter is None else adapter.applied():
                embeddings = self._encode_again(self._encoder, [item.features for item in items])
            if len(embeddings) != len(items):
                raise RuntimeError(f"the encoder returned {len(embeddings)} embeddings for {len(items)} items")
            for item, embedding in zip(items, embeddings, strict=True):
                self._check_kind(item, embedding, device)
            sums = _add_up(embeddings)
            owned = [_detach_memory(embedding, self._target) for embedding in embeddings]
        self.num_items += len(items)
        return owned, sums

    def _encode_again(self, encoder: Encoder, features: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Call the tower; where its process ends, once more. Items in whose calls it has ended twice may be the
        cause."""
        try:
            return encoder.encode(features)
        except EncoderLostError:
            self.num_restarts += 1
        return encoder.encode(features)

    def _check_kind(self, item: MediaItem, embedding: Tensor, device: torch.device) -> None:
        expected = (item.num_rows, self._embedding_size)
        if tuple(embedding.shape) != expected:
            raise RuntimeError(
                f"the encoder must make an embedding of shape {list(expected)} for an item of {item.num_rows} "
                f"rows, got {list(embedding.shape)}"
            )
        if embedding.device.type != device.type or not embedding.is_floating_point():
            raise RuntimeError(
                f"the encoder must make floating point embeddings on {device}, got {embedding.dtype} on "
                f"{embedding.device}"
            )

    def _fail(self, entry: _Queued, error: RequestError) -> None:
        self._store.fail(entry.item.hash)
        if entry in self._in_hand:
            self._in_hand.remove(entry)
        self._on_failed(entry.item.hash, error)


def _detach_memory(embedding: Tensor, target: torch.device) -> Tensor:
    """Return the embedding on `target` in memory of its own: a view would keep the memory of its whole batch alive,
    uncounted."""
    if not is_same_device(embedding.device, target):
        return embedding.to(target)
    is_view = embedding.untyped_storage().nbytes() > embedding.nbytes
    return embedding.clone() if is_view else embedding.contiguous()


def _add_up(embeddings: Sequence[Tensor]) -> HostCopy:
    """Start copying the sum of each embedding, in float32, to the host. Sums of finite embeddings are finite: their
    values are far from the limits of float32."""
    import torch

    return HostCopy(torch.stack([embedding.sum(dtype=torch.float32) for embedding in embeddings]))


def _make_not_finite_error(item: MediaItem) -> RequestError:
    return RequestError(
        ErrorCode.INTERNAL,
        f"the vision encoder made an embedding of this {item.modality} that is not finite. It is not kept; send the "
        "request again, and if that does not help, look for damaged weights in the checkpoint",
    )


def _make_failure(item: MediaItem, error: Exception, *, is_memory: bool) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if is_memory:
        message = f"not enough memory to encode one {item.modality} of {item.num_units} patches: send it smaller"
        failure = RequestError(ErrorCode.OUT_OF_MEMORY, message, "messages")
    else:
        failure = RequestError(ErrorCode.INTERNAL, f"the {item.modality} could not be encoded: {describe(error)}")
        failure.__cause__ = error
    return failure
