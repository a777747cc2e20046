"""Conversations that the server stores, by session. Limited in number and bytes, with LRU eviction. Not thread-safe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from seesay.serving.errors import ApiError
from seesay.values import MediaPart, Message

MAX_SESSIONS = 1024
MAX_BYTES = 256 << 20

SessionKey = tuple[bytes, int]
"""The owner of a session (`auth.owner_of`) and its number."""

_MESSAGE_BYTES = 256  # size of a message without its content


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages of one session.

    messages: `Message`s; a store does not look into them, and may be given another form.
    num_tokens: length of the last prompt and of all tokens generated for it.
    num_prompt_tokens: length of the messages in the next prompt; smaller if tokens without a text were generated.
    num_bytes: size of all texts and media references.
    """

    messages: Any = ()
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_bytes: int = 0

    def extended(self, turn: Sequence[Message], *, num_tokens: int, num_prompt_tokens: int) -> Conversation:
        """Return the conversation with one more turn and its answer."""
        return Conversation(
            messages=(*self.messages, *turn),
            num_tokens=num_tokens,
            num_prompt_tokens=num_prompt_tokens,
            num_bytes=self.num_bytes + sum(map(_size_of, turn)),
        )

    def check_size(self, turn: Sequence[Message], max_bytes: int = MAX_BYTES) -> None:
        """Raise `ApiError` 400 if the conversation with this turn would exceed the limit of the whole store."""
        if self.num_bytes + sum(map(_size_of, turn)) > max_bytes:
            raise ApiError(
                400,
                f"the session would have more than {max_bytes} bytes; start over with interactive_mode=false",
                param="session_id",
                code="session_too_large",
            )


EMPTY = Conversation()


class Session:
    """An entry of the store. `on_cancel` ends the answer that is running; None while none is."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.conversation = EMPTY
        self.on_cancel: Callable[[], None] | None = None

    def cancel(self) -> None:
        if self.on_cancel is not None:
            self.on_cancel()


class SessionStore:
    """Conversations by key."""

    def __init__(self, *, max_sessions: int = MAX_SESSIONS, max_bytes: int = MAX_BYTES) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[SessionKey, Session] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_bytes(self) -> int:
        """Size of all texts and media references."""
        return sum(session.conversation.num_bytes for session in self._sessions.values())

    def forget(self, key: SessionKey) -> None:
        """Delete a conversation, and end its running answer."""
        session = self._sessions.pop(key, None)
        if session is not None:
            session.cancel()

    def cancel(self, key: SessionKey) -> None:
        """End the running answer of a conversation."""
        session = self._sessions.get(key)
        if session is not None:
            session.cancel()

    def begin(self, key: SessionKey, on_cancel: Callable[[], None]) -> Session:
        """Return the session of `key` for one turn, and create it if needed; the caller must `end` it. `on_cancel` is
        called when the turn is to be cancelled. Raises `ApiError` 409 if another turn of it is being answered, and 503
        if all stored conversations are being answered."""
        session = self._sessions.get(key)
        if session is None:
            session = Session(key)
        elif session.on_cancel is not None:
            raise ApiError(
                409,
                "this session has a running answer: read it to its end, or stop it with cancel=true",
                param="session_id",
                code="session_busy",
            )
        session.on_cancel = on_cancel
        self._sessions[key] = session
        self._sessions.move_to_end(key)
        try:
            self._make_room()
        except ApiError:
            self.end(session)
            raise
        return session

    def end(self, session: Session, conversation: Conversation | None = None) -> None:
        """End a turn; `conversation` replaces what was stored. A session without messages is not kept."""
        session.on_cancel = None
        if conversation is not None:
            session.conversation = conversation
        if self._sessions.get(session.key) is not session:  # forgotten meanwhile
            return
        if not session.conversation.messages:
            del self._sessions[session.key]
        self._make_room()

    def _make_room(self) -> None:
        idle = [session for session in self._sessions.values() if session.on_cancel is None]
        num_bytes = self.num_bytes
        for session in idle:
            if len(self._sessions) <= self._max_sessions and num_bytes <= self._max_bytes:
                return
            del self._sessions[session.key]
            num_bytes -= session.conversation.num_bytes
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem()
            raise ApiError(
                503,
                "all sessions are being answered; try again later",
                kind="server_error",
                code="too_many_sessions",
                retry_after_s=1,
            )


def _size_of(message: Message) -> int:
    size = _MESSAGE_BYTES
    for part in message.parts:
        size += len(str(part.source)) if isinstance(part, MediaPart) else 4 * len(part.text)
    return size
