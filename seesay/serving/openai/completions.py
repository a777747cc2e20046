"""`/v1/completions`: raw texts or token ids, without a chat template."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.config import GenerationConfig
from seesay.engine.front.choices import choices_of, find_best
from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.serving.http.bodies import make_api_router, off_loop
from seesay.serving.http.streaming import EventStream, describe_events
from seesay.serving.openai.answer_models import Completion
from seesay.serving.openai.chat_message import make_stop_field
from seesay.serving.openai.logprobs import TokenSpeller
from seesay.serving.openai.offsets import TextOffsets, spell_prompt
from seesay.serving.openai.protocol import CompletionRequest
from seesay.serving.openai.stream_chunks import ChunkWriter
from seesay.serving.openai.wire import (
    FINGERPRINT,
    make_details,
    make_error_event,
    make_id,
    make_usage,
    wants_timings,
)
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.prompts import tokenize_prompt
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import Answer, Tally
from seesay.values import GenerationRequest, OutputDelta
from seesay.values.prompt_logprobs import PromptLogprobs

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
        await state.try_grammar(reply.requests[0], reply.names, http)
        if body.stream:
            return EventStream(reply.stream(), render_error=make_error_event)
        answers = await state.answering.collect(
            reply.requests,
            receive=http.receive,
            caller=reply.caller,
            names=reply.names,
            beams=reply.beams,
        )
        if answers[0].prompt_logprobs is None:
            return JSONResponse(reply.make_completion(answers))
        return await asyncio.to_thread(lambda: JSONResponse(reply.make_completion(answers)))

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
        raise bad_request(
            f"{param} must be a string, token ids, or a list of strings or of token ids, got {show(prompt)}", param
        )
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        kind = type(prompt[0])
        return [_read_prompt(state, item, kind, f"{param}[{index}]") for index, item in enumerate(prompt)]
    return [_read_prompt(state, prompt, type(prompt), param)]


def _read_prompt(state: ServerState, prompt: object, kind: type, where: str) -> str | tuple[int, ...]:
    if type(prompt) is not kind:
        kinds = "a string" if kind is str else "token ids"
        raise bad_request(f"{where} must be {kinds}, like the ones before it, got {show(prompt)}", where)
    if not prompt:
        raise bad_request(f"{where} must not be empty, got {show(prompt)}", where)
    if isinstance(prompt, str):
        return prompt
    assert isinstance(prompt, list)
    state.check_token_ids(prompt, where)
    return tuple(prompt)


def _num_alternatives(body: CompletionRequest) -> int | None:
    """Return how many alternatives the answer has for prompt tokens; None if the request wants none."""
    asked = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((count for count in asked if count is not None), default=None)


def _score(request: GenerationRequest, count: int | None) -> GenerationRequest:
    return replace(request, gen_config=replace(request.gen_config, prompt_logprobs=count))


def _find_max_tokens(body: CompletionRequest) -> int:
    if body.max_tokens is not None:
        return max(1, body.max_tokens)
    return body.max_completion_tokens or _DEFAULT_MAX_TOKENS


def _make_requests(
    body: CompletionRequest, prompts: Sequence[str | tuple[int, ...]], config: GenerationConfig
) -> list[GenerationRequest]:
    """Return a request for each choice of the answer to each prompt."""
    requests = []
    for prompt in prompts:
        request = GenerationRequest(
            prompt=prompt,
            gen_config=config,
            wants_answer=body.max_tokens != 0,  # 0 echoes the prompt and generates nothing
            streams=bool(body.stream),
            **body.request_options(),
        )
        choices = choices_of(request)
        # The choices of a stream begin in any order, each with what it echoes.
        requests += [_score(choice, config.prompt_logprobs) for choice in choices] if body.stream else choices
    return requests


class CompletionReply:
    """The answers to one completion request, complete or streamed."""

    def __init__(self, state: ServerState, body: CompletionRequest, http: Request) -> None:
        """Read the body. Raises `ApiError` if it cannot be answered. Nothing is computed yet."""
        state.check_model(body.model)
        self._num_returned = body.n or 1
        self._num_choices = body.best_of or self._num_returned
        state.check_num_choices(
            count_prompts(body.prompt), self._num_choices, "n" if body.best_of is None else "best_of"
        )
        body.media_options(state.engine.family)  # raw prompts have no media, but unknown names are refused all the same
        self._prompts = read_prompts(state, body.prompt, "prompt")
        fields = [name for name in name_prompts(body.prompt, "prompt") for _ in range(self._num_choices)]
        self.names = body.field_names(*fields)
        self._echoes = bool(body.echo)
        self._num_top = body.logprobs
        self._num_prompt_top = body.prompt_logprobs
        self._config = config = state.defaults.make_config(
            max_new_tokens=_find_max_tokens(body),
            logprobs=body.logprobs,
            prompt_logprobs=_num_alternatives(body),
            names=self.names,
            n=self._num_returned,
            best_of=self._num_choices,
            **body.sampling(),
        )
        self.beams = body.make_beams(self._num_choices, config, self.names)
        self.requests = _make_requests(body, self._prompts, config)
        self._state = state
        self._speller = TokenSpeller(state.engine.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._returns_ids = bool(body.return_token_ids)
        self._wants_timings = wants_timings(http)
        answer_id = body.name_answer("cmpl-", make_id("cmpl-"))
        self.caller = caller_of(http.scope, body.rid or body.request_id, answer_id)
        self._echo_texts: list[str] = [""] * len(self._prompts)
        self._echo_ids: list[list[int]] = [[] for _ in self._prompts]
        self._echo_offsets: list[list[int]] = [[] for _ in self._prompts]
        self._head = {
            "id": answer_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": state.name_model(body.model),
            "system_fingerprint": FINGERPRINT,
        }
        self._chunks = ChunkWriter(self._head, "text", body.stream_options)

    async def prepare_echo(self) -> None:
        """Find the texts and tokens of the prompts, if answers echo them."""
        if self._echoes:
            prompts: list[str | Sequence[int]] = []
            for index in range(0, len(self.requests), self._num_choices):
                request = self.requests[index]
                ids = await tokenize_prompt(
                    self._state, request, self.names, index=index
                )  # raises if the prompt is too long
                is_whole = isinstance(request.prompt, str) and request.truncate_prompt_tokens is None
                prompts.append(str(request.prompt) if is_whole else ids)
            await asyncio.to_thread(self._spell_prompts, prompts)

    def _spell_prompts(self, prompts: Sequence[str | Sequence[int]]) -> None:
        tokenizer, takes_prefix = self._state.engine.tokenizer, self.requests[0].add_special_tokens
        spelled = [spell_prompt(tokenizer, prompt, takes_prefix=takes_prefix) for prompt in prompts]
        self._echo_texts, self._echo_ids, self._echo_offsets = map(list, zip(*spelled))

    # --- complete --------------------------------------------------------------------------------------------------

    def make_completion(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the `Completion` as JSON."""
        tally = Tally(num_per_prompt=self._num_choices)
        choices: list[dict[str, object]] = []
        for index, answer in enumerate(answers):
            tally.add(index, answer.last)
        for which in range(len(self._prompts)):
            own = answers[which * self._num_choices : (which + 1) * self._num_choices]
            given = own[0].prompt_logprobs
            best = list(own[: self._num_returned])  # of beams, the best come first
            if self._num_returned < len(own) and self.beams is None:
                scores = [answer.last.mean_logprob for answer in own]
                best = [own[index] for index in find_best(scores, self._num_returned)]
            for answer in best:
                choices.append(
                    {
                        "index": len(choices),
                        "text": self._echo_texts[which] + answer.text,
                        "logprobs": self._make_logprobs(which, answer, given),
                        "finish_reason": answer.finish_reason,
                        **make_stop_field(answer.last),
                        **({"token_ids": answer.token_ids} if self._returns_ids else {}),
                        **self._make_prompt_field(given),
                    }
                )
        details = {"seesay": make_details(tally)} if self._wants_timings else {}
        return {**self._head, "choices": choices, "usage": make_usage(tally), **details}

    def _make_logprobs(self, which: int, answer: Answer, given: PromptLogprobs | None) -> dict[str, object] | None:
        if self._num_top is None:
            return None
        of_echo = self._make_echo_logprobs(which, given) or {}
        offsets = self._make_offsets(which).push(answer.token_ids)
        of_answer = self._speller.completion_entries(answer.token_ids, answer.logprobs, self._num_top, offsets)
        return {key: [*of_echo.get(key, ()), *values] for key, values in of_answer.items()}

    def _make_echo_logprobs(self, which: int, given: PromptLogprobs | None) -> dict[str, list[Any]] | None:
        if self._num_top is None or not self._echoes or given is None:
            return None
        return self._speller.echo_entries(self._echo_ids[which], given, self._num_top, self._echo_offsets[which])

    def _make_prompt_field(self, given: PromptLogprobs | None) -> dict[str, Any]:
        if self._num_prompt_top is None or given is None:
            return {}
        return self._speller.prompt_field(given.narrow(self._num_prompt_top))

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
        async with aclosing(answering.deltas(self.requests, caller=self.caller, names=self.names)) as deltas:
            async for index, delta in deltas:
                self._chunks.usage.add(index, delta)
                if index not in offsets:
                    offsets[index] = self._make_offsets(index // self._num_choices)
                    if self._echoes or delta.prompt_logprobs is not None:
                        yield await self._make_echo(index, delta)
                if self._says_something(delta):
                    logprobs = self._make_delta_logprobs(delta, offsets[index])
                    token_ids = list(delta.token_ids) if self._returns_ids else None
                    yield self._chunks.write(index, delta.text, logprobs=logprobs, token_ids=token_ids)
                if delta.finish_reason is not None:
                    num_left -= 1
                    tally.add(index, delta)
                    is_last = not num_left and not self._chunks.usage.is_wanted
                    details = make_details(tally) if is_last and self._wants_timings else None
                    ending = make_stop_field(delta)
                    reason = delta.finish_reason
                    yield self._chunks.write(index, "", finish_reason=reason, details=details, more=ending)
        for event in self._chunks.write_end(make_usage(tally), make_details(tally) if self._wants_timings else None):
            yield event

    async def _make_echo(self, index: int, delta: OutputDelta) -> bytes:
        """Return the event that begins a choice: what it echoes, and the log-probabilities of the prompt."""
        which, given = index // self._num_choices, delta.prompt_logprobs
        if given is None:
            return self._chunks.write(index, self._echo_texts[which])
        return await asyncio.to_thread(
            lambda: self._chunks.write(
                index,
                self._echo_texts[which],
                logprobs=self._make_echo_logprobs(which, given),
                more=self._make_prompt_field(given),
            )
        )

    def _says_something(self, delta: OutputDelta) -> bool:
        return bool(delta.text or (delta.token_ids and (self._returns_ids or self._num_top is not None)))

    def _make_delta_logprobs(self, delta: OutputDelta, offsets: TextOffsets) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        starts = offsets.push(delta.token_ids)
        return self._speller.completion_entries(delta.token_ids, delta.logprobs or (), self._num_top, starts)
