"""The two sources of answers in a chat: a model in this process, or a server. Both stream `Piece`s and raise
`SeesayError`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from seesay.engine.front.request_batch import RequestBatch
from seesay.values import GenerationRequest
from seesay.vl.prompts.conversation_parts import parse_messages

if TYPE_CHECKING:
    from seesay.config import GenerationConfig
    from seesay.offline.pipeline import Pipeline
    from seesay.serving.client import APIClient

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Token counts of one answer. The prompt's count includes media tokens, those of audio among them, and cached
    tokens."""

    prompt_tokens: int
    completion_tokens: int
    media_tokens: int = 0
    audio_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New text of an answer. The last piece has the counts, and says whether the answer reached its length limit."""

    text: str = ""
    counts: Counts | None = None
    is_cut: bool = False


Pieces = Generator[Piece, None, None]


class Answerer(Protocol):
    """Answer conversations, one at a time. Closing the generator early stops the answer."""

    def answer(self, messages: Messages) -> Pieces: ...


class LocalModel:
    """Answer with a pipeline in this process."""

    def __init__(self, pipe: Pipeline, gen_config: GenerationConfig) -> None:
        self._pipe = pipe
        self._gen_config = gen_config

    def answer(self, messages: Messages) -> Pieces:
        """Yield the answer. Raises RequestError for a conversation that the model cannot answer."""
        # Do not call `Pipeline.stream_infer`: it takes a typed `IMAGE_TOKEN` for a picture marker; here it is text.
        request = GenerationRequest(prompt=parse_messages(messages), gen_config=self._gen_config)
        with closing(RequestBatch(self._pipe.engine, [request]).deltas()) as deltas:
            for _, delta in deltas:
                if delta.error is not None:
                    raise delta.error
                counts = None
                if (usage := delta.usage) is not None:
                    counts = Counts(
                        prompt_tokens=usage.prompt_tokens,
                        completion_tokens=usage.completion_tokens,
                        media_tokens=usage.media_tokens,
                        audio_tokens=usage.audio_tokens,
                        cached_tokens=usage.cached_tokens,
                    )
                yield Piece(text=delta.text, counts=counts, is_cut=delta.finish_reason == "length")


class RemoteModel:
    """Answer with a model of a server. `fields` are added to every request."""

    def __init__(self, client: APIClient, model: str, fields: Mapping[str, Any]) -> None:
        self._client = client
        self._model = model
        self._fields = fields

    def answer(self, messages: Messages) -> Pieces:
        """Yield the answer. Raises APIError for a request that the server refuses."""
        is_cut = False
        chunks = self._client.chat_completions_v1(
            self._model,
            messages,
            **{"stream": True, "stream_options": {"include_usage": True}, "top_p": None, "n": None, **self._fields},
        )
        with closing(chunks):
            for chunk in chunks:
                for choice in chunk.get("choices") or ():
                    is_cut = is_cut or choice.get("finish_reason") == "length"
                    if text := (choice.get("delta") or {}).get("content"):
                        yield Piece(text=text)
                if usage := chunk.get("usage"):
                    yield Piece(counts=_read_usage(usage), is_cut=is_cut)
                    is_cut = False
        if is_cut:
            yield Piece(is_cut=True)


def _read_usage(usage: Mapping[str, Any]) -> Counts:
    details = usage.get("prompt_tokens_details") or {}
    return Counts(
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        media_tokens=int(details.get("vision_tokens") or 0) + int(details.get("audio_tokens") or 0),
        audio_tokens=int(details.get("audio_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )
