"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from seesay.serving.http.bodies import make_api_router
from seesay.serving.native.protocol import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from seesay.serving.requests.content import read_messages
from seesay.serving.requests.prompts import tokenize_prompt, tokenize_text
from seesay.serving.requests.state import ServerState
from seesay.values import GenerationRequest


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("native")

    @router.post("/tokenize", response_model=TokenizeAnswer)
    async def tokenize(body: TokenizeRequest, http: Request) -> Response:  # noqa: ARG001
        """Return the token ids of a text or conversation, including the placeholders of pictures."""
        state.check_model(body.model)
        tokenizer = state.engine.tokenizer
        if body.prompt is not None:
            adds = body.add_special_tokens is not False
            ids = await tokenize_text(state, body.prompt, add_special_tokens=adds)
        else:
            options = dict(body.chat_template_kwargs or {})
            if body.add_generation_prompt is not None:
                options["add_generation_prompt"] = body.add_generation_prompt
            messages = read_messages(body.messages, state.settings.media)
            config = state.defaults.make_config(max_new_tokens=1)
            ids = await tokenize_prompt(
                state, GenerationRequest(prompt=messages, gen_config=config, template_options=options)
            )
        strings = None
        if body.return_token_strs:
            strings = [tokenizer.backend.id_to_token(token_id) or "" for token_id in ids]
        length = state.engine.session_len
        answer = TokenizeAnswer(count=len(ids), max_model_len=length, tokens=ids, token_strs=strings)
        return JSONResponse(answer.model_dump(exclude_none=True))

    @router.post("/detokenize", response_model=DetokenizeAnswer)
    async def detokenize(body: DetokenizeRequest, http: Request) -> Response:  # noqa: ARG001
        """Return the text of token ids."""
        state.check_model(body.model)
        tokenizer = state.engine.tokenizer
        state.check_token_ids(body.tokens, "tokens")
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=body.skip_special_tokens)
        return JSONResponse(DetokenizeAnswer(prompt=text).model_dump())

    return router
