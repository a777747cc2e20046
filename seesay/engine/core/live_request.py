"""A request while the engine loop computes it: tokens that are not handed out yet, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from seesay.config.grammar import Grammar
from seesay.encoders.worker import EncodeTiming
from seesay.engine.token_messages import TokenOutput, TokenReport, TokenRequest
from seesay.errors import RequestError
from seesay.llm.scheduling.sequence import EmbeddingState
from seesay.llm.scheduling.sequence import Sequence as TokenSequence
from seesay.values import FinishReason, ThoughtRule
from seesay.values.prompt_logprobs import PromptLogprobs

if TYPE_CHECKING:
    from seesay.llm.running.launched_step import RowResult
    from seesay.llm.running.sampling_row import LogitsProcessor


class Collected:
    """Per-position outputs of one request, in order of position. A preempted sequence is computed again: positions
    that are here already are not taken twice."""

    def __init__(self) -> None:
        self._pieces: list[Any] = []
        self._stop: int | None = None

    def add(self, start: int, piece: Any) -> None:
        """Take `piece` (CPU tensor or log-probabilities, one entry per position from `start`)."""
        stop = start + len(piece)
        known = 0 if self._stop is None else max(0, self._stop - start)
        if known < len(piece):
            self._pieces.append(piece[known:])
            self._stop = stop

    def is_complete(self, stop: int) -> bool:
        """Whether the positions up to `stop` are here."""
        return self._stop is not None and self._stop >= stop

    def as_logprobs(self) -> PromptLogprobs:
        """All entries, which are pieces of log-probabilities, as one."""
        return PromptLogprobs.join(self._pieces)

    def as_array(self) -> Any:
        """All entries as one array [n, …]; None when there are none."""
        return np.concatenate([np.asarray(piece) for piece in self._pieces]) if self._pieces else None


@dataclass(slots=True, kw_only=True)
class LiveRequest:
    """A request inside the loop: its sequence, its output that was not sent yet, and what it cost.

    defers_tokens: whether all tokens come with the final output. processors: change its logits. grammar: the program
    that the answer follows. thought: the thought before that, if it has a rule. lent_items: indexes of the media items
    whose embedding was still being computed when it was taken, and is not known to be good. end: makes the final output
    of a request that computes nothing any more, while it waits to hear of such embeddings. is_checked: whether its
    adapter was there when it came. has_sent_prompt: whether the prompt's log-probabilities were sent. Times that end in
    `_at` are `time.perf_counter()` readings.
    """

    sequence: TokenSequence
    defers_tokens: bool
    processors: tuple[LogitsProcessor, ...] = ()
    grammar: Grammar | None = None
    thought: ThoughtRule | None = None
    is_checked: bool = False
    encode_queue_s: float = 0.0
    encode_s: float = 0.0
    encoding_since_s: float | None = None
    encoded_until_s: float = 0.0
    computing_at: float | None = None
    first_token_at: float | None = None
    new_token_ids: list[int] = field(default_factory=list)
    new_logprobs: list[Mapping[int, float]] = field(default_factory=list)
    logits: Collected = field(default_factory=Collected)
    hidden_states: Collected = field(default_factory=Collected)
    prompt_logprobs: Collected = field(default_factory=Collected)
    hidden_sum: Any = None
    token_vectors: Collected = field(default_factory=Collected)
    has_sent_prompt: bool = False
    encoded_items: set[int] = field(default_factory=set)
    lent_items: set[int] = field(default_factory=set)
    end: Callable[[], None] | None = None

    @classmethod
    def make(cls, request: TokenRequest, processors: tuple[LogitsProcessor, ...] = ()) -> LiveRequest:
        """The live form of `request`, whose sequence waits. `processors` are its logits processors."""
        sequence = TokenSequence(
            request.request_id,
            request.prompt,
            request.params,
            owner=request.owner,
            priority=request.priority,
            cache_salt=request.cache_salt,
            adapter_id=request.adapter_id,
            is_streamed=request.is_streamed,
            group_id=request.group_id,
            keeps_blocks=request.keeps_blocks,
        )
        return cls(
            sequence=sequence,
            defers_tokens=request.defers_tokens,
            processors=processors,
            grammar=request.grammar,
            thought=request.thought,
        )

    @property
    def request_id(self) -> int:
        return self.sequence.seq_id

    def add_encoding(self, item_hash: bytes, timing: EncodeTiming) -> None:
        """Take what it cost to get an embedding, when a media item of this request waits for it."""
        lent = self.find_lent(item_hash)
        self.lent_items.difference_update(lent)
        waiting = [*self.find_waiting(item_hash), *lent]
        if waiting and timing.encode_s > 0:
            self.encoded_items.update(waiting)
            self.encode_queue_s = max(self.encode_queue_s, timing.queue_s)
            # Media of one batch share its time, and batches of a GPU overlap: no second counts twice.
            ended_s = timing.started_s + timing.encode_s
            self.encoding_since_s = min(timing.started_s, self.encoding_since_s or timing.started_s)
            self.encode_s += max(0.0, ended_s - max(timing.started_s, self.encoded_until_s))
            self.encoded_until_s = max(ended_s, self.encoded_until_s)
            if self.computing_at is not None:  # its first row was launched behind the tower
                self.computing_at = max(ended_s, self.computing_at)

    def lend(self, item_hash: bytes) -> None:
        """The items that wait for this embedding can be computed before it is known to be good."""
        self.lent_items.update(self.find_waiting(item_hash))

    def find_lent(self, item_hash: bytes) -> list[int]:
        """Indexes of the media items that took this embedding before it was known to be good."""
        return [index for index in sorted(self.lent_items) if self.sequence.items[index].hash == item_hash]

    def find_waiting(self, item_hash: bytes) -> list[int]:
        """Indexes of the media items that wait for this embedding."""
        seq = self.sequence
        return [
            index
            for index, (item, state) in enumerate(zip(seq.items, seq.item_states, strict=True))
            if item.hash == item_hash and state is EmbeddingState.REQUESTED
        ]

    def add_row(self, row: RowResult) -> None:
        """Take what a row gave beside its token and the logprobs of it."""
        if row.prompt_logprobs is not None:
            self.prompt_logprobs.add(row.start + 1, row.prompt_logprobs)
        if row.logits is not None:
            self.logits.add(row.logits.start, row.logits.values)
        if row.hidden_states is not None:
            self.hidden_states.add(row.hidden_states.start, row.hidden_states.values)
        if row.token_vectors is not None:
            self.token_vectors.add(row.token_vectors.start, row.token_vectors.values)
        if row.hidden_sum is not None:
            # Nothing of a mean comes from a cache, so a sequence that was preempted begins again at 0.
            begins = row.start == 0 or self.sequence.params.pooling == "last"
            self.hidden_sum = row.hidden_sum if begins else self.hidden_sum + row.hidden_sum

    def note_token(self) -> None:
        """Note when the first token was known."""
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()

    def add_tokens(self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, float]]) -> None:
        """Take new tokens; `logprobs` has those of each of them, where they were asked for."""
        self.new_token_ids.extend(token_ids)
        self.new_logprobs.extend(logprobs)

    def take_output(
        self,
        reason: FinishReason | None = None,
        *,
        stop_token_id: int | None = None,
        error: RequestError | None = None,
        failed_item: int | None = None,
    ) -> TokenOutput:
        """Return the output since the last call; with a `reason` the final output, which has the report."""
        token_ids, logprobs = tuple(self.new_token_ids), tuple(self.new_logprobs) or None
        self.new_token_ids.clear()
        self.new_logprobs.clear()
        if reason is None:
            output = TokenOutput(request_id=self.sequence.seq_id, token_ids=token_ids, logprobs=logprobs)
            if self.sequence.params.prompt_logprobs is not None:
                output.prompt_logprobs = self._take_prompt_logprobs()
            return output
        return TokenOutput(
            request_id=self.sequence.seq_id,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            stop_token_id=stop_token_id,
            error=error,
            failed_item=failed_item,
            prompt_logprobs=None if error is not None else self._take_prompt_logprobs(),
            report=self._make_report(),
        )

    def _take_prompt_logprobs(self) -> PromptLogprobs | None:
        """Return the log-probabilities of the prompt, once, when all are there."""
        seq = self.sequence
        if seq.params.prompt_logprobs is None or self.has_sent_prompt:
            return None
        if seq.num_prompt_tokens > 1 and not self.prompt_logprobs.is_complete(seq.num_prompt_tokens):
            return None
        self.has_sent_prompt = True
        return self.prompt_logprobs.as_logprobs()

    def _make_report(self) -> TokenReport:
        seq, pooled = self.sequence, self.token_vectors.as_array()
        if self.hidden_sum is not None:
            pooled = np.asarray(self.hidden_sum / (1 if seq.params.pooling == "last" else seq.num_prompt_tokens))
        return TokenReport(
            num_cached_tokens=seq.num_cached_tokens,
            num_drafted=seq.num_drafted,
            num_accepted=seq.num_accepted,
            encode_queue_s=self.encode_queue_s,
            encode_s=self.encode_s,
            encoding_at_s=self.encoding_since_s,
            encoded_at_s=self.encoded_until_s or None,
            computing_at_s=self.computing_at,
            first_token_at_s=self.first_token_at,
            encoded_items=tuple(sorted(self.encoded_items)),
            logits=self.logits.as_array(),
            hidden_states=self.hidden_states.as_array(),
            pooled=pooled,
        )
