"""Prompts of one call, each prepared once, however many answers to it are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future

from seesay.values import GenerationRequest, MultimodalInput
from seesay.vl.media import PreparedMedia
from seesay.vl.media_batch import MediaBatch

PreparedPrompt = tuple[MultimodalInput, list[PreparedMedia]]


class SharedPrompts:
    """Hold what was prepared for the requests of one call: prompts, and the pictures that several prompts hold.
    Thread-safe.

    Lives no longer than that call, since what a prompt refers to may change later.
    """

    def __init__(self) -> None:
        self.media = MediaBatch()
        self._lock = threading.Lock()
        self._begun: dict[Hashable, tuple[GenerationRequest, Future[PreparedPrompt]]] = {}

    def get(self, request: GenerationRequest, build: Callable[[], PreparedPrompt]) -> PreparedPrompt:
        """The prompt of `request`, built now unless another request for it has begun before. Raises what building it
        raised."""
        with self._lock:
            found = self._begun.get(_key_of(request))
            if found is None:
                future: Future[PreparedPrompt] = Future()
                # The request keeps its objects alive, so that their ids stay unique.
                self._begun[_key_of(request)] = request, future
        if found is not None:
            return found[1].result()
        try:
            future.set_result(build())
        except BaseException as error:
            future.set_exception(error)
        return future.result()


def group_by_prompt(
    requests: Iterable[tuple[int, GenerationRequest]],
) -> list[dict[int, GenerationRequest]]:
    """(id, request) pairs as one mapping for each prompt, in order. Requests share one that was given as the same
    object."""
    groups: dict[Hashable, dict[int, GenerationRequest]] = {}
    for request_id, request in requests:
        groups.setdefault(_key_of(request), {})[request_id] = request
    return list(groups.values())


def _key_of(request: GenerationRequest) -> Hashable:
    """Equal for requests whose prompts are prepared alike."""
    options = id(request.template_options) if request.template_options else None
    wants_answer = request.wants_answer and request.pooling is None
    return id(request.prompt), id(request.media), options, wants_answer, request.owner
