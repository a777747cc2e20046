"""Stream one answer. A thread reads the server's events, so that stopping takes effect at once, even if the server
sends nothing. Does not depend on Gradio."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Protocol

from seesay.serving.client import LiveAddress
from seesay.ui.conversation import Seen

_MIN_INTERVAL_S = 0.05
_END = object()


class Answerer(Protocol):
    """The interface to the server: an `APIClient`, or a replacement."""

    @property
    def available_models(self) -> list[str]: ...

    def chat_completions_v1(self, *args: Any, **request: Any) -> Generator[dict[str, Any], None, None]:
        """Yield the chunks of an answer, with `stream=True`. Closing the generator stops the answer."""
        ...

    def live_address(self) -> LiveAddress | None:
        """Return where live video goes. None: nowhere, and the page has no button for it."""
        ...


class Answering:
    """An answer to a chat request. `pieces` starts it; `stop` may be called from any thread, any number of times."""

    def __init__(self, client: Answerer, request: Mapping[str, object]) -> None:
        self._client = client
        self._request = request
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._started = time.monotonic()
        self._first_s = 0.0
        self._last_event: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.is_stopped = False

    def pieces(self) -> Iterator[str]:
        """Yield new text, in about twenty pieces a second. Raises `APIError` when there is no answer."""
        self._started = time.monotonic()
        # The visitor's request is in the context: ZeroGPU asks for it.
        read = partial(contextvars.copy_context().run, self._read)
        threading.Thread(target=read, name="seesay-ui-answer", daemon=True).start()
        try:
            is_over = False
            while not is_over:
                batch = [self._events.get()]
                while not self._events.empty():
                    batch.append(self._events.get())
                text = ""
                for event in batch:
                    if event is _END:
                        is_over = True
                        break
                    if isinstance(event, BaseException):
                        raise event
                    text += self._take(event)
                if text:
                    yield text
                if not is_over:
                    time.sleep(_MIN_INTERVAL_S)
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the answer. The connection is closed at the server's next event, which also stops the server."""
        self.is_stopped = True
        self._events.put(_END)

    def seen(self) -> Seen:
        """The server's usage, timings and media reports so far."""
        details = self._last_event.get("seesay") or {}
        return Seen(
            usage=self._usage,
            timings=details.get("timings") or {},
            media=tuple(details.get("media") or ()),
            first_s=self._first_s,
            total_s=time.monotonic() - self._started,
        )

    def _take(self, event: dict[str, Any]) -> str:
        """Return the new text of a chunk, and store its usage, timings and reports."""
        self._last_event = event
        self._usage = event.get("usage") or self._usage
        text = ""
        for choice in event.get("choices", ()):
            text += choice.get("delta", {}).get("content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if text and not self._first_s:
            self._first_s = time.monotonic() - self._started
        return text

    def _read(self) -> None:
        try:
            with closing(self._client.chat_completions_v1(**self._request, stream=True)) as chunks:
                for chunk in chunks:
                    if self.is_stopped:
                        return
                    self._events.put(chunk)
            self._events.put(_END)
        except Exception as error:
            self._events.put(error)
