"""Tokens per second beside `transformers.generate`, on the CPU, with the built-in checkpoint.

    python benchmarks/cpu.py [--rounds 5] [--questions 48] [--model PATH] [--plot FILE.png]

A queue of questions about pictures, clips and sums, the evaluation's tasks in turn, is answered greedily to each
answer's natural end, at most 1 or 8 at a time. Transformers takes the queue in batches of that size, as
`transformers.generate` does; here a finished answer makes room for the next. Tokens are counted up to the end of each
answer. These are the figures that end in `_queue`. In the others one batch of pictures is described in 64 tokens each,
so that neither side's places are ever empty.

Both sides start from pictures and text and end with text, in float32. Each round asks about pictures that no round
before has shown, so no cache helps, and the sides take turns, so that a machine whose speed drifts drifts under both.
Prints one JSON line: medians of the rounds' ratios (ours over theirs), tokens/s, and the share of equal answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.bench.plotting import Bars, add_plot_option, save_plot
from seesay.demo import CHECKPOINT
from seesay.demo.evaluate import MAX_NEW_TOKENS, messages_for, processor_inputs
from seesay.demo.scenes import FIRST_EVALUATION_SEED, TASKS, Example, make_example, sample_scene

UNIFORM_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Answers:
    """The result of one side for a queue: token ids without the one that ends an answer, and the seconds it took."""

    token_ids: list[list[int]]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds


class Transformers:
    """The queue in batches of `batch_size`, by `transformers.generate`."""

    def __init__(self, model: str) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor = AutoProcessor.from_pretrained(model, padding_side="left")
        self.network = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
        ends = self.network.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def answer(self, queue: Sequence[Example], batch_size: int, num_tokens: int | None) -> Answers:
        length = {"max_new_tokens": num_tokens or MAX_NEW_TOKENS, "min_new_tokens": num_tokens or 0}
        answers: list[list[int]] = []
        started = time.perf_counter()
        for first in range(0, len(queue), batch_size):
            batch = queue[first : first + batch_size]
            inputs = self.processor(**processor_inputs(self.processor, batch), padding=True, return_tensors="pt")
            with torch.inference_mode():
                output = self.network.generate(**inputs, do_sample=False, **length)
            rows = output[:, inputs["input_ids"].shape[1] :].tolist()
            answers += [row if num_tokens else self._cut(row) for row in rows]
            self.processor.batch_decode(answers[first:], skip_special_tokens=True)
        return Answers(answers, time.perf_counter() - started)

    def _cut(self, row: list[int]) -> list[int]:
        return row[: next((i for i, token_id in enumerate(row) if token_id in self.ends), len(row))]


class Seesay:
    """The queue through our pipeline, at most `batch_size` sequences at a time."""

    def __init__(self, model: str) -> None:
        self.pipes = {
            size: pipeline(model, EngineConfig(device_type="cpu", dtype="float32", max_batch_size=size))
            for size in (1, 8)
        }

    def answer(self, queue: Sequence[Example], batch_size: int, num_tokens: int | None) -> Answers:
        config = GenerationConfig(max_new_tokens=num_tokens or MAX_NEW_TOKENS, min_new_tokens=num_tokens)
        started = time.perf_counter()
        responses = self.pipes[batch_size]([messages_for(example) for example in queue], gen_config=config)
        return Answers([response.token_ids for response in responses], time.perf_counter() - started)


def make_queue(seed: int, num: int) -> list[Example]:
    """Questions of all tasks in turn."""
    return [make_example(TASKS[k % len(TASKS)], seed + k) for k in range(num)]


def compare(
    theirs: Transformers, ours: Seesay, queues: Sequence[Sequence[Example]], batch_size: int, num_tokens: int | None
) -> dict[str, Any]:
    """Medians over all queues but the first, which warms both sides up."""
    ratios, rates, their_rates, same = [], [], [], []
    for queue in queues:
        their_answers = theirs.answer(queue, batch_size, num_tokens)
        our_answers = ours.answer(queue, batch_size, num_tokens)
        rates.append(our_answers.tokens_per_s)
        their_rates.append(their_answers.tokens_per_s)
        ratios.append(rates[-1] / their_rates[-1])
        same += [a == b for a, b in zip(their_answers.token_ids, our_answers.token_ids)]
    median = statistics.median
    return {
        "ratio": round(median(ratios[1:]), 2),
        "tokens_per_s": round(median(rates[1:]), 1),
        "transformers_tokens_per_s": round(median(their_rates[1:]), 1),
        "equal_answers": round(sum(same) / len(same), 4),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--questions", type=int, default=48, help="length of the queue at batch 8; a sixth at batch 1")
    parser.add_argument("--model", default=str(CHECKPOINT))
    add_plot_option(parser)
    args = parser.parse_args(argv)

    theirs, ours = Transformers(args.model), Seesay(args.model)
    figures: dict[str, Any] = {"what": "cpu", "threads": torch.get_num_threads()}
    seed = FIRST_EVALUATION_SEED + 500_000
    for batch_size in (1, 8):
        num = args.questions if batch_size > 1 else max(1, args.questions // 6)
        queues = [make_queue(seed + 1000 * k, num) for k in range(args.rounds + 1)]
        uniform = [[sample_scene(seed + 1000 * k + i) for i in range(batch_size)] for k in range(args.rounds + 1)]
        for suffix, work, num_tokens in (("", uniform, UNIFORM_TOKENS), ("_queue", queues, None)):
            for name, value in compare(theirs, ours, work, batch_size, num_tokens).items():
                figures[f"{name}_b{batch_size}{suffix}"] = value
        seed += 100_000
    for pipe in ours.pipes.values():
        pipe.close()
    print(json.dumps(figures))
    if args.plot is not None:
        rates = {
            f"batch {batch_size}, {'a queue of questions' if suffix else 'equal questions'}": {
                "seesay": figures[f"tokens_per_s_b{batch_size}{suffix}"],
                "Transformers": figures[f"transformers_tokens_per_s_b{batch_size}{suffix}"],
            }
            for batch_size in (1, 8)
            for suffix in ("", "_queue")
        }
        save_plot(args.plot, f"On the CPU, {figures['threads']} threads", [Bars(title="tokens/s", values=rates)])


if __name__ == "__main__":
    main()
