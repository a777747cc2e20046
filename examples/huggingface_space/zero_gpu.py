"""The Space on ZeroGPU, which lends a GPU for the time of an answer, to a process that is forked for it.

The WebUI runs in the Space's own process, without a GPU. Each answer is a call of `answer`, in a process with one; a
process that is used again finds its model loaded. The variable ZERO_GPU_SECONDS says how long an answer may take.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import spaces  # before anything that may import torch

from seesay.config import EngineConfig, GenerationConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.request_batch import RequestBatch
from seesay.errors import SeesayError
from seesay.serving.client import APIError
from seesay.ui.app import launch, wait_for_signal
from seesay.values import GenerationRequest, OutputDelta
from seesay.vl.prompts.conversation_parts import parse_messages

DURATION_S = int(os.environ.get("ZERO_GPU_SECONDS", "60"))

_engines: dict[str, AsyncEngine] = {}


def _answer(model: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of an answer, as an OpenAI server sends them. `options` are those of `GenerationConfig`."""
    try:
        engine = _open(model)
        request = GenerationRequest(prompt=parse_messages(messages), gen_config=GenerationConfig(**options))
        with closing(RequestBatch(engine, [request]).deltas()) as deltas:  # a visitor who leaves stops the answer
            for _, delta in deltas:
                if delta.error is not None:
                    raise delta.error
                yield make_chunk(delta)
    except SeesayError as error:  # a process hands over no exception of its own
        yield {"error": str(error)}


answer: Callable[..., Iterator[dict[str, Any]]] = spaces.GPU(duration=DURATION_S)(_answer)


class ZeroGPUClient:
    """Stand in for a server: the WebUI asks it for answers."""

    def __init__(self, model: str) -> None:
        self.available_models = [model]

    def live_address(self) -> None:
        """There is none: the GPU is lent for one answer at a time."""
        return

    def chat_completions_v1(self, *, stream: bool, **request: Any) -> Generator[dict[str, Any], None, None]:  # noqa: ARG002
        """The chunks of a streamed answer. Raises APIError for what the model cannot answer."""
        options = {
            "max_new_tokens": request["max_tokens"],
            "do_sample": request["temperature"] > 0,
            "temperature": request["temperature"] or 1.0,
            "top_p": request["top_p"],
            "top_k": request.get("top_k") or 0,
        }
        for chunk in answer(request["model"], list(request["messages"]), options):
            if "error" in chunk:
                raise APIError(chunk["error"], status=400)
            yield chunk


def make_chunk(delta: OutputDelta) -> dict[str, Any]:
    """A delta as a chunk; the last one has counts, times and how each picture was seen."""
    chunk: dict[str, Any] = {
        "choices": [{"index": 0, "delta": {"content": delta.text}, "finish_reason": delta.finish_reason}]
    }
    if delta.usage is not None:
        chunk["usage"] = {
            "prompt_tokens": delta.usage.prompt_tokens,
            "completion_tokens": delta.usage.completion_tokens,
            "prompt_tokens_details": {"vision_tokens": delta.usage.media_tokens},
        }
    if delta.timings is not None:
        media = [{**asdict(report), "modality": report.modality.value} for report in delta.media]
        chunk["seesay"] = {"timings": asdict(delta.timings), "media": media}
    return chunk


def run(model: str, *, port: int, server_name: str = "0.0.0.0") -> None:
    """Serve the WebUI until SIGTERM or SIGINT."""
    with launch(ZeroGPUClient(model), server_name, port) as url:
        print(f"seesay: the WebUI is at {url}", file=sys.stderr, flush=True)
        wait_for_signal()


def _open(model: str) -> AsyncEngine:
    """The engine of this process. Nothing is recorded ahead: most processes give few answers."""
    if model not in _engines:
        _engines[model] = AsyncEngine(
            model,
            backend_config=EngineConfig(session_len=4096, cache_max_entry_count=0.3, eager_mode=True),
            media_limits=MediaLimits(allow_local_paths=False),
        )
    return _engines[model]
