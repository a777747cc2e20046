"""Conversations that the server stores, by session. Limited in number and bytes, with LRU eviction. Not thread-safe:
used from the serving event loop."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

from seesay.serving.errors import ApiError
from seesay.values import MediaPart, Message

MAX_SESSIONS = 1024
MAX_BYTES = 256 << 20

_MESSAGE_BYTES = 256  # size of a message without its content


class Conversation:
    """The messages of one session. Setting `cancelled` ends its answer.

    num_tokens: length of the last prompt and of all tokens generated for it.
    num_prompt_tokens: length of the messages in the next prompt; smaller if tokens without a text were generated.
    """

    def __init__(self) -> None:
        self.messages: tuple[Message, ...] = ()
        self.num_tokens = 0
        self.num_prompt_tokens = 0
        self.num_bytes = 0
        self.is_answering = False
        self.cancelled = asyncio.Event()


class SessionStore:
    """Conversations by key."""

    def __init__(self, *, max_sessions: int = MAX_SESSIONS, max_bytes: int = MAX_BYTES) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._conversations: OrderedDict[Hashable, Conversation] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def num_bytes(self) -> int:
        """Size of all texts and media references."""
        return sum(conversation.num_bytes for conversation in self._conversations.values())

    def forget(self, key: Hashable) -> None:
        """Delete a conversation, and end its running answer."""
        conversation = self._conversations.pop(key, None)
        if conversation is not None:
            conversation.cancelled.set()

    def cancel(self, key: Hashable) -> None:
        """End the running answer of a conversation."""
        conversation = self._conversations.get(key)
        if conversation is not None and conversation.is_answering:
            conversation.cancelled.set()

    @contextmanager
    def answering(self, key: Hashable) -> Iterator[Conversation]:
        """Yield the conversation of `key` for one turn, and create it if needed. Raises `ApiError` 409 if another turn
        of it is being answered, and 503 if all stored conversations are being answered."""
        conversation = self._conversations.get(key)
        if conversation is None:
            conversation = Conversation()
        elif conversation.is_answering:
            raise ApiError(
                409,
                "this session has a running answer: read it to its end, or stop it with cancel=true",
                param="session_id",
                code="session_busy",
            )
        conversation.is_answering = True
        conversation.cancelled = asyncio.Event()  # bound to the event loop that serves this turn
        self._conversations[key] = conversation
        self._conversations.move_to_end(key)
        try:
            self._make_room()
            yield conversation
        finally:
            conversation.is_answering = False
            if not conversation.messages and self._conversations.get(key) is conversation:
                del self._conversations[key]

    def extend(
        self, conversation: Conversation, turn: Sequence[Message], *, num_tokens: int, num_prompt_tokens: int
    ) -> None:
        """Add a turn with its answer. The counts are those of `Conversation`."""
        conversation.messages = (*conversation.messages, *turn)
        conversation.num_tokens = num_tokens
        conversation.num_prompt_tokens = num_prompt_tokens
        conversation.num_bytes += sum(map(_size_of, turn))
        self._make_room()

    def check_size(self, conversation: Conversation, turn: Sequence[Message]) -> None:
        """Raise `ApiError` 400 if the conversation with this turn would exceed the limit of the whole store."""
        if conversation.num_bytes + sum(map(_size_of, turn)) > self._max_bytes:
            raise ApiError(
                400,
                f"the session would have more than {self._max_bytes} bytes; start over with interactive_mode=false",
                param="session_id",
                code="session_too_large",
            )

    def _make_room(self) -> None:
        idle = [key for key, conversation in self._conversations.items() if not conversation.is_answering]
        num_bytes = self.num_bytes
        for key in idle:
            if len(self._conversations) <= self._max_sessions and num_bytes <= self._max_bytes:
                return
            num_bytes -= self._conversations.pop(key).num_bytes
        if len(self._conversations) > self._max_sessions:
            self._conversations.popitem()
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
