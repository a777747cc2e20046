"""Check that no optimization changes an answer.

    python benchmarks/same_answers.py [--scenes 200] [--device-type auto] [--dtype bfloat16]
        [--engine-process both] [--tp N] [--encoder-device NAME] [--plot FILE.png]

The built-in checkpoint answers scenes of all tasks greedily, one at a time, with nothing that could matter: no CUDA
graphs, no step ahead, no chunks, no caches. Then it answers all of them at once and in chunks, with all of that on, and
once more from its caches; at last the same with so few KV blocks that most come back from host memory. Where an answer
differs, the margin is how much likelier, in nats, the plain answer's token was than the other's at the first place
where they part; rounding alone turns only margins close to zero. With `--engine-process both` the fast
engines are asked in a thread, then in a process of their own. `--tp` and `--encoder-device` are the fast engines'.

Prints a line `RESULT {JSON}` per way of answering.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forms import FORMS, add_form_option, name_forms
from h200 import given, report
from placement import add_placement_options, engine_placement, vision_placement

from seesay import EngineConfig, GenerationConfig, Response, VisionConfig, pipeline
from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.demo.evaluate import MAX_NEW_TOKENS, messages_for
from seesay.demo.scenes import FIRST_EVALUATION_SEED, TASKS, Example, make_example

NUM_ALTERNATIVES = 10
CHUNK_TOKENS = 48
"""Pictures of the scenes have more tokens than this."""
FEW_BLOCKS = {"num_gpu_blocks": 64, "num_cpu_blocks": 2048}
"""A few scenes at a time fit into these."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The scene's index, the place of the first other token, and the margin there: infinite when the other answer's
    token was not even among `NUM_ALTERNATIVES`, or when one answer is the beginning of the other."""

    scene: int
    position: int
    margin: float


def make_scenes(num: int) -> list[Example]:
    """Scenes of all tasks in turn."""
    return [make_example(TASKS[k % len(TASKS)], FIRST_EVALUATION_SEED + 888_000 + k) for k in range(num)]


def ask_plainly(scenes: Sequence[Example], **options: Any) -> list[Response]:
    """One at a time; with log-probabilities."""
    config = EngineConfig(
        max_batch_size=1, eager_mode=True, async_scheduling=False, enable_prefix_caching=False, **options
    )
    vision_config = VisionConfig(max_batch_size=1, embedding_cache_bytes=0, feature_cache_bytes=0)
    gen_config = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS, logprobs=NUM_ALTERNATIVES)
    with pipeline(backend_config=config, vision_config=vision_config) as pipe:
        return [pipe(messages_for(scene), gen_config=gen_config) for scene in scenes]


def ask_fast(
    scenes: Sequence[Example], *, vision_config: VisionConfig | None = None, **options: Any
) -> list[list[Response]]:
    """All at once, in chunks, ahead: at first, and from the caches."""
    config = EngineConfig(max_batch_size=64, max_prefill_token_num=CHUNK_TOKENS, block_size=16, **options)
    gen_config = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS)
    with pipeline(backend_config=config, vision_config=vision_config) as pipe:
        return [pipe([messages_for(scene) for scene in scenes], gen_config=gen_config) for _ in range(2)]


def compare(plain: Sequence[Response], fast: Sequence[Response]) -> list[Difference]:
    """Return the differences between answers. Raises `RuntimeError` for an answer that is an error."""
    differences = []
    for scene, (expected, answer) in enumerate(zip(plain, fast, strict=True)):
        if "error" in (expected.finish_reason, answer.finish_reason):
            raise RuntimeError(f"scene {scene}: {expected.text!r}, {answer.text!r}")
        if answer.token_ids == expected.token_ids and answer.finish_reason == expected.finish_reason:
            continue
        pairs = zip(expected.token_ids, answer.token_ids)
        position = next((k for k, (theirs, other) in enumerate(pairs) if theirs != other), -1)
        margin = float("inf")
        if position >= 0:
            assert expected.logprobs is not None
            logprobs = expected.logprobs[position]
            margin = logprobs[expected.token_ids[position]] - logprobs.get(answer.token_ids[position], -margin)
        differences.append(Difference(scene, position, margin))
    return differences


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--device-type", default="auto")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    add_form_option(parser)
    add_placement_options(parser)
    add_plot_option(parser)
    args = parser.parse_args(argv)
    if args.scenes < 1:
        parser.error("--scenes is at least 1")
    scenes = make_scenes(args.scenes)
    options = {"device_type": args.device_type, "dtype": args.dtype}
    plain = ask_plainly(scenes, **options)
    num_different, records = 0, []
    options |= engine_placement(args)
    vision = VisionConfig(**vision_placement(args))
    for form in FORMS[args.engine_process]:
        said = given(engine_process=form)
        fast = dict(zip(("computed", "cached"), ask_fast(scenes, vision_config=vision, **options, **said)))
        few = ask_fast(scenes, vision_config=vision, **options, **said, **FEW_BLOCKS)
        fast |= zip(("computed, few blocks", "cached, few blocks"), few)
        for name, answers in fast.items():
            differences = compare(plain, answers)
            num_different += len(differences)
            record = report(
                what="same_answers",
                how=name,
                **said,
                dtype=args.dtype,
                answers=len(scenes),
                answer_tokens=sum(len(answer.token_ids) for answer in plain),
                different=len(differences),
                margins=sorted(round(difference.margin, 4) for difference in differences),
                cached_tokens=sum(answer.usage.cached_tokens for answer in answers if answer.usage is not None),
            )
            records.append(record)
    if args.plot is not None:
        bars = make_bars("answers", name_forms(records, "how"), "how", {"answers": "all", "different": "different"})
        save_plot(args.plot, f"The same answers, {args.dtype}", [bars])
    sys.exit(int(num_different > 0))


if __name__ == "__main__":
    main()
