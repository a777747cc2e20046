"""The whole stream against Transformers: every family and backbone, in float32, through the public engine.

Alone, batched, chunked into 7-token pieces, preempted in the middle and a second time from the cache: the same logits
and the same 32 greedy tokens as `transformers` computes in one piece.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from seesay.config import EngineConfig, GenerationConfig
from seesay.engine import AsyncEngine
from seesay.response import AnswerBuilder, Response
from seesay.values import GenerationRequest, OutputDelta
from seesay.vl.messages import parse_prompts

BACKBONES = ("llama", "qwen2", "qwen3", "mistral", "phi3")
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "llava", "internvl")
NEW_TOKENS = 32
TOLERANCE = 1e-4


def make_picture(height: int, width: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_clip(num_frames: int, height: int, width: int, seed: int) -> list[Image.Image]:
    return [make_picture(height, width, 100 * seed + k) for k in range(num_frames)]


def make_conversations(name: str) -> list[list[dict[str, Any]]]:
    """Odd sizes; text before, between and after pictures; pictures in an earlier turn; text alone; a clip."""
    text = {"type": "text", "text": "the frame in the game"}
    conversations: list[list[Any]] = [["the game is in the frame, " * 5], ["Frame"]]
    if name in FAMILIES:
        small, wide, tall = make_picture(23, 31, 1), make_picture(19, 77, 2), make_picture(90, 33, 3)
        conversations += [[small, "what?"], ["before ", wide, " between ", tall, " after"], [tall, small, wide, "?"]]
    messages = [[{"role": "user", "content": [_part(part) for part in parts]}] for parts in conversations]
    if name in FAMILIES:
        turn = [_part(make_picture(41, 40, 4)), text]
        answer = {"role": "assistant", "content": [{"type": "text", "text": "a frame"}]}
        messages.append([{"role": "user", "content": turn}, answer, {"role": "user", "content": [text]}])
    return messages


def _part(part: str | Image.Image) -> dict[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}


@dataclass(frozen=True)
class Expected:
    """What Transformers makes of a conversation."""

    input_ids: list[int]
    logits: torch.Tensor
    answer: list[int]


def _run_transformers(path: Path, name: str, conversations: Sequence[list[dict[str, Any]]]) -> list[Expected]:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

    is_vision = name in FAMILIES
    loader = AutoModelForImageTextToText if is_vision else AutoModelForCausalLM
    model = loader.from_pretrained(path, dtype=torch.float32).eval()
    processor = (AutoProcessor if is_vision else AutoTokenizer).from_pretrained(path)
    found = []
    for messages in conversations:
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images = [part["image"] for m in messages for part in m["content"] if part["type"] == "image"]
        media = {"images": images} if images else {}
        inputs = processor(text=[text], return_tensors="pt", **media)
        with torch.inference_mode():
            logits = model(**inputs).logits[0]
            output = model.generate(
                **inputs, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1
            )
        ids = inputs["input_ids"][0].tolist()
        found.append(Expected(input_ids=ids, logits=logits, answer=output[0, len(ids) :].tolist()))
    return found


@dataclass(frozen=True)
class Case:
    name: str
    path: Path
    conversations: list[list[dict[str, Any]]]
    expected: list[Expected]


@pytest.fixture(scope="module", params=(*BACKBONES, *FAMILIES))
def case(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Case:
    name = request.param
    path = tiny_checkpoint(name)
    conversations = make_conversations(name)
    return Case(name, path, conversations, _run_transformers(path, name, conversations))


def join(deltas: Sequence[OutputDelta]) -> Response:
    answer = AnswerBuilder(0)
    for delta in deltas:
        answer.add(delta)
    return answer.complete()


def ask(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[Response]:
    """Final, joined deltas of requests that are submitted at once, in their order."""
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    ids = engine.submit_batch(requests, arrived.put)
    deltas: dict[int, list[OutputDelta]] = {request_id: [] for request_id in ids}
    num_left = len(ids)
    while num_left:
        delta = arrived.get(timeout=60)
        deltas[delta.request_id].append(delta)
        num_left -= delta.finish_reason is not None
    return [join(deltas[request_id]) for request_id in ids]


def make_requests(case: Case, **options: Any) -> list[GenerationRequest]:
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, **options)
    requests, _ = parse_prompts(case.conversations, config)
    assert all(isinstance(request, GenerationRequest) for request in requests)
    return requests  # type: ignore[return-value]


def check(case: Case, outputs: Sequence[Response]) -> None:
    for index, (output, expected) in enumerate(zip(outputs, case.expected, strict=True)):
        assert output.error is None, (case.name, index, output.error)
        assert output.usage is not None
        assert output.usage.prompt_tokens == len(expected.input_ids), (case.name, index)
        assert list(output.token_ids) == expected.answer, (case.name, index)
        assert output.finish_reason == "length"


def build(case: Case, **options: Any) -> AsyncEngine:
    return AsyncEngine(str(case.path), backend_config=EngineConfig(device_type="cpu", **options))


def test_logits_equal_transformers(case: Case) -> None:
    with build(case, block_size=16) as engine:
        for index, request in enumerate(make_requests(case, output_logits="all")):
            output = ask(engine, [request])[0]
            expected = case.expected[index]
            num_prompt = len(expected.input_ids)
            assert output.logits.shape == (num_prompt + NEW_TOKENS - 1, expected.logits.shape[-1])
            difference = (output.logits[:num_prompt] - expected.logits).abs().max()
            assert difference < TOLERANCE, (case.name, index, difference)
            assert expected.logits.std() > 0.1, "logits that are all alike prove nothing"


def test_alone_and_from_the_cache(case: Case) -> None:
    with build(case, block_size=4) as engine:
        requests = make_requests(case)
        check(case, [ask(engine, [request])[0] for request in requests])
        again = [ask(engine, [request])[0] for request in requests]
        check(case, again)
        for output in again:
            assert output.usage is not None
            cacheable = (output.usage.prompt_tokens - 1) // 4 * 4
            assert output.usage.cached_tokens == cacheable > 0


def test_batched(case: Case) -> None:
    with build(case, block_size=16) as engine:
        check(case, ask(engine, make_requests(case)))


def test_chunked_into_seven_tokens(case: Case) -> None:
    with build(case, block_size=16, max_prefill_token_num=7) as engine:
        check(case, ask(engine, make_requests(case)))


def test_preempted_in_the_middle(case: Case) -> None:
    longest = max(len(expected.input_ids) for expected in case.expected) + NEW_TOKENS
    num_blocks = -(-longest // 4) + 2
    for caching in (True, False):
        with build(case, block_size=4, num_gpu_blocks=num_blocks, enable_prefix_caching=caching) as engine:
            check(case, ask(engine, make_requests(case)))
            assert engine.loop.stats().total_preemptions > 0, "the cache was meant to be too small"


@pytest.mark.parametrize("name", FAMILIES)
def test_typed_image_token_moves_nothing(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """The literal spelling of the family's marker in a user's text stays text: the picture stays where it is."""
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=EngineConfig(device_type="cpu")) as engine:
        picture = make_picture(40, 30, 7)
        marker = next(iter(engine.family.markers.values()))
        config = GenerationConfig(max_new_tokens=8, ignore_eos=True)
        conversations = [
            [{"role": "user", "content": [_part(f"a{typed}b"), _part(picture), _part("c")]}] for typed in ("", marker)
        ]
        requests, _ = parse_prompts(conversations, config)
        plain, typed = ask(engine, requests)  # type: ignore[arg-type]
        assert plain.error is None and typed.error is None
        assert plain.usage is not None and typed.usage is not None
        assert typed.usage.media_tokens == plain.usage.media_tokens > 0
        assert typed.usage.prompt_tokens >= plain.usage.prompt_tokens + len(marker) // 2
        alone = ask(engine, parse_prompts([f"a{marker}b"], config)[0])[0]  # type: ignore[arg-type]
        assert alone.error is None and alone.usage is not None and alone.usage.media_tokens == 0
