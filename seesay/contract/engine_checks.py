"""Checks of a family through the engine: answers do not depend on how they are computed, and equal Transformers'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seesay.config import EngineConfig, GenerationConfig
from seesay.contract.items import VIDEO
from seesay.engine.front.response import Response
from seesay.offline.pipeline import Pipeline, pipeline
from seesay.vl.family import Family

Conversation = list[dict[str, Any]]
NEW_TOKENS = 16
_BLOCK_SIZE, _LEAST_CHUNK, _NUM_CHUNKS = 16, 7, 5
_GREEDY = GenerationConfig(max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, ignore_eos=True)


class OracleMissingError(Exception):
    """Transformers cannot run the checkpoint. The message says why."""


def make_conversations(family: Family) -> list[Conversation]:
    """Return prompts with text alone, and with one and two pictures where the family takes pictures."""
    prompts = [["the game is in the frame, " * 5], ["what?"]]
    if family.modalities:
        prompts += [[_draw(23, 31), "what is this?"], ["before ", _draw(40, 77), " between ", _draw(40, 77), " after"]]
    return [[{"role": "user", "content": [_make_part(part) for part in prompt]}] for prompt in prompts]


def make_video_prompt(family: Family) -> Conversation:
    """Return a prompt with a video between texts."""
    rate = {"num_frames": 4} if "num_frames" in family.default_sampling else {"fps": 2.0}
    video = {"type": "video", "video": [_draw(37, 52, seed) for seed in range(4)], **rate}
    return [{"role": "user", "content": [_make_part("see "), video, _make_part(" move")]}]


class Answers:
    """The answers to the same prompts, computed in several ways by an engine in this process, on the CPU in float32."""

    def __init__(self, folder: Path, family: Family, plugins: Sequence[str]) -> None:
        """Compute every prompt alone."""
        self._folder, self._plugins, self._is_prefix_lm = folder, tuple(plugins), family.is_prefix_lm
        self.conversations = make_conversations(family)
        self._prompts = list(self.conversations)
        if VIDEO in family.modalities:
            self._prompts.append(make_video_prompt(family))
        with self._open(enable_prefix_caching=False) as pipe:
            self.alone = [_ask(pipe, [prompt])[0] for prompt in self._prompts]
            self._batched = _ask(pipe, self._prompts)

    def batched_equal_alone(self) -> None:
        """Prompts that are computed together have the answers that each has alone."""
        self._compare(self._batched)

    def chunked_and_cached_equal_alone(self) -> None:
        """Prompts in chunks, and prompts whose prefix is in the cache, have the same answers. Prompts that are computed
        in one step have no chunks."""
        longest = max(answer.input_token_len for answer in self.alone)
        chunk = longest if self._is_prefix_lm else max(_LEAST_CHUNK, longest // _NUM_CHUNKS)
        with self._open(max_prefill_token_num=chunk) as pipe:
            self._compare(_ask(pipe, self._prompts))
            again = _ask(pipe, self._prompts)
            self._compare(again)
        cached = [answer.usage.cached_tokens for answer in again if answer.usage is not None]
        assert sum(cached) > 0, "nothing was found in the prefix cache"

    def greedy_tokens_equal_generate(self) -> None:
        """Greedy tokens are those of Transformers' `generate`. Raises `OracleMissingError` where it cannot run."""
        expected = _generate(self._folder, self.conversations)
        for number, ((length, ids), answer) in enumerate(zip(expected, self.alone, strict=False)):
            assert answer.input_token_len == length, (
                f"prompt {number} has {answer.input_token_len} tokens, that of Transformers' processor {length}"
            )
            assert answer.token_ids == ids, f"prompt {number}: {answer.token_ids}, Transformers has {ids}"

    def _open(self, **options: Any) -> Pipeline:
        config = EngineConfig(
            device_type="cpu", dtype="float32", engine_process=False, block_size=_BLOCK_SIZE, plugins=self._plugins,
            **options,
        )  # fmt: skip
        return pipeline(str(self._folder), config)

    def _compare(self, answers: Sequence[Response]) -> None:
        for number, (one, other) in enumerate(zip(self.alone, answers, strict=True)):
            assert one.token_ids == other.token_ids, f"prompt {number}: {other.token_ids}, alone {one.token_ids}"


def _ask(pipe: Pipeline, prompts: list[Conversation]) -> list[Response]:
    answers: list[Response] = pipe(prompts, gen_config=_GREEDY)
    for number, answer in enumerate(answers):
        assert answer.finish_reason != "error", f"prompt {number}: {answer.text}"
    return answers


def _generate(folder: Path, conversations: Sequence[Conversation]) -> list[tuple[int, list[int]]]:
    """Return the length of each prompt and its greedy tokens, by Transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

    images = [[part["image"] for m in each for part in m["content"] if "image" in part] for each in conversations]
    found = []
    try:
        kinds = (AutoModelForImageTextToText, AutoProcessor) if any(images) else (AutoModelForCausalLM, AutoTokenizer)
        model, processor = (kind.from_pretrained(folder) for kind in kinds)
        model = model.to(torch.float32).eval()
        for conversation, pictures in zip(conversations, images, strict=True):
            inputs = _process(processor, conversation, pictures)
            with torch.inference_mode():
                made = model.generate(**inputs, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)
            length = inputs["input_ids"].shape[1]
            found.append((length, made[0, length:].tolist()))
    except Exception as error:
        raise OracleMissingError(f"Transformers cannot run it: {type(error).__name__}: {error}"[:300]) from error
    return found


def _make_part(part: object) -> dict[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}


def _process(processor: Any, conversation: Conversation, pictures: Sequence[object]) -> Any:
    """Return the inputs of Transformers' model for a conversation."""
    text = processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    bos = getattr(processor, "tokenizer", processor).bos_token
    begins = bos is not None and text.startswith(bos)  # the template has written it
    media = {"images": pictures} if pictures else {}
    return processor(text=[text], **media, return_tensors="pt", add_special_tokens=not begins)


def _draw(height: int, width: int, seed: int = 0) -> Any:
    from PIL import Image

    pixels = np.random.default_rng([seed, height, width]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
