"""Measures how often a checkpoint answers unseen scenes rightly: `python -m seesay.demo.evaluate --scenes 500`.

Prints one JSON line, a share of right answers (0 to 1) per task. The first question of each scene is asked, greedily.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from seesay.demo import CHECKPOINT
from seesay.demo.checking import is_right
from seesay.demo.scenes import CLIP_FPS, FIRST_EVALUATION_SEED, TASKS, Example, make_example

MAX_NEW_TOKENS = 96
BATCH_SIZE = 50

Answerer = Callable[[Sequence[Example]], list[str]]
"""Answers the first question of each example."""


def evaluate(answer: Answerer, *, num_scenes: int, seed: int, tasks: Sequence[str] = TASKS) -> dict[str, float]:
    """The share of right answers per task, over the scenes of seeds `seed` to `seed + num_scenes - 1`."""
    if seed < FIRST_EVALUATION_SEED:
        raise ValueError(f"evaluation seeds start at {FIRST_EVALUATION_SEED}, got {seed}")
    shares = {}
    for task in tasks:
        num_right = 0
        for batch in _batches(range(seed, seed + num_scenes)):
            examples = [make_example(task, scene_seed) for scene_seed in batch]
            num_right += sum(map(is_right, examples, answer(examples)))
        shares[task] = round(num_right / num_scenes, 4)
    return shares


def _batches(seeds: range) -> Iterator[range]:
    for start in range(0, len(seeds), BATCH_SIZE):
        yield seeds[start : start + BATCH_SIZE]


def messages_for(example: Example) -> list[dict[str, Any]]:
    """The first question as OpenAI messages: media first, then the text."""
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": image}} for image in example.images]
    if example.clip:
        content.append({"type": "video_url", "video_url": {"url": list(example.clip), "fps": CLIP_FPS}})
    content.append({"type": "text", "text": example.turns[0][0]})
    return [{"role": "user", "content": content}]


@contextmanager
def seesay_answerer(model: str) -> Iterator[Answerer]:
    """Answers through seesay's public pipeline, which is closed at the end."""
    from seesay import GenerationConfig, pipeline

    config = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    with pipeline(model) as pipe:

        def answer(examples: Sequence[Example]) -> list[str]:
            responses = pipe([messages_for(example) for example in examples], gen_config=config)
            return [response.text for response in responses]

        yield answer


def transformers_answerer(model: str) -> Answerer:
    """Answers through Transformers, the reference."""
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    device = "cuda" if torch.cuda.is_available() else "cpu"
    processor = AutoProcessor.from_pretrained(model, padding_side="left")
    network = AutoModelForImageTextToText.from_pretrained(model, dtype="auto").to(device)

    def answer(examples: Sequence[Example]) -> list[str]:
        inputs = processor(**processor_inputs(processor, examples), padding=True, return_tensors="pt").to(device)
        generated = network.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        texts: list[str] = processor.batch_decode(
            generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return texts

    return answer


def processor_inputs(processor: Any, examples: Sequence[Example]) -> dict[str, Any]:
    """What a Transformers processor takes for the first questions of `examples`."""
    inputs: dict[str, Any] = {
        "text": [
            processor.apply_chat_template(messages_for(example), add_generation_prompt=True, tokenize=False)
            for example in examples
        ]
    }
    if images := [image for example in examples for image in example.images]:
        inputs["images"] = images
    if clips := [example.clip for example in examples if example.clip]:
        inputs["videos"] = [np.stack([np.asarray(frame) for frame in clip]) for clip in clips]
        inputs["video_metadata"] = [
            {
                "total_num_frames": len(clip),
                "fps": CLIP_FPS,
                "frames_indices": list(range(len(clip))),
                "duration": len(clip) / CLIP_FPS,
            }
            for clip in clips
        ]
        inputs["do_sample_frames"] = False
    return inputs


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m seesay.demo.evaluate", description=__doc__)
    parser.add_argument("--scenes", type=int, default=500, help="scenes per task (default: 500)")
    parser.add_argument("--seed", type=int, default=FIRST_EVALUATION_SEED, help="first seed, 1,000,000 or more")
    parser.add_argument("--model", help="path of a checkpoint (default: the built-in one)")
    parser.add_argument("--engine", choices=("seesay", "transformers"), default="seesay")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="only these tasks")
    given = parser.parse_args(arguments)
    if given.scenes < 1:
        parser.error(f"--scenes {given.scenes}: must be at least 1")
    if given.seed < FIRST_EVALUATION_SEED:
        parser.error(f"--seed {given.seed}: must be at least {FIRST_EVALUATION_SEED} (smaller ones are for training)")
    model = str(Path(given.model) if given.model else CHECKPOINT)
    answering = seesay_answerer(model) if given.engine == "seesay" else nullcontext(transformers_answerer(model))
    with answering as answer:
        print(json.dumps(evaluate(answer, num_scenes=given.scenes, seed=given.seed, tasks=given.tasks)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
