"""Measure a checkpoint's accuracy on unseen scenes: `python -m seesay.demo.evaluate --scenes 500`.

Prints one line of JSON: the share of right answers (0 to 1) per task. The first question of each scene is answered
greedily, in one of a few wordings from training. With `--phrasings`, each task is measured twice: in those wordings,
and in forms held out of training (`--kinds` also reports the latter by kind of question).
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from seesay.config import EngineConfig
from seesay.demo import CHECKPOINT
from seesay.demo.checking import is_right
from seesay.demo.scenes import CLIP_FPS, FIRST_EVALUATION_SEED, TASKS, Example, make_example
from seesay.demo.talks import TALK_TASKS, make_talk

MAX_NEW_TOKENS = 96
BATCH_SIZE = 50

_LOG = logging.getLogger(__name__)

Answerer = Callable[[Sequence[Example]], list[str]]
"""Answers the measured question of each example, which is usually the first."""


def evaluate(
    answer: Answerer, *, num_scenes: int, seed: int, tasks: Sequence[str] = TASKS, batch_size: int = BATCH_SIZE
) -> dict[str, float]:
    """Return the share of right answers per task, over the scenes of seeds `seed` to `seed + num_scenes - 1`."""
    return {task: _share(list(_judged(answer, make_example, task, num_scenes, seed, batch_size))) for task in tasks}


def evaluate_phrasings(
    answer: Answerer, *, num_scenes: int, seed: int, tasks: Sequence[str] = TALK_TASKS, by_kind: bool = False
) -> dict[str, dict[str, float]]:
    """Return, per task, the share of right answers to wordings from training (if any) and to held-out forms.

    by_kind: add the share of each kind of held-out question.
    """
    figures = {}
    for task in tasks:
        shares = {}
        if task in TASKS:
            shares["known"] = _share(list(_judged(answer, make_example, task, num_scenes, seed)))
        judged = list(_judged(answer, functools.partial(make_talk, held_out=True), task, num_scenes, seed))
        shares["unseen"] = _share(judged)
        if by_kind:
            kinds = sorted({example.kinds[example.asked] for example, _ in judged})
            shares |= {kind: _share([j for j in judged if j[0].kinds[j[0].asked] == kind]) for kind in kinds}
        figures[task] = shares
    return figures


def _judged(
    answer: Answerer,
    make: Callable[[str, int], Example],
    task: str,
    num_scenes: int,
    seed: int,
    batch_size: int = BATCH_SIZE,
) -> Iterator[tuple[Example, bool]]:
    if seed < FIRST_EVALUATION_SEED:
        raise ValueError(f"evaluation seeds start at {FIRST_EVALUATION_SEED}, got {seed}")
    seeds = range(seed, seed + num_scenes)
    for batch in (seeds[start : start + batch_size] for start in range(0, num_scenes, batch_size)):
        examples = [make(task, scene_seed) for scene_seed in batch]
        for example, text in zip(examples, answer(examples), strict=True):
            right = is_right(example, text, example.asked)
            if not right:
                _LOG.debug("%s: %r was answered %r, not %r", task, *_shown(example, text))
            yield example, right


def _shown(example: Example, text: str) -> tuple[str, str, str]:
    question, expected = example.turns[example.asked]
    return question, text, expected


def _share(judged: Sequence[tuple[Example, bool]]) -> float:
    return round(sum(right for _, right in judged) / len(judged), 4)


def messages_for(example: Example) -> list[dict[str, Any]]:
    """Return the conversation up to the measured question as OpenAI messages. The first question has the media."""
    media: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": image}} for image in example.images]
    if example.clip:
        media.append({"type": "video_url", "video_url": {"url": list(example.clip), "fps": CLIP_FPS}})
    messages: list[dict[str, Any]] = []
    if example.system is not None:
        messages.append({"role": "system", "content": example.system})
    for turn, (question, answer) in enumerate(example.turns[: example.asked + 1]):
        text = {"type": "text", "text": question}
        seen = media if turn == 0 else []
        messages.append({"role": "user", "content": [text, *seen] if example.media_last else [*seen, text]})
        if turn < example.asked:
            messages.append({"role": "assistant", "content": answer})
    return messages


def _make_answerer(engine: str, model: str, config: EngineConfig) -> AbstractContextManager[Answerer]:
    if engine == "transformers":
        return nullcontext(transformers_answerer(model))
    return seesay_answerer(model, config)


@contextmanager
def seesay_answerer(model: str, config: EngineConfig | None = None) -> Iterator[Answerer]:
    """Answer with seesay's public pipeline, which is closed at the end."""
    from seesay.config import GenerationConfig
    from seesay.offline.pipeline import pipeline

    sampling = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    with pipeline(model, backend_config=config) as pipe:

        def answer(examples: Sequence[Example]) -> list[str]:
            responses = pipe([messages_for(example) for example in examples], gen_config=sampling)
            return [response.text for response in responses]

        yield answer


def transformers_answerer(model: str) -> Answerer:
    """Answer with Transformers, the reference."""
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
    """Return the inputs of a Transformers processor for the measured questions of `examples`."""
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
    parser.add_argument("--quantization", choices=("fp8", "int8"), help="quantize the weights while they are loaded")
    parser.add_argument("--kv-cache-dtype", choices=("fp8", "int8", "int4"), help="quantize the KV cache")
    parser.add_argument("--tasks", nargs="+", choices=(*TASKS, *TALK_TASKS[len(TASKS) :]), help="only these tasks")
    parser.add_argument("--phrasings", action="store_true", help="also ask in wordings held out of training")
    parser.add_argument(
        "--kinds", action="store_true", help="with --phrasings: report the share of each kind of question"
    )
    parser.add_argument("--wrong", action="store_true", help="print the wrong answers to standard error")
    given = parser.parse_args(arguments)
    if given.scenes < 1:
        parser.error(f"--scenes must be at least 1, got {given.scenes}")
    if given.seed < FIRST_EVALUATION_SEED:
        parser.error(
            f"--seed must be at least {FIRST_EVALUATION_SEED} (smaller ones are for training), got {given.seed}"
        )
    for name in ("quantization", "kv_cache_dtype"):
        if getattr(given, name) and given.engine != "seesay":
            parser.error(f"--{name.replace('_', '-')} requires --engine seesay")
    config = EngineConfig(quantization=given.quantization, kv_cache_dtype=given.kv_cache_dtype or "auto")
    tasks = given.tasks or (TALK_TASKS if given.phrasings else TASKS)
    if unknown := [task for task in tasks if task not in TASKS and not given.phrasings]:
        parser.error(f"--tasks {unknown[0]} requires --phrasings")
    if given.wrong:
        logging.basicConfig(format="%(message)s")
        _LOG.setLevel(logging.DEBUG)
    model = str(Path(given.model) if given.model else CHECKPOINT)
    with _make_answerer(given.engine, model, config) as answer:
        figures: dict[str, Any]
        if given.phrasings:
            figures = evaluate_phrasings(
                answer, num_scenes=given.scenes, seed=given.seed, tasks=tasks, by_kind=given.kinds
            )
        else:
            figures = evaluate(answer, num_scenes=given.scenes, seed=given.seed, tasks=tasks)
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
