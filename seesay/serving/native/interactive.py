"""`/v1/chat/interactive`: a chat whose history the server stores (LMDeploy's manual, 1.6.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.config import MediaLimits
from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.http.streaming import EventStream, make_event
from seesay.serving.native.protocol import InteractiveAnswer, InteractiveRequest
from seesay.serving.openai.wire import DONE, make_error_event
from seesay.serving.requests.caller import Caller, caller_of
from seesay.serving.requests.content import keep_media, read_messages, read_pictures
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import deltas_until, unless_gone
from seesay.serving.stored.sessions import EMPTY, SessionKey
from seesay.serving.stored.shared_state import SessionTurn
from seesay.serving.traffic.auth import owner_of
from seesay.values import GenerationRequest, Message, TextPart, Usage


def make_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = make_api_router("native")

    @router.post(
        "/v1/chat/interactive",
        response_model=InteractiveAnswer,
        responses={
            200: {
                "description": "the answer; with stream=true, events of the same shape, then `[DONE]`",
                "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/InteractiveAnswer"}}},
            }
        },
    )
    async def chat_interactive(body: InteractiveRequest, http: Request) -> Response:
        """Answer the next turn of a session."""
        state.check_model(body.model)
        key = (owner_of(http.scope), body.session_id)
        if body.cancel:
            await state.shared.cancel_session(key)
            return _nothing()
        if not body.interactive_mode and body.session_id >= 0:
            await state.shared.forget_session(key)
            if body.prompt == "":
                return _nothing()
        reply = await off_loop(http, _Reply, state, body, key if body.interactive_mode else None)
        pieces = reply.pieces(caller_of(http.scope))
        if body.stream:
            return EventStream(_events(pieces), render_error=make_error_event)
        return JSONResponse(await unless_gone(http.receive, _collect(pieces)))

    return router


def _nothing() -> JSONResponse:
    return JSONResponse(_piece("", tokens=0, history_tokens=0, input_tokens=0))


def _piece(
    text: str,
    *,
    tokens: int,
    history_tokens: int,
    input_tokens: int | None = None,
    cached_tokens: int | None = None,
    finish_reason: str | None = None,
) -> dict[str, object]:
    return {
        "text": text,
        "tokens": tokens,
        "input_tokens": input_tokens,
        "history_tokens": history_tokens,
        "cached_tokens": cached_tokens,
        "finish_reason": finish_reason,
    }


async def _events(pieces: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        async for piece in pieces:
            yield make_event(piece)
    yield DONE


async def _collect(pieces: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    texts: list[str] = []
    last: dict[str, Any] = {}
    async with aclosing(pieces):
        async for last in pieces:
            texts.append(last["text"])
    return {**last, "text": "".join(texts)}


class _Reply:
    """The answer to one turn. `key` is that of its session; None stores nothing."""

    def __init__(self, state: ServerState, body: InteractiveRequest, key: SessionKey | None) -> None:
        """Read the body. Raises `ApiError` if it cannot be answered. Nothing is computed yet."""
        if body.request_output_len == 0:
            raise bad_request("request_output_len must be at least 1, got 0", "request_output_len")
        self._state = state
        self._key = key
        self._names = body.field_names("prompt")
        self._config = state.defaults.make_config(
            max_new_tokens=body.request_output_len,
            names=self._names,
            **body.sampling(),
        )
        self._options = body.request_options()
        options = body.media_options(state.engine.family)
        self._turn = options.fill_messages(_read_turn(body, state.settings.media))
        self._streams = bool(body.stream) or key is not None  # a session stores the text generated before a cancel

    async def pieces(self, caller: Caller) -> AsyncGenerator[dict[str, Any], None]:
        """Yield new pieces as they come; the last one has a finish reason. The turn becomes part of the session once it
        is answered, or when it is cancelled after its first text."""
        if self._key is None:
            async for piece in self._answer(None, caller):
                yield piece
            return
        async with self._state.shared.turn(self._key) as turn:
            turn.conversation.check_size(self._turn)
            async with aclosing(self._answer(turn, caller)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _answer(self, turn: SessionTurn | None, caller: Caller) -> AsyncGenerator[dict[str, Any], None]:
        conversation = EMPTY if turn is None else turn.conversation
        cancelled = asyncio.Event() if turn is None else turn.cancelled
        history_tokens, texts, tokens, prompt_tokens = conversation.num_tokens, list[str](), 0, 0
        num_before = conversation.num_prompt_tokens
        request = GenerationRequest(
            prompt=(*conversation.messages, *self._turn),
            gen_config=self._config,
            streams=self._streams,
            **self._options,
        )
        deltas = self._state.answering.deltas([request], caller=caller, names=self._names)
        async with aclosing(deltas_until(deltas, cancelled)) as until_cancelled:
            async for delta in until_cancelled:
                texts.append(delta.text)
                tokens += len(delta.token_ids)
                prompt_tokens = delta.prompt_tokens
                if delta.finish_reason is None:
                    yield _piece(delta.text, tokens=tokens, history_tokens=history_tokens)
                    continue
                usage = delta.usage or Usage()
                await self._remember(turn, "".join(texts), usage.prompt_tokens, usage.completion_tokens)
                yield _piece(
                    delta.text,
                    tokens=usage.completion_tokens,
                    history_tokens=history_tokens,
                    input_tokens=max(0, usage.prompt_tokens - num_before),
                    cached_tokens=usage.cached_tokens,
                    finish_reason=delta.finish_reason,
                )
                return
        if any(texts):
            await self._remember(turn, "".join(texts), prompt_tokens, tokens)
        new_tokens = max(0, prompt_tokens - num_before)
        yield _piece("", tokens=tokens, history_tokens=history_tokens, input_tokens=new_tokens, finish_reason="cancel")

    async def _remember(self, turn: SessionTurn | None, text: str, prompt_tokens: int, tokens: int) -> None:
        """Add the turn and its answer, whose `tokens` may be more than its text has: special ones leave none. The next
        turn may begin before the client has all of this one's answer."""
        if turn is not None:
            num_text_tokens = len(await asyncio.to_thread(self._state.engine.tokenizer.encode, text))
            answer = Message(role="assistant", parts=(TextPart(text=text),))
            extended = turn.conversation.extended(
                (*keep_media(self._turn, "session_id"), answer),
                num_tokens=prompt_tokens + tokens,
                num_prompt_tokens=prompt_tokens + min(tokens, num_text_tokens + 1),  # one ends the answer
            )
            await turn.finish(extended)


def _read_turn(body: InteractiveRequest, limits: MediaLimits) -> tuple[Message, ...]:
    if not isinstance(body.prompt, str):
        if not isinstance(body.prompt, list):
            raise bad_request(f"prompt must be a string or a list of messages, got {show(body.prompt)}", "prompt")
        return read_messages(body.prompt, limits, param="prompt")
    if not body.prompt and not body.image_url:
        raise bad_request("prompt must not be empty, got ''", "prompt")
    pictures = read_pictures(body.image_url, limits, "image_url")
    return (Message(role="user", parts=(*pictures, TextPart(text=body.prompt))),)
