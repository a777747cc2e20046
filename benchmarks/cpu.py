"""Tokens per second beside `transformers.generate`, on the CPU, with the built-in checkpoint.

    python benchmarks/cpu.py [--rounds 5] [--new-tokens 64] [--model PATH]

Both sides start from pictures and text and end with text, in float32, greedy, the same number of new tokens. Each
round asks about pictures that no round before has shown, so no cache helps, and the two sides take turns, so that a
machine whose speed drifts drifts under both. Prints one JSON line: the medians of the rounds' ratios at batch 1 and 8,
both sides' tokens/s, and the share of equal greedy tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from PIL.Image import Image

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.demo import CHECKPOINT
from seesay.demo.scenes import sample_scene

QUESTION = "describe this image"


class Transformers:
    """The same work done by `transformers.generate`."""

    def __init__(self, model: str) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor = AutoProcessor.from_pretrained(model, padding_side="left")
        self.model = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()

    def __call__(self, images: list[Image], new_tokens: int) -> list[list[int]]:
        turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
        text = self.processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        inputs = self.processor(text=[text] * len(images), images=images, padding=True, return_tensors="pt")
        output = self.model.generate(
            **inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, temperature=None
        )
        answers: list[list[int]] = output[:, inputs["input_ids"].shape[1] :].tolist()
        self.processor.batch_decode(answers, skip_special_tokens=True)
        return answers


class Seesay:
    """The same work done here."""

    def __init__(self, model: str) -> None:
        self.pipe: Pipeline = pipeline(model, backend_config=EngineConfig(device_type="cpu", dtype="float32"))

    def __call__(self, images: list[Image], new_tokens: int) -> list[list[int]]:
        config = GenerationConfig(max_new_tokens=new_tokens, min_new_tokens=new_tokens)
        responses = self.pipe([(QUESTION, image) for image in images], gen_config=config)
        return [list(response.token_ids) for response in responses]


def timed(side: Callable[[list[Image], int], list[list[int]]], images: list[Image], n: int) -> tuple[float, Any]:
    started = time.perf_counter()
    answers = side(images, n)
    return time.perf_counter() - started, answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--model", default=str(CHECKPOINT))
    args = parser.parse_args()

    theirs, ours = Transformers(args.model), Seesay(args.model)
    seed = 2_000_000
    figures: dict[str, Any] = {"what": "cpu", "threads": torch.get_num_threads()}
    same = total = 0
    for batch in (1, 8):
        ratios, rates = [], {"ours": [], "transformers": []}  # type: ignore[var-annotated]
        for counted in range(-1, args.rounds):
            images = [sample_scene(seed + k).images[0] for k in range(batch)]
            seed += batch
            their_s, their_answers = timed(theirs, images, args.new_tokens)
            our_s, our_answers = timed(ours, images, args.new_tokens)
            if counted < 0:
                continue  # the first round warms both sides up
            ratios.append(their_s / our_s)
            rates["ours"].append(batch * args.new_tokens / our_s)
            rates["transformers"].append(batch * args.new_tokens / their_s)
            same += sum(a == b for x, y in zip(their_answers, our_answers) for a, b in zip(x, y))
            total += batch * args.new_tokens
        figures[f"ratio_b{batch}"] = round(statistics.median(ratios), 2)
        for side, values in rates.items():
            figures[f"{side}_tokens_per_s_b{batch}"] = round(statistics.median(values), 1)
    figures["equal_tokens"] = round(same / total, 4)
    ours.pipe.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
