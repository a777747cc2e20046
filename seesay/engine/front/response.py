"""The pipeline's answer, and how it is put together from `OutputDelta`s."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seesay.values import FinishReason, MediaReport, OutputDelta, StageTimings, Usage, find_prompt_logprobs
from seesay.values.prompt_logprobs import PromptLogprobs
from seesay.values.shapes import Box, Point, Polygon, Shapes, Timestamp
from seesay.vl.grounding import find_shapes
from seesay.vl.timestamps import find_timestamps

if TYPE_CHECKING:
    from PIL import Image


@dataclass(slots=True)
class Response:
    """An answer, or, in a stream, a piece of one.

    text: the answer; of a stream's piece, the new text alone. When `finish_reason` is 'error', what was wrong and what
        to do about it.
    generate_token_len, input_token_len: tokens generated so far, and tokens of the prompt.
    finish_reason: 'stop', 'length', 'abort' or 'error'; None while the answer goes on. stop_reason: of 'stop', the word
        or the token that ended the answer, or 'repetition' (`repetition_ngram_threshold`).
    token_ids: of the answer (of a piece: the new ones). logprobs: {token id: log-probability} per token of these.
    prompt_logprobs: the same per token of the prompt, None for the first and where a picture or video is; in a stream,
        of the first piece.
    logits, last_hidden_state: tensors [tokens, …] when the generation config asked for them. pooled: float32 [hidden],
        the embedding of a prompt with `pooling`; [n, size] with 'tokens'.
    mean_logprob: of all tokens of the answer, the one that ended it included, with `logprobs` or `best_of`.
    score: of an answer of a beam search.
    index: which prompt of the call this answers. choice_index: which of the answers to this prompt it is.
    other_choices: the other answers, where `n` asked for several. session_id: the session's id, or the request's.
    usage, timings, media: counts, seconds per stage, and how each picture and video was seen, when the answer is
        complete. error: of finish reason 'error'.
    """

    text: str
    generate_token_len: int = 0
    input_token_len: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    logits: Any = None
    last_hidden_state: Any = None
    pooled: Any = None
    mean_logprob: float | None = None
    score: float | None = None
    index: int = 0
    choice_index: int = 0
    other_choices: list[Response] = field(default_factory=list)
    session_id: int = -1
    usage: Usage | None = None
    timings: StageTimings | None = None
    media: tuple[MediaReport, ...] = ()
    error: Exception | None = None

    @property
    def choices(self) -> list[Response]:
        """All answers to the prompt, this one first. With `best_of` the best come first."""
        return [self, *self.other_choices]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes that the answer has, in pixels of the upright picture that was given: see docs/boxes.md."""
        return self._shapes.boxes

    @property
    def points(self) -> tuple[Point, ...]:
        """The points that it has."""
        return self._shapes.points

    @property
    def polygons(self) -> tuple[Polygon, ...]:
        """The polygons that it has."""
        return self._shapes.polygons

    @property
    def timestamps(self) -> tuple[Timestamp, ...]:
        """The times of videos that it has, in seconds of the video that was given."""
        return find_timestamps(self.text, self.media)

    def draw(self, picture: object, index: int = 0) -> Image.Image:
        """Return a copy of a picture, which is what `load_image` takes, with what the answer marks in it. index: which
        picture of the prompt it is."""
        from seesay.processors.media.draw_shapes import draw_shapes
        from seesay.processors.media.load import load_image

        return draw_shapes(load_image(picture), self._shapes, index)

    @property
    def _shapes(self) -> Shapes:
        return find_shapes(self.text, self.media)

    def __repr__(self) -> str:
        reason = "" if self.finish_reason is None else f", finish_reason={self.finish_reason!r}"
        counts = f"input_token_len={self.input_token_len}, generate_token_len={self.generate_token_len}"
        others = f", choices={len(self.choices)}" if self.other_choices else ""
        return f"Response(index={self.index}, text={self.text!r}, {counts}{reason}{others})"


class AnswerBuilder:
    """Collects the deltas of one request. Ends with the delta that has a finish reason."""

    __slots__ = ("_choice_index", "_deltas", "_index", "_num_tokens", "session_id")

    def __init__(self, index: int, session_id: int | None = None, *, choice_index: int = 0) -> None:
        self._deltas: list[OutputDelta] = []
        self._num_tokens = 0
        self._index = index
        self._choice_index = choice_index
        self.session_id = session_id

    def add(self, delta: OutputDelta) -> Response:
        """The delta as a piece of the answer."""
        self._deltas.append(delta)
        self._num_tokens += len(delta.token_ids)
        return self._make(
            delta,
            text=delta.text if delta.error is None else str(delta.error),
            token_ids=list(delta.token_ids),
            logprobs=None if delta.logprobs is None else [dict(entry) for entry in delta.logprobs],
            prompt_logprobs=delta.prompt_logprobs,
        )

    def complete(self) -> Response:
        """The whole answer, once its last delta was added."""
        last = self._deltas[-1]
        logprobs = [dict(entry) for delta in self._deltas for entry in delta.logprobs or ()]
        return self._make(
            last,
            text="".join(delta.text for delta in self._deltas) if last.error is None else str(last.error),
            token_ids=[token_id for delta in self._deltas for token_id in delta.token_ids],
            logprobs=logprobs or None,
            prompt_logprobs=find_prompt_logprobs(self._deltas),
        )

    def _make(
        self,
        delta: OutputDelta,
        *,
        text: str,
        token_ids: list[int],
        logprobs: list[dict[int, float]] | None,
        prompt_logprobs: PromptLogprobs | None,
    ) -> Response:
        return Response(
            text=text,
            generate_token_len=self._num_tokens if delta.usage is None else delta.usage.completion_tokens,
            input_token_len=delta.prompt_tokens if delta.usage is None else delta.usage.prompt_tokens,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=None if prompt_logprobs is None else prompt_logprobs.to_list(),
            logits=delta.logits,
            last_hidden_state=delta.last_hidden_state,
            pooled=delta.pooled,
            mean_logprob=delta.mean_logprob,
            index=self._index,
            choice_index=self._choice_index,
            session_id=delta.request_id if self.session_id is None else self.session_id,
            usage=delta.usage,
            timings=delta.timings,
            media=delta.media,
            error=delta.error,
        )
