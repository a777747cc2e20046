"""`/v1/completions`: raw texts or token ids, without a chat template."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.engine.asking import choices_of
from seesay.serving.answers import Answer, Tally
from seesay.serving.bodies import make_api_router, off_loop
from seesay.serving.caller import caller_of
from seesay.serving.errors import bad_request
from seesay.serving.openai.logprobs import TokenSpeller
from seesay.serving.openai.offsets import TextOffsets, spell_prompt
from seesay.serving.openai.protocol import Completion, CompletionRequest
from seesay.serving.openai.wire import (
    DONE,
    FINGERPRINT,
    SAMPLING_PARAM_NAMES,
    make_details,
    make_error_event,
    make_id,
    make_usage,
    wants_timings,
)
from seesay.serving.prompts import tokenize_prompt
from seesay.serving.state import ServerState
from seesay.serving.streaming import EventStream, describe_events, make_event
from seesay.values import GenerationRequest, OutputDelta

_DEFAULT_MAX_TOKENS = 16  # OpenAI's default


def make_router(state: ServerState) -> APIRouter:
    """Return the route."""
    router = make_api_router("OpenAI")

    @router.post(
        "/v1/completions",
        response_model=Completion,
        responses={
            200: {
                "description": "the answers; with stream=true, events of the same model, then `[DONE]`",
                "content": describe_events("Completion"),
            }
        },
    )
    async def create_completion(body: CompletionRequest, http: Request) -> Response:
        """Continue texts."""
        reply = await off_loop(http, CompletionReply, state, body, http)
        await reply.prepare_echo()
        if body.stream:
            return EventStream(reply.stream(), render_error=make_error_event)
        answers = await state.answering.collect(
            reply.requests, receive=http.receive, caller=caller_of(http.scope), fields=reply.fields
        )
        return JSONResponse(reply.make_completion(answers))

    return router


def count_prompts(prompt: object) -> int:
    """Return the number of prompts in a field that holds one prompt or several, as text or token ids."""
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1


def name_prompts(prompt: object, param: str) -> list[str]:
    """Return the API's name of each prompt: the field, with an index if it holds several."""
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return [f"{param}[{index}]" for index in range(count_prompts(prompt))] if several else [param]


def read_prompts(state: ServerState, prompt: object, param: str) -> list[str | tuple[int, ...]]:
    """Return one entry per prompt: text or token ids. Raises `ApiError` 400 for an empty prompt and for unknown ids."""
    if not isinstance(prompt, str | list):
        raise bad_request(f"{param} must be a string, token ids, or a list of strings or of token ids", param)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        kind = type(prompt[0])
        return [_read_prompt(state, item, kind, f"{param}[{index}]") for index, item in enumerate(prompt)]
    return [_read_prompt(state, prompt, type(prompt), param)]


def _read_prompt(state: ServerState, prompt: object, kind: type, where: str) -> str | tuple[int, ...]:
    if type(prompt) is not kind:
        raise bad_request(
            f"{where} must be {'a string' if kind is str else 'token ids'}, like the ones before it", where
        )
    if not prompt:
        raise bad_request(f"{where} must not be empty", where)
    if isinstance(prompt, str):
        return prompt
    assert isinstance(prompt, list)
    state.check_token_ids(prompt, where)
    return tuple(prompt)


class CompletionReply:
    """The answers to one completion request, complete or streamed."""

    def __init__(self, state: ServerState, body: CompletionRequest, http: Request) -> None:
        """Read the body. Raises `ApiError` if it cannot be answered. Nothing is computed yet."""
        state.check_model(body.model)
        self._num_choices = body.n or 1
        state.check_num_choices(count_prompts(body.prompt), self._num_choices)
        self._prompts = read_prompts(state, body.prompt, "prompt")
        self.fields = [name for name in name_prompts(body.prompt, "prompt") for _ in range(self._num_choices)]
        self._echoes = bool(body.echo)
        self._num_top = body.logprobs
        self._has_prompt_logprobs = self._echoes and body.logprobs is not None
        if self._has_prompt_logprobs and body.stream:
            raise bad_request("echo with logprobs is not supported with stream", "echo")
        max_tokens = _DEFAULT_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
        self._config = config = state.defaults.make_config(
            max_new_tokens=max_tokens, logprobs=body.logprobs, param_names=SAMPLING_PARAM_NAMES, **body.sampling()
        )
        self.requests = [
            choice
            for prompt in self._prompts
            for choice in choices_of(
                GenerationRequest(
                    prompt=prompt,
                    gen_config=config,
                    prompt_logprobs=self._has_prompt_logprobs,
                    wants_answer=body.max_tokens != 0,  # 0 echoes the prompt and generates nothing
                    streams=bool(body.stream),
                ),
                self._num_choices,
            )
        ]
        self._state = state
        self._speller = TokenSpeller(state.engine.tokenizer)
        self._returns_ids = bool(body.return_token_ids)
        self._includes_usage = body.stream_options is not None and body.stream_options.include_usage
        self._wants_timings = wants_timings(http)
        self._caller = caller_of(http.scope)
        self._echo_texts: list[str] = [""] * len(self._prompts)
        self._echo_ids: list[list[int]] = [[] for _ in self._prompts]
        self._echo_offsets: list[list[int]] = [[] for _ in self._prompts]
        self._head = {
            "id": make_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": state.model_name,
            "system_fingerprint": FINGERPRINT,
        }

    async def prepare_echo(self) -> None:
        """Find the texts and tokens of the prompts, if answers echo them."""
        if self._echoes:
            for field, request in list(zip(self.fields, self.requests))[:: self._num_choices]:
                await tokenize_prompt(self._state, request, field)  # raises if the prompt is too long
            await asyncio.to_thread(self._spell_prompts)

    def _spell_prompts(self) -> None:
        spelled = [spell_prompt(self._state.engine.tokenizer, prompt) for prompt in self._prompts]
        self._echo_texts, self._echo_ids, self._echo_offsets = map(list, zip(*spelled))

    # --- complete --------------------------------------------------------------------------------------------------

    def make_completion(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the `Completion` as JSON."""
        tally = Tally(num_per_prompt=self._num_choices)
        choices = []
        for index, answer in enumerate(answers):
            tally.add(index, answer.last)
            which = index // self._num_choices
            choices.append(
                {
                    "index": index,
                    "text": self._echo_texts[which] + answer.text,
                    "logprobs": self._make_logprobs(which, answer),
                    "finish_reason": answer.finish_reason,
                    **({"token_ids": answer.token_ids} if self._returns_ids else {}),
                }
            )
        details = {"seesay": make_details(tally)} if self._wants_timings else {}
        return {**self._head, "choices": choices, "usage": make_usage(tally), **details}

    def _make_logprobs(self, which: int, answer: Answer) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        echo_ids = self._echo_ids[which]
        of_echo: dict[str, list[Any]] = {}
        if echo_ids:
            values = answer.last.prompt_logprobs or ()
            of_echo = self._speller.prompt_entries(echo_ids, values, self._echo_offsets[which])
        offsets = self._make_offsets(which).push(answer.token_ids)
        of_answer = self._speller.completion_entries(answer.token_ids, answer.logprobs, self._num_top, offsets)
        return {key: [*of_echo.get(key, ()), *values] for key, values in of_answer.items()}

    def _make_offsets(self, which: int) -> TextOffsets:
        """Return the offset counter of an answer's tokens. It starts behind the echoed prompt."""
        return TextOffsets(
            self._state.engine.tokenizer,
            len(self._echo_texts[which]),
            skip_special_tokens=self._config.skip_special_tokens,
            spaces_between_special_tokens=self._config.spaces_between_special_tokens,
        )

    # --- streamed --------------------------------------------------------------------------------------------------

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the events: per choice pieces of text and a finish reason; then usage if requested, and `[DONE]`."""
        tally = Tally(num_per_prompt=self._num_choices)
        offsets: dict[int, TextOffsets] = {}  # by choice
        num_left = len(self.requests)
        answering = self._state.answering
        async with aclosing(answering.deltas(self.requests, caller=self._caller, fields=self.fields)) as deltas:
            async for index, delta in deltas:
                if index not in offsets:
                    offsets[index] = self._make_offsets(index // self._num_choices)
                    if self._echoes:
                        yield self._make_chunk(index, self._echo_texts[index // self._num_choices])
                if self._says_something(delta):
                    logprobs = self._make_delta_logprobs(delta, offsets[index])
                    token_ids = list(delta.token_ids) if self._returns_ids else None
                    yield self._make_chunk(index, delta.text, logprobs=logprobs, token_ids=token_ids)
                if delta.finish_reason is not None:
                    num_left -= 1
                    tally.add(index, delta)
                    is_last = not num_left and not self._includes_usage
                    details = make_details(tally) if is_last and self._wants_timings else None
                    yield self._make_chunk(index, "", finish_reason=delta.finish_reason, details=details)
        if self._includes_usage:
            details = {"seesay": make_details(tally)} if self._wants_timings else {}
            yield make_event({**self._head, "choices": [], "usage": make_usage(tally), **details})
        yield DONE

    def _says_something(self, delta: OutputDelta) -> bool:
        return bool(delta.text or (delta.token_ids and (self._returns_ids or self._num_top is not None)))

    def _make_delta_logprobs(self, delta: OutputDelta, offsets: TextOffsets) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        starts = offsets.push(delta.token_ids)
        return self._speller.completion_entries(delta.token_ids, delta.logprobs or (), self._num_top, starts)

    def _make_chunk(
        self,
        index: int,
        text: str,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        details: dict[str, Any] | None = None,
        token_ids: list[int] | None = None,
    ) -> bytes:
        ids = {} if token_ids is None else {"token_ids": token_ids}
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, **ids}
        usage = {"usage": None} if self._includes_usage else {}
        seesay = {} if details is None else {"seesay": details}
        return make_event({**self._head, "choices": [choice], **usage, **seesay})
