"""Measure a checkpoint's accuracy on unseen scenes: `python -m seesay.demo.evaluate --scenes 500`.

Prints one line of JSON: the share of right answers (0 to 1) per task; of `page`, the share of right characters. The
first question of each scene is answered greedily, in one of a few wordings from training.
`examples/evaluate_phrasings.py` asks in wordings held out of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from seesay.config import EngineConfig
from seesay.demo import CHECKPOINT
from seesay.demo.checking import is_right, score
from seesay.demo.drawing import Picture
from seesay.demo.scenes import CLIP_FPS, FIRST_EVALUATION_SEED, SKILLS, TASKS, Example, make_example

MAX_NEW_TOKENS = 256
BATCH_SIZE = 50

_LOG = logging.getLogger(__name__)

Answerer = Callable[[Sequence[Example]], list[str]]
"""Answers the measured question of each example, which is usually the first."""
Maker = Callable[[str, int], Example]
"""Draws the example of a task and a seed."""
SHEET_INCHES = 8.27
"""The width of the pages of a PDF, that of A4."""


def evaluate(
    answer: Answerer,
    *,
    num_scenes: int,
    seed: int,
    tasks: Sequence[str] = TASKS,
    batch_size: int = BATCH_SIZE,
    make: Maker = make_example,
) -> dict[str, float]:
    """Return the score of each task, over the scenes of seeds `seed` to `seed + num_scenes - 1`: the share of right
    answers, for pages the share of characters."""

    def mean_score(task: str) -> float:
        answered = answered_examples(answer, make, task=task, num_scenes=num_scenes, seed=seed, batch_size=batch_size)
        return round(sum(score(example, text) for example, text in answered) / num_scenes, 4)

    return {task: mean_score(task) for task in tasks}


def judged_answers(
    answer: Answerer,
    make: Maker,
    *,
    task: str,
    num_scenes: int,
    seed: int,
    batch_size: int = BATCH_SIZE,
) -> Iterator[tuple[Example, bool]]:
    """Yield each example that `make` draws for `task`, and whether its answer is right.

    Wrong ones are logged (debug). Raises ValueError for a `seed` below FIRST_EVALUATION_SEED.
    """
    answered = answered_examples(answer, make, task=task, num_scenes=num_scenes, seed=seed, batch_size=batch_size)
    for example, text in answered:
        yield example, is_right(example, text, example.asked)


def answered_examples(
    answer: Answerer,
    make: Maker,
    *,
    task: str,
    num_scenes: int,
    seed: int,
    batch_size: int = BATCH_SIZE,
) -> Iterator[tuple[Example, str]]:
    """Yield each example that `make` draws for `task`, and its answer; what `judged_answers` says of it holds here."""
    if seed < FIRST_EVALUATION_SEED:
        raise ValueError(f"evaluation seeds start at {FIRST_EVALUATION_SEED}, got {seed}")
    seeds = range(seed, seed + num_scenes)
    for batch in (seeds[start : start + batch_size] for start in range(0, num_scenes, batch_size)):
        examples = [make(task, scene_seed) for scene_seed in batch]
        for example, text in zip(examples, answer(examples), strict=True):
            if not is_right(example, text, example.asked):
                _LOG.debug("%s: %r was answered %r, not %r", task, *_shown(example, text))
            yield example, text


def _shown(example: Example, text: str) -> tuple[str, str, str]:
    question, expected = example.turns[example.asked]
    return question, text, expected


def share_right(judged: Sequence[tuple[Example, bool]]) -> float:
    """Return the share of right answers, 0 to 1, to four decimals."""
    return round(sum(right for _, right in judged) / len(judged), 4)


def messages_for(example: Example) -> list[dict[str, Any]]:
    """Return the conversation up to the measured question as OpenAI messages. The first question has the media."""
    media: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": image}} for image in example.images]
    if example.clip:
        media.append({"type": "video_url", "video_url": {"url": list(example.clip), "fps": CLIP_FPS}})
    messages: list[dict[str, object]] = []
    if example.system is not None:
        messages.append({"role": "system", "content": example.system})
    for turn, (question, answer) in enumerate(example.turns[: example.asked + 1]):
        text = {"type": "text", "text": question}
        seen = media if turn == 0 else []
        messages.append({"role": "user", "content": [text, *seen] if example.media_last else [*seen, text]})
        if turn < example.asked:
            messages.append({"role": "assistant", "content": answer})
    return messages


def make_pdf_example(task: str, seed: int) -> Example:
    """Return the example of `make_example` with its pictures as `load_document` opens them from PDFs."""
    example = make_example(task, seed)
    return dataclasses.replace(example, pictures=tuple(map(_through_pdf, example.pictures)))


def write_pdf(image: Image.Image) -> bytes:
    """Return a PDF of one page, which is `SHEET_INCHES` wide."""
    written = io.BytesIO()
    image.save(written, "PDF", resolution=image.width / SHEET_INCHES)
    return written.getvalue()


def _through_pdf(picture: Picture) -> Picture:
    from seesay.processors.media.load import load_document

    [page] = load_document(write_pdf(picture.image))
    return Picture(image=page.image, marks=())


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
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from seesay.device.query import pick_device

    device = pick_device("auto")
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
        inputs |= _make_clip_inputs(clips)
    return inputs


def _make_clip_inputs(clips: Sequence[Sequence[object]]) -> dict[str, Any]:
    return {
        "videos": [np.stack([np.asarray(frame) for frame in clip]) for clip in clips],
        "video_metadata": [
            {
                "total_num_frames": len(clip),
                "fps": CLIP_FPS,
                "frames_indices": list(range(len(clip))),
                "duration": len(clip) / CLIP_FPS,
            }
            for clip in clips
        ],
        "do_sample_frames": False,
    }


def make_parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what every evaluation of a checkpoint takes; `open_evaluation` reads what it parsed."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--scenes", type=int, default=500, help="scenes per task (default: 500)")
    parser.add_argument("--seed", type=int, default=FIRST_EVALUATION_SEED, help="first seed, 1,000,000 or more")
    parser.add_argument("--model", help="path of a checkpoint (default: the built-in one)")
    parser.add_argument("--engine", choices=("seesay", "transformers"), default="seesay")
    parser.add_argument("--quantization", choices=("fp8", "int8"), help="quantize the weights while they are loaded")
    parser.add_argument("--kv-cache-dtype", choices=("fp8", "int8", "int4"), help="quantize the KV cache")
    parser.add_argument("--wrong", action="store_true", help="print the wrong answers to standard error")
    return parser


def open_evaluation(parser: argparse.ArgumentParser, given: argparse.Namespace) -> AbstractContextManager[Answerer]:
    """Check the options of `make_parser` (a wrong one ends the program), and open what answers."""
    if given.scenes < 1:
        parser.error(f"--scenes must be at least 1, got {given.scenes}")
    if given.seed < FIRST_EVALUATION_SEED:
        parser.error(
            f"--seed must be at least {FIRST_EVALUATION_SEED} (smaller ones are for training), got {given.seed}"
        )
    for name in ("quantization", "kv_cache_dtype"):
        if getattr(given, name) and given.engine != "seesay":
            parser.error(f"--{name.replace('_', '-')} requires --engine seesay")
    if given.wrong:
        logging.basicConfig(format="%(message)s")
        _LOG.setLevel(logging.DEBUG)
    config = EngineConfig(quantization=given.quantization, kv_cache_dtype=given.kv_cache_dtype or "auto")
    return _make_answerer(given.engine, str(Path(given.model) if given.model else CHECKPOINT), config)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("python -m seesay.demo.evaluate", __doc__)
    parser.add_argument("--tasks", nargs="+", choices=(*TASKS, *SKILLS), default=TASKS, help="only these tasks")
    parser.add_argument("--pdf", action="store_true", help="give pictures as pages of a PDF, at its usual dpi")
    given = parser.parse_args(arguments)
    make = make_pdf_example if given.pdf else make_example
    with open_evaluation(parser, given) as answer:
        print(json.dumps(evaluate(answer, num_scenes=given.scenes, seed=given.seed, tasks=given.tasks, make=make)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
