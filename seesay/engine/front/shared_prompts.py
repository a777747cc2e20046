"""Prompts of one call, each prepared once, however many answers to it are asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from seesay.engine.commands import LoadedAdapter
from seesay.values import GenerationRequest, MultimodalInput
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_items import PreparedMedia


class PreparedPrompt(NamedTuple):
    """A prompt, its media, and the adapter by which both are computed."""

    input: MultimodalInput
    media: list[PreparedMedia]
    adapter: LoadedAdapter | None


class SharedPrompts:
    """Hold what was prepared for the requests of one call: prompts, and the pictures that several prompts hold.
    Thread-safe.

    Requests for one prompt are a group: they share its KV, too. keeps_blocks: it stays, for requests that come later.

    Lives no longer than that call, since what a prompt refers to may change later.
    """

    def __init__(self, requests: Iterable[GenerationRequest] = (), *, keeps_blocks: bool = False) -> None:
        """`requests`: all of the call, which may be prepared one after another."""
        self.media = MediaBatch()
        self.keeps_blocks = keeps_blocks
        counts = Counter(map(_key_of, requests))
        self._several = {key for key, count in counts.items() if keeps_blocks or count > 1}
        self._group_ids: dict[Hashable, int] = {}
        self._lock = threading.Lock()
        self._begun: dict[Hashable, tuple[GenerationRequest, Future[PreparedPrompt]]] = {}

    def get(self, request: GenerationRequest, build: Callable[[], PreparedPrompt]) -> PreparedPrompt:
        """The prompt of `request`, built now unless another request for it has begun before. Raises what building it
        raised. A prompt of one request alone is not kept: the pictures of a large call are not held until it ends."""
        if _key_of(request) not in self._several:
            return build()
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

    def group_of(self, request_id: int, request: GenerationRequest) -> int | None:
        """The id of the group of requests for this prompt, which is that of the first of them; None where there is one
        request."""
        if not self._several or (key := _key_of(request)) not in self._several:
            return None
        with self._lock:
            return self._group_ids.setdefault(key, request_id)

    @property
    def group_ids(self) -> list[int]:
        """The ids of all groups."""
        return list(self._group_ids.values())


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
    room = request.gen_config.max_new_tokens if request.truncate_prompt_tokens == -1 else None
    written = (request.chat_template, request.add_special_tokens, request.truncate_prompt_tokens, room)
    thinking = (request.enable_thinking, request.reasoning_effort)
    shared = (options, wants_answer, request.owner, request.cache_salt, request.adapter_name, written, thinking)
    return id(request.prompt), id(request.media), *shared
