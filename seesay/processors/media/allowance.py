"""The bytes, pixels and seconds that the media of one request may still cost."""

from __future__ import annotations

import threading
import time

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.system.cancellation import Cancellation
from seesay.values import MediaSize


class Allowance:
    """Enforces `limits` for one request. The deadline runs from construction. Thread-safe.

    cancellation: whether the caller of the request has left.
    """

    def __init__(self, limits: MediaLimits, cancellation: Cancellation | None = None) -> None:
        self.limits = limits
        self.cancellation = cancellation or Cancellation()
        self._end = time.monotonic() + limits.timeout_s
        self._num_bytes = 0
        self._num_pixels = 0
        self._num_decoded_pixels = 0
        self._audio_s = 0.0
        self._document_s = 0.0
        self._lock = threading.Lock()

    def remaining_s(self) -> float:
        """Return the seconds left for fetching, more than 0. Raises `TimeoutError` when there are none, `RequestError`
        when the caller has left."""
        self.cancellation.check()
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def check_items(self, num_items: int) -> None:
        """Raise `RequestError` when a request has more pictures and videos than it may."""
        if num_items > self.limits.max_items:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the request has {num_items} pictures and videos, more than {self.limits.max_items}: send fewer, "
                "or raise MediaLimits.max_items",
            )

    def spend_bytes(self, num_bytes: int) -> None:
        """Count bytes that were or will be read. Raises `RequestError` when that is more than is left."""
        with self._lock:
            self._num_bytes += num_bytes
            is_exceeded = self._num_bytes > self.limits.max_total_bytes
        if is_exceeded:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the request's media have more than {self.limits.max_total_bytes} bytes together: send fewer or "
                "smaller ones, or raise MediaLimits.max_total_bytes",
            )

    def spend_decoding(self, num_pixels: int, name: str) -> None:
        """Count the pixels of all frames that must be decoded for those that are taken of the video `name`. Raises
        `RequestError` when that is more than is left."""
        with self._lock:
            self._num_decoded_pixels += num_pixels
            is_exceeded = self._num_decoded_pixels > self.limits.max_decoded_pixels
        if is_exceeded:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"{name} takes too long to decode: the frames that must be decoded for those that are taken hold more "
                f"than {self.limits.max_decoded_pixels} pixels, with those of the request's other videos. Send a part "
                "of it (video_end), a smaller one or one with more key frames, or raise MediaLimits.max_decoded_pixels",
            )

    def remaining_document_s(self) -> float:
        """Return the processor time left for the request's documents, more than 0. Raises `RequestError` when there is
        none, or when the caller has left."""
        self.cancellation.check()
        left_s = self.limits.max_document_s - self._document_s
        if left_s <= 0:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the request's documents take more than {self.limits.max_document_s:g} s to open and draw: take fewer "
                "pages, or raise MediaLimits.max_document_s",
            )
        return left_s

    def spend_document_s(self, elapsed_s: float) -> None:
        """Count processor time that a document took."""
        with self._lock:
            self._document_s += elapsed_s

    def spend_pixels(self, num_pixels: int) -> None:
        """Count pixels that will be decoded. Raises `RequestError` when that is more than is left."""
        with self._lock:
            self._num_pixels += num_pixels
            is_exceeded = self._num_pixels > self.limits.max_total_pixels
        if is_exceeded:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the request's pictures and frames hold more than {self.limits.max_total_pixels} pixels together: "
                "send fewer or smaller ones, or raise MediaLimits.max_total_pixels",
            )

    def spend_size(self, size: MediaSize) -> None:
        """Count the pixels or seconds of a medium. Raises `RequestError` when that is more than is left."""
        with self._lock:
            self._audio_s += size.audio_s
            is_exceeded = self._audio_s > self.limits.max_audio_s
        if is_exceeded:
            raise RequestError(
                ErrorCode.MEDIA_TOO_LARGE,
                f"the request's audio lasts more than {self.limits.max_audio_s:g} s together: send less, or raise "
                "MediaLimits.max_audio_s",
            )
        self.spend_pixels(size.num_pixels)
