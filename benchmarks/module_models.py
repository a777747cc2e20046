"""Tokens per second of models that run through Transformers' modules, beside their own `generate`, on the CPU.

    python benchmarks/module_models.py [--rounds 3] [--requests 96] [--batch-size 8] [--scale 1]

Two random models that no family describes, made here: a text model (GPT-NeoX) and one of texts with a picture
(ViP-LLaVA with a CLIP tower), each with eight layers of 512 · scale components. A queue of prompts of 8 to 128 words
and answers of 4 to 256 tokens, most of them short, is answered greedily in float32, at most `batch-size` at a time.
`generate` takes the queue in batches of that size, as it comes: prompts are padded to the longest, and a batch lasts
as long as its longest answer. Here a finished answer makes room for the next. Only tokens asked for are counted. In
the figures that end in `_uniform` all prompts have one length, and all answers have 64 tokens, two batches of them,
so that neither side's places are ever empty: both are then bound by the same products, which read the same weights.

The sides take turns in each round, which has texts and pictures of its own, so no cache helps. Prints one JSON line:
medians of the rounds' ratios (ours over theirs), tokens/s, and the share of equal answers.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.demo import CHECKPOINT

UNIFORM_WORDS, UNIFORM_TOKENS = 40, 64
WORDS, TOKENS = (8, 128), (4, 256)
"""Least and most words of a prompt, and tokens of an answer."""
_MARKER = "<|image_pad|>"
_WORDS = ("the", "red", "circle", "is", "left", "of", "a", "small", "blue", "square", "and", "above")


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, with a picture or none, and the number of tokens of its answer."""

    text: str
    picture: Image.Image | None
    num_tokens: int

    @property
    def messages(self) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"type": "text", "text": self.text}]
        if self.picture is not None:
            parts.insert(0, {"type": "image", "image": self.picture})
        return [{"role": "user", "content": parts}]


def make_text_model(folder: Path, scale: float) -> None:
    """Write a GPT-NeoX with random weights, and the built-in checkpoint's tokenizer."""
    from transformers import AutoTokenizer, GPTNeoXConfig, GPTNeoXForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    width = int(512 * scale)
    config = GPTNeoXConfig(
        vocab_size=1024, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=8, num_attention_heads=8,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    _save(GPTNeoXForCausalLM, config, folder)
    tokenizer.save_pretrained(folder)


def make_vision_model(folder: Path, scale: float) -> None:
    """Write a ViP-LLaVA with random weights: 64 rows of a picture of 112 pixels."""
    from transformers import (
        AutoTokenizer,
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaProcessor,
        VipLlavaConfig,
        VipLlavaForConditionalGeneration,
    )

    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    width = int(512 * scale)
    layers: dict[str, Any] = {"num_hidden_layers": 8, "num_attention_heads": 8}
    config = VipLlavaConfig(
        vision_config=CLIPVisionConfig(
            hidden_size=width // 2, intermediate_size=width, image_size=112, patch_size=14, **layers
        ),
        text_config=LlamaConfig(
            vocab_size=1024, hidden_size=width, intermediate_size=int(width * 2.75), **layers,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids(_MARKER), vision_feature_layers=[-2, -5, 2],
        image_seq_length=64,
    )  # fmt: skip
    _save(VipLlavaForConditionalGeneration, config, folder)
    LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 112}, crop_size={"height": 112, "width": 112}),
        tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        image_token=_MARKER, chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)  # fmt: skip


def _save(model_class: Any, config: Any, folder: Path) -> None:
    torch.manual_seed(0)
    model_class(config).save_pretrained(folder)


def make_queue(num: int, seed: int, *, has_pictures: bool, is_uniform: bool) -> list[Task]:
    """Prompts of 8 to 128 words and answers of 4 to 256 tokens, whose logarithms are evenly spread: most are short, few
    are long. Or all of 40 words and 64 tokens."""
    rng = random.Random(seed)
    pixels = np.random.default_rng(seed)

    def draw(least: int, most: int) -> int:
        return round(math.exp(rng.uniform(math.log(least), math.log(most))))

    def make() -> Task:
        words = [rng.choice(_WORDS) for _ in range(UNIFORM_WORDS if is_uniform else draw(*WORDS))]
        picture = Image.fromarray(pixels.integers(0, 256, (96, 128, 3), dtype=np.uint8)) if has_pictures else None
        return Task(" ".join(words), picture, UNIFORM_TOKENS if is_uniform else draw(*TOKENS))

    return [make() for _ in range(num)]


class Transformers:
    """The queue in batches, by `generate`."""

    def __init__(self, folder: Path, batch_size: int, *, has_pictures: bool) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

        kind, reader = (
            (AutoModelForImageTextToText, AutoProcessor) if has_pictures else (AutoModelForCausalLM, AutoTokenizer)
        )
        self.processor = reader.from_pretrained(folder)
        self.tokenizer = self.processor.tokenizer if has_pictures else self.processor
        self.tokenizer.padding_side = "left"
        self.network: Any = kind.from_pretrained(folder, dtype=torch.float32).eval()
        self.batch_size, self.has_pictures = batch_size, has_pictures

    def answer(self, queue: Sequence[Task]) -> list[list[int]]:
        answers: list[list[int]] = []
        for first in range(0, len(queue), self.batch_size):
            batch = queue[first : first + self.batch_size]
            texts = [
                self.processor.apply_chat_template(task.messages, tokenize=False, add_generation_prompt=True)
                for task in batch
            ]
            pictures = {"images": [task.picture for task in batch]} if self.has_pictures else {}
            inputs = self.processor(text=texts, **pictures, padding=True, return_tensors="pt")
            longest = max(task.num_tokens for task in batch)
            with torch.inference_mode():
                output = self.network.generate(
                    **inputs, do_sample=False, max_new_tokens=longest, min_new_tokens=longest
                )
            made = output[:, inputs["input_ids"].shape[1] :].tolist()
            answers += [row[: task.num_tokens] for row, task in zip(made, batch, strict=True)]
        self.tokenizer.batch_decode(answers)
        return answers


class Seesay:
    """The queue through our pipeline."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        self.pipe = pipeline(
            str(folder), EngineConfig(device_type="cpu", dtype="float32", max_batch_size=batch_size, session_len=2048)
        )

    def answer(self, queue: Sequence[Task]) -> list[list[int]]:
        configs = [
            GenerationConfig(max_new_tokens=task.num_tokens, min_new_tokens=task.num_tokens, do_sample=False)
            for task in queue
        ]
        responses = self.pipe([task.messages for task in queue], gen_config=configs)
        return [list(response.token_ids) for response in responses]


def compare(theirs: Transformers, ours: Seesay, queues: Sequence[Sequence[Task]]) -> dict[str, Any]:
    """Medians over all queues but the first, which warms both sides up."""
    ratios, rates, their_rates, same = [], [], [], []
    for queue in queues:
        their_answers, their_rate = _time(theirs.answer, queue)
        our_answers, our_rate = _time(ours.answer, queue)
        ratios.append(our_rate / their_rate)
        rates.append(our_rate)
        their_rates.append(their_rate)
        same += [a == b for a, b in zip(their_answers, our_answers, strict=True)]
    median = statistics.median
    return {
        "ratio": round(median(ratios[1:]), 2),
        "tokens_per_s": round(median(rates[1:]), 1),
        "transformers_tokens_per_s": round(median(their_rates[1:]), 1),
        "equal_answers": round(sum(same) / len(same), 4),
    }


def _time(answer: Callable[[Sequence[Task]], list[list[int]]], queue: Sequence[Task]) -> tuple[list[list[int]], float]:
    """Return the answers to a queue, and tokens per second."""
    started = time.perf_counter()
    answers = answer(queue)
    return answers, sum(map(len, answers)) / (time.perf_counter() - started)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=96, help="length of a queue of different lengths")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--scale", type=float, default=1.0, help="width of the models, in multiples of 512 components")
    args = parser.parse_args(argv)

    figures: dict[str, Any] = {
        "what": "module_models",
        "threads": torch.get_num_threads(),
        "batch_size": args.batch_size,
    }
    for name, make in (("text", make_text_model), ("vision", make_vision_model)):
        with tempfile.TemporaryDirectory() as scratch:
            folder, has_pictures = Path(scratch), name == "vision"
            make(folder, args.scale)
            theirs = Transformers(folder, args.batch_size, has_pictures=has_pictures)
            ours = Seesay(folder, args.batch_size)
            for suffix, is_uniform in (("", False), ("_uniform", True)):
                lengths = [args.batch_size, *[2 * args.batch_size if is_uniform else args.requests] * args.rounds]
                queues = [
                    make_queue(num, 2 * k + is_uniform, has_pictures=has_pictures, is_uniform=is_uniform)
                    for k, num in enumerate(lengths)
                ]
                for key, value in compare(theirs, ours, queues).items():
                    figures[f"{key}_{name}{suffix}"] = value
            ours.pipe.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
