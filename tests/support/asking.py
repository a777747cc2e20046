"""What the tests of the whole stream share: prompts, asking an engine, and what Transformers answers."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from enrolment import ALL_AUDIO, ENROLLED, WITH_PICTURES
from oracles import load_oracle, load_text_oracle
from PIL import Image
from processing import process
from sounds import make_tone

from seesay.config import EngineConfig, GenerationConfig
from seesay.engine.core.loop import EngineLoop
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import AnswerBuilder, Response
from seesay.values import AudioSamples, GenerationRequest, Message, OutputDelta
from seesay.vl.prompts.conversation_parts import parse_prompts

Conversation = list[dict[str, Any]]


def make_picture(height: int, width: int, seed: int) -> Image.Image:
    """A noisy picture."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_message(*parts: str | Image.Image | AudioSamples, role: str = "user") -> dict[str, Any]:
    kinds = ("text" if isinstance(p, str) else "audio" if isinstance(p, AudioSamples) else "image" for p in parts)
    return {"role": role, "content": [{"type": kind, kind: part} for kind, part in zip(kinds, parts, strict=True)]}


TEXTS = ("see ", " move, then ", " rest")
FRAMES = [make_picture(37, 52, seed) for seed in range(6)]
PICTURE = make_picture(25, 30, 9)
FPS = 2.0


def make_conversations(name: str) -> list[Conversation]:
    """Odd sizes; text before, between and after pictures or audio; these in an earlier turn; text alone."""
    conversations = [[make_message("the game is in the frame, " * 5)], [make_message("Frame")]]
    if name in WITH_PICTURES:
        small, wide, tall = make_picture(23, 31, 1), make_picture(19, 77, 2), make_picture(90, 33, 3)
        conversations += [
            [make_message(small, "what?")],
            [make_message("before ", wide, " between ", tall, " after")],
            [make_message(tall, small, wide, "?")],
            [
                make_message(make_picture(41, 40, 4), "the frame"),
                make_message("a frame", role="assistant"),
                make_message("in the game"),
            ],
        ]
    if name in ALL_AUDIO:
        short, long = (AudioSamples(samples=make_tone(length_s), rate_hz=16000) for length_s in (0.7, 1.9))
        conversations += [
            [make_message(short, "what?")],
            [make_message("before ", long, " between ", short, " after")],
            [make_message(short, "the frame"), make_message("a frame", role="assistant"), make_message("in the game")],
        ]
    return conversations


def make_video_prompt(name: str) -> Conversation:
    """A video between texts and beside a picture, given as frames with their rate, or with their number where the
    family samples a number of frames."""
    rate = {"num_frames": len(FRAMES)} if "num_frames" in ENROLLED[name].default_sampling else {"fps": FPS}
    before, between, after = ({"type": "text", "text": text} for text in TEXTS)
    video, picture = {"type": "video", "video": FRAMES, **rate}, {"type": "image", "image": PICTURE}
    return [{"role": "user", "content": [before, video, between, picture, after]}]


def messages_of(request: GenerationRequest) -> tuple[Message, ...]:
    """The conversation of a request that is not a text or token ids."""
    messages = tuple(each for each in request.prompt if isinstance(each, Message))
    assert len(messages) == len(request.prompt), request.prompt
    return messages


def parse(prompts: Sequence[Any], *configs: GenerationConfig, **options: Any) -> list[GenerationRequest]:
    """Requests with one configuration each, one for all, or one made of `options`."""
    config = list(configs) if len(configs) > 1 else configs[0] if configs else GenerationConfig(**options)
    parsed, _ = parse_prompts(list(prompts), config)
    requests = [request for request in parsed if isinstance(request, GenerationRequest)]
    assert len(requests) == len(parsed), parsed
    return requests


def collect(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[list[OutputDelta]]:
    """The deltas of each request, all of them submitted at once."""
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    with held(engine):
        ids = engine.submit_batch(requests, arrived.put)
    return _read(ids, arrived)


def _read(ids: Sequence[int], arrived: queue.SimpleQueue[OutputDelta]) -> list[list[OutputDelta]]:
    deltas: dict[int, list[OutputDelta]] = {request_id: [] for request_id in ids}
    num_left = len(deltas)
    while num_left:
        delta = arrived.get(timeout=120)
        deltas[delta.request_id].append(delta)
        num_left -= delta.finish_reason is not None
    return list(deltas.values())


def loop_of(engine: AsyncEngine) -> EngineLoop:
    """The core of an engine, which is a thread of this process."""
    assert isinstance(engine.core, EngineLoop)
    return engine.core


@contextmanager
def held(engine: AsyncEngine) -> Iterator[None]:
    """What is submitted inside is computed only once all of it is prepared, in the order in which that was done."""
    core = engine.core
    if isinstance(core, EngineLoop):
        is_ready = threading.Event()
        core._inbox.put(lambda: None if is_ready.wait(300) else pytest.fail("held for 300 s"))
        yield
        _wait_until_prepared(engine)
        is_ready.set()
        return
    from seesay.engine.process.remote_core import ProcessCore  # needs packages that not every machine has

    assert isinstance(core, ProcessCore) and core.pid is not None
    os.kill(core.pid, signal.SIGSTOP)
    try:
        yield
        _wait_until_prepared(engine)
    finally:
        os.kill(core.pid, signal.SIGCONT)


def _wait_until_prepared(engine: AsyncEngine) -> None:
    """Wait until all requests are in the loop's inbox, which they enter under the lock of those that are prepared."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with engine._preparation.open.lock:
            if not engine._preparation.open.waiting:
                return
        time.sleep(0.001)
    pytest.fail("requests were not prepared within 300 s")


def count_tokens(path: Path, requests: Sequence[GenerationRequest]) -> list[int]:
    """The prompt tokens of each request."""
    with AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu", block_size=16)) as engine:
        return [engine.count_tokens(request) for request in requests]


def join(deltas: Sequence[OutputDelta]) -> Response:
    answer = AnswerBuilder(0)
    for delta in deltas:
        answer.add(delta)
    return answer.complete()


def ask(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[Response]:
    """The whole answers, in the requests' order."""
    return [join(deltas) for deltas in collect(engine, requests)]


def ask_in_order(engine: AsyncEngine, requests: Sequence[GenerationRequest]) -> list[Response]:
    """As `ask`, with steps that are the same in every run: the requests arrive in their order, and their pictures are
    encoded before, for which each request is asked alone for one token."""
    for request in requests:
        [first] = ask(engine, [replace(request, gen_config=GenerationConfig(max_new_tokens=1))])
        assert first.error is None, first.error
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    ids: list[int] = []
    with held(engine):
        for request in requests:
            ids += engine.submit_batch([request], arrived.put)
            _wait_until_prepared(engine)
    return [join(deltas) for deltas in _read(ids, arrived)]


def assert_same(answer: Response, other: Response) -> None:
    """Two answers are the same. Their numbers differ in rounding: a step ends where an embedding is not there yet."""
    assert answer.error is None and other.error is None
    for name in ("text", "token_ids", "finish_reason", "input_token_len", "generate_token_len"):
        assert getattr(answer, name) == getattr(other, name), name
    for name in ("logits", "last_hidden_state", "pooled"):
        mine, theirs = getattr(answer, name), getattr(other, name)
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            torch.testing.assert_close(
                mine,
                theirs,
                rtol=1e-4,
                atol=1e-5,
                msg=(name + ": {}").format,
            )
    assert (answer.logprobs is None) == (other.logprobs is None)
    for ours, others in zip(answer.logprobs or (), other.logprobs or (), strict=True):
        assert ours == pytest.approx(others, abs=1e-4)
    assert answer.usage is not None and other.usage is not None
    assert answer.usage.media_tokens == other.usage.media_tokens


@dataclass(frozen=True)
class Expected:
    """What Transformers makes of a conversation: its ids, float32 logits on the CPU, and greedy new tokens."""

    input_ids: list[int]
    logits: torch.Tensor
    answer: list[int]


def run_transformers(
    path: Path, name: str, *, new_tokens: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> list[Expected]:
    """Each of `make_conversations(name)`, alone."""
    model, processor = (load_oracle if name in WITH_PICTURES else load_text_oracle)(path, dtype)
    model = model.to(device)
    found = []
    for messages in make_conversations(name):
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # As processors do with `tokenize=True`: the tokenizer's own prefix is added unless the template wrote it.
        bos = getattr(processor, "tokenizer", processor).bos_token
        begins = bos is not None and text.startswith(bos)
        images = [part["image"] for m in messages for part in m["content"] if part["type"] == "image"]
        inputs = process(processor, text, images=images, add_special_tokens=not begins).to(device)
        with torch.inference_mode():
            logits = model(**inputs).logits[0].float().cpu()
            output = model.generate(
                **inputs,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                num_beams=1,
                # Transformers 5.17 drops its cache at the switch to the long factors and reads one token of the text.
                use_cache=name != "phi3_longrope",
            )
        ids = inputs["input_ids"][0].tolist()
        found.append(Expected(input_ids=ids, logits=logits, answer=output[0, len(ids) :].tolist()))
    return found


def run_video_in_transformers(path: Path, *, new_tokens: int) -> Expected:
    """`make_video_prompt`, with the rate of 2 frames a second."""
    model, processor = load_oracle(path)
    kinds = ({"type": "video"}, {"type": "image"})
    content: list[dict[str, Any]] = [{"type": "text", "text": TEXTS[0]}]
    for kind, text in zip(kinds, TEXTS[1:]):
        content += [kind, {"type": "text", "text": text}]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    bos = processor.tokenizer.bos_token
    count = len(FRAMES)
    metadata = {
        "total_num_frames": count,
        "fps": FPS,
        "frames_indices": list(range(count)),
        "duration": count / FPS,
    }
    inputs = process(
        processor,
        prompt,
        images=[PICTURE],
        videos=[np.stack([np.asarray(frame) for frame in FRAMES])],
        video_metadata=[metadata],
        add_special_tokens=bos is None or not prompt.startswith(bos),
    )
    with torch.inference_mode():
        logits = model(**inputs).logits[0].float()
        output = model.generate(
            **inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, num_beams=1
        )
    ids = inputs["input_ids"][0].tolist()
    return Expected(input_ids=ids, logits=logits, answer=output[0, len(ids) :].tolist())
