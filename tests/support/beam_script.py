"""An engine for beam searches that says what a test lets it say.

tests/offline/test_beam_search.py holds searches of real ones against Transformers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seesay.config import BeamSearchParams, GenerationConfig
from seesay.engine.front.shared_prompts import SharedPrompts
from seesay.errors import ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import GenerationRequest, OutputDelta, StageTimings, Usage

CHECKPOINT = Path(__file__).parents[2] / "seesay" / "demo" / "checkpoint"
PARAMS = BeamSearchParams(beam_width=2, max_tokens=3)
CLOSED = RequestError(ErrorCode.INTERNAL, "the engine is closed")
TOKENIZER = Tokenizer.load(CHECKPOINT)
[A], [B], [END] = (TOKENIZER.encode(text) for text in ("a", "b", "<|im_end|>"))
LOGPROBS = ({A: -0.2, B: -0.9}, {A: -0.4, B: -0.6})
"""Of the first token and of each later one: of three tokens, the best texts are aaa and aab."""


class ScriptedEngine:
    """Notes requests, and answers those that it is told to."""

    def __init__(self, *, session_len: int = 100, ending_ids: tuple[int, ...] = ()) -> None:
        self.session_len = session_len
        self.tokenizer = TOKENIZER
        self.core = self
        self.requests: list[GenerationRequest] = []
        self.aborted: list[int] = []
        self.ended_groups: list[int] = []
        self.is_closed = False
        self._ending_ids = ending_ids
        self._sinks: list[Any] = []

    def find_ending_ids(self, _request: GenerationRequest) -> tuple[int, ...]:
        return self._ending_ids

    def submit_batch(self, requests: Sequence[GenerationRequest], on_output: Any, prompts: SharedPrompts) -> list[int]:
        if self.is_closed:
            raise CLOSED
        first = len(self.requests)
        self.requests += requests
        self._sinks += [on_output] * len(requests)
        for request_id, request in enumerate(requests, first):
            prompts.group_of(request_id, request)
        return list(range(first, len(self.requests)))

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)

    def end_group(self, group_id: int) -> None:
        self.ended_groups.append(group_id)

    async def say(self, request_id: int, **fields: Any) -> None:
        """Give the final delta of a request, as its next token has the `LOGPROBS` of its place."""
        length = len(self.requests[request_id].continuation)
        found = (LOGPROBS[min(length, 1)],)
        self._sinks[request_id](make_final(request_id, **{"logprobs": found, **fields}))
        await asyncio.sleep(0)

    async def answer_all(self) -> None:
        number = 0
        while number < len(self.requests):
            await self.say(number)
            number += 1


def make_final(request_id: int, **fields: Any) -> OutputDelta:
    """Return the final delta of a request for one token."""
    return OutputDelta(
        request_id=request_id,
        **{
            "finish_reason": "length",
            "usage": Usage(prompt_tokens=7, completion_tokens=1, cached_tokens=2, reasoning_tokens=1),
            "timings": StageTimings(prefill_s=0.25, time_to_first_token_s=0.5, total_s=0.6),
            **fields,
        },
    )


def make_request() -> GenerationRequest:
    return GenerationRequest(prompt="the game", gen_config=GenerationConfig(max_new_tokens=50, temperature=0.3))
