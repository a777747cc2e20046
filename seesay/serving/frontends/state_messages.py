"""The messages between the frontend processes of a server and the process that started them."""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

import msgspec

from seesay.engine.commands import ModelStatus
from seesay.engine.process.kinds import Do, Hello, Message, Piece, StartFailed
from seesay.serving.errors import ApiError
from seesay.serving.stored.response_store import StoredResponse
from seesay.serving.stored.sessions import Conversation, SessionKey
from seesay.serving.traffic.metric_sums import Family
from seesay.values import MediaPart, MediaPlace, Modality, TextPart
from seesay.values import Message as ChatMessage


class Part(Piece):
    """A `TextPart`, or a `MediaPart` whose source is a text: those that come over HTTP are URLs, or lists of them."""

    text: str | None
    modality: Modality | None
    source: Any
    options: dict[str, Any]
    place: str

    @classmethod
    def of(cls, part: TextPart | MediaPart) -> Part:
        if isinstance(part, TextPart):
            return cls(part.text, None, None, {}, "")
        place = "" if part.place is None else part.place.source
        return cls(None, part.modality, part.source, dict(part.options), place)

    def restore(self) -> TextPart | MediaPart:
        if self.modality is None:
            return TextPart(text=self.text or "")
        place = MediaPlace(source=self.place)
        return MediaPart(modality=self.modality, source=self.source, options=self.options, place=place)


class Said(Piece):
    """A `Message` of a conversation."""

    role: str
    parts: list[Part]
    extra: dict[str, Any]

    @classmethod
    def of(cls, message: ChatMessage) -> Said:
        return cls(message.role, [Part.of(part) for part in message.parts], dict(message.extra))

    def restore(self) -> ChatMessage:
        return ChatMessage(role=self.role, parts=tuple(part.restore() for part in self.parts), extra=self.extra)


class _Stored(Piece):
    body: str  # JSON, which may hold halves of surrogate pairs
    messages: list[Said]
    deleted_items: list[int]


_encoder = msgspec.msgpack.Encoder()
_stored_decoder = msgspec.msgpack.Decoder(_Stored)
_said_decoder = msgspec.msgpack.Decoder(list[Said])


def encode_response(stored: StoredResponse) -> bytes:
    """Return a response as bytes, opaque to the shared state."""
    messages = [Said.of(message) for message in stored.messages]
    return _encoder.encode(_Stored(json.dumps(stored.body), messages, list(stored.deleted_items)))


def decode_response(data: bytes) -> StoredResponse:
    stored = _stored_decoder.decode(data)
    return StoredResponse(
        body=json.loads(stored.body),
        messages=tuple(said.restore() for said in stored.messages),
        deleted_items=tuple(stored.deleted_items),
    )


class History(Piece):
    """A `Conversation`. Its messages are opaque bytes to the shared state; empty bytes mean no messages."""

    messages: bytes
    num_tokens: int
    num_prompt_tokens: int
    num_bytes: int

    @classmethod
    def of(cls, conversation: Conversation) -> History:
        """Take a conversation of a frontend, whose messages are `Message`s."""
        said = [Said.of(message) for message in conversation.messages]
        return cls(
            _encoder.encode(said) if said else b"",
            conversation.num_tokens,
            conversation.num_prompt_tokens,
            conversation.num_bytes,
        )

    def restore(self) -> Conversation:
        """Return the conversation as a frontend uses it."""
        messages = _said_decoder.decode(self.messages) if self.messages else []
        return self.keep(tuple(said.restore() for said in messages))

    def keep(self, messages: object) -> Conversation:
        """Return the conversation with its messages in another form."""
        return Conversation(
            messages=messages,
            num_tokens=self.num_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            num_bytes=self.num_bytes,
        )


class Turn(Piece):
    """The `Caller.turn` of requests over HTTP: a key, or the address of a client without one."""

    key: bytes
    address: str

    @classmethod
    def of(cls, turn: Hashable) -> Turn:
        if isinstance(turn, bytes):
            return cls(turn, "")
        assert isinstance(turn, str)
        return cls(b"", turn)

    def restore(self) -> Hashable:
        return self.key or self.address


# --- from a frontend --------------------------------------------------------------------------------------------------


class Listening(Message):
    """The frontend answers requests."""


class Beat(Message):
    """The frontend's event loop runs."""


class Figures(Message):
    """The frontend's own metrics: an answer to `WantFigures`, or the latest."""

    families: list[Family]
    number: int | None = None


class CachesReset(Message):
    """An answer to `DoReset`."""

    number: int


class RequestsAborted(Message):
    """An answer to `DoAbort`."""

    number: int
    num: int


class Question(Message):
    """Something that the shared state answers with a message of the same number."""

    number: int


class AboutResponse(Question):
    """A question about a stored response, or its events."""

    owner: bytes
    response_id: str


class FindResponse(AboutResponse):
    """Asks for a response."""


class StoreResponse(AboutResponse):
    """Asks to store a response. `if_lost` takes its place if the frontend ends before it stores the response again."""

    stored: bytes
    num_bytes: int
    if_lost: bytes | None = None


class DeleteResponse(AboutResponse):
    """Asks to delete a response."""


class AddEvents(AboutResponse):
    events: list[bytes]
    is_last: bool


class ReadEvents(AboutResponse):
    start: int


class BeginTurn(Question):
    key: SessionKey


class EndTurn(Question):
    """The turn that began with the question `begun` has ended. None: its conversation stays as it was."""

    begun: int
    history: History | None


class CancelSession(Question):
    key: SessionKey


class ForgetSession(Question):
    key: SessionKey


class GatherFigures(Question):
    """Asks for the metrics of all frontends, and has those of the asking one."""

    own: list[Family]


class AbortRequests(Question):
    """Asks for requests of a caller to be ended in all frontends: those of an id, or all."""

    turn: Turn
    rid: str | None


class ResetCaches(Question):
    """Asks for the caches of all frontends to be reset."""


class ReadStatus(Question):
    """Asks for the status of the engine. Like a `Do`, it is answered by `Status`."""


Asked = (
    FindResponse
    | StoreResponse
    | DeleteResponse
    | AddEvents
    | ReadEvents
    | BeginTurn
    | EndTurn
    | CancelSession
    | ForgetSession
    | GatherFigures
    | AbortRequests
    | ResetCaches
    | ReadStatus
)
ToSupervisor = Hello | Listening | Beat | StartFailed | Figures | CachesReset | RequestsAborted | Asked | Do

# --- to a frontend ----------------------------------------------------------------------------------------------------


class Start(Message):
    """Begin to serve. The configurations are those of `seesay.config.plain`."""

    index: int
    num_frontends: int
    model_path: str
    engine_address: str
    settings: dict[str, Any]
    backend_config: dict[str, Any]
    vision_config: dict[str, Any]
    chat_template_config: dict[str, Any] | str | None
    created: int


class Done(Message):
    """The answer to a request that is done."""

    number: int


class FoundResponse(Message):
    number: int
    stored: bytes | None


class FoundEvents(Message):
    """Events of a response. None: it is not stored."""

    number: int
    events: list[bytes] | None
    is_over: bool


class BegunTurn(Message):
    number: int
    history: History


class Refused(Message):
    """An `ApiError`."""

    number: int
    status: int
    text: str
    kind: str
    code: str | None
    param: str | None
    headers: dict[str, str]

    @classmethod
    def of(cls, number: int, error: ApiError) -> Refused:
        headers = dict(error.headers or {})
        return cls(number, error.status_code, error.message, error.kind, error.code, error.param, headers)

    def restore(self) -> ApiError:
        return ApiError(self.status, self.text, kind=self.kind, code=self.code, param=self.param, headers=self.headers)


class Status(Message):
    """The status of the engine, as its owner knows it: after a command, or now."""

    number: int
    status: ModelStatus


class GatheredFigures(Message):
    """The figures of all frontends, of those that ended, and of the shared state."""

    number: int
    figures: list[list[Family]]


class CancelTurn(Message):
    """The turn that began with the question `begun` is to end."""

    begun: int


class FrontsUp(Message):
    """The number of frontends that listen."""

    num: int


class WantFigures(Message):
    number: int


class DoReset(Message):
    number: int


class DoAbort(Message):
    number: int
    turn: Turn
    rid: str | None


class AbortedRequests(Message):
    """The answer to `AbortRequests`: how many were ended."""

    number: int
    num: int


ToFrontend = (
    Start
    | Done
    | FoundResponse
    | FoundEvents
    | BegunTurn
    | Refused
    | Status
    | GatheredFigures
    | CancelTurn
    | FrontsUp
    | WantFigures
    | DoReset
    | DoAbort
    | AbortedRequests
)
