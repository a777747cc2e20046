"""What an EAGLE-3 head saves if a given share of its proposals is right.

    python benchmarks/eagle.py MODEL_DIR [--batches 1,32] [--drafts 3,4,5,6] [--rate 0.7] [--tokens 256] [--rounds 3]
        [--head FOLDER]

Milliseconds per token of greedy answers that are given at once, without speculation and with a head. Its weights are
random, so what it proposes is replaced before it is verified: each token is the right one with probability `--rate`,
and a wrong one otherwise. All of the head, of verification and of the host is as in real use. What is right is known
from the answers of the round before; prompts come at once, so that rounds are alike.

The head has the shape of those that are published for the model's shape: a layer like one of the model, and 32,000
tokens. It is written to a temporary folder; `--head` takes another one. Prints a line `RESULT {JSON}` per batch and
number of proposed tokens: `accepted_share` of all proposed tokens, `tokens_per_step`, and `ratio`, milliseconds per
token by those without speculation.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from eagle_heads import describe_head, make_tensors, write_head
from h200 import open_pipeline, report
from speculation import count_steps

from seesay import GenerationConfig, Pipeline, SpeculativeConfig
from seesay.bench import workload
from seesay.checkpoint.model_path import resolve_checkpoint

MOST_KNOWN = 32000


class Oracle:
    """Replaces what the draft of an engine in this process proposes, once it has seen the answers."""

    def __init__(self, pipe: Pipeline, rate: float) -> None:
        self._rate, self._rng = rate, random.Random(1)
        self._seen: list[Any] = []
        self._answers: dict[tuple[int, ...], list[int]] = {}
        core: Any = pipe.engine.core
        draft = core.steps.speculation._draft
        self._propose, draft.propose = draft.propose, self._replace_all

    def learn(self) -> None:
        """Take the answers since the last call as the right ones, and begin to draw anew."""
        self._answers = {find_prompt(seq): seq.token_ids[seq.num_prompt_tokens :].tolist() for seq in self._seen}
        self._seen, self._rng = [], random.Random(1)

    def _replace_all(self, sequences: Sequence[Any], most: int) -> Mapping[int, tuple[int, ...]]:
        self._seen += [seq for seq in sequences if not any(seq is other for other in self._seen)]
        found = self._propose(sequences, most)
        return {seq.seq_id: self._replace(seq, found[seq.seq_id]) for seq in sequences if seq.seq_id in found}

    def _replace(self, seq: Any, proposed: tuple[int, ...]) -> tuple[int, ...]:
        answer = self._answers.get(find_prompt(seq), [])
        right = answer[seq.num_generated : seq.num_generated + len(proposed)]
        return tuple(token if self._rng.random() < self._rate else token ^ 1 for token in right) or proposed


def find_prompt(seq: Any) -> tuple[int, ...]:
    return tuple(seq.token_ids[: seq.num_prompt_tokens].tolist())


def ask(pipe: Pipeline, num_answers: int, num_tokens: int) -> dict[str, float]:
    """Return figures of greedy answers that are given at once."""
    texts = [request.text for request in workload.text_requests(num_answers)]
    config = GenerationConfig(do_sample=False, max_new_tokens=num_tokens, min_new_tokens=num_tokens, ignore_eos=True)
    num_steps, started_s = count_steps(pipe), time.perf_counter()
    answers = pipe(texts, gen_config=config)
    ms = 1e3 * (time.perf_counter() - started_s) / num_tokens
    usages = [answer.usage for answer in answers if answer.usage is not None]
    assert len(usages) == num_answers, answers[0].error
    accepted = sum(usage.accepted_prediction_tokens for usage in usages)
    rejected = sum(usage.rejected_prediction_tokens for usage in usages)
    return {
        "ms_per_token": round(ms, 3),
        "accepted_share": round(accepted / max(1, accepted + rejected), 3),
        "tokens_per_step": round(num_tokens / (count_steps(pipe) - num_steps), 3),
    }


def measure(
    pipe: Pipeline, num_answers: int, num_tokens: int, num_rounds: int, oracle: Oracle | None = None
) -> dict[str, float]:
    """Return the figures of the fastest of some rounds behind the first two."""
    rounds = []
    for _ in range(2 + num_rounds):
        rounds.append(ask(pipe, num_answers, num_tokens))
        if oracle is not None:
            oracle.learn()
    return min(rounds[2:], key=lambda figures: figures["ms_per_token"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--batches", default="1,32", help="numbers of answers at once")
    parser.add_argument("--drafts", default="3,4,5,6", help="most tokens that are proposed at once")
    parser.add_argument("--rate", type=float, default=0.7, help="probability of each token to be right")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of answers")
    parser.add_argument("--head", help="folder of a head")
    args = parser.parse_args(argv)
    batches = [int(number) for number in args.batches.split(",")]
    options: dict[str, Any] = {"engine_process": False, "enable_prefix_caching": False}
    with open_pipeline(args.model, **options) as pipe:
        plain = {count: measure(pipe, count, args.tokens, args.rounds) for count in batches}
    for count, figures in plain.items():
        report(what="eagle", batch=count, drafts=0, **figures)
    with tempfile.TemporaryDirectory() as folder:
        head = args.head or write_random_head(Path(folder) / "head", args.model)
        for drafts in map(int, args.drafts.split(",")):
            config = SpeculativeConfig(method="eagle3", model=str(head), num_speculative_tokens=drafts)
            with open_pipeline(args.model, speculative=config, **options) as pipe:
                oracle = Oracle(pipe, args.rate)
                for count in batches:
                    figures = measure(pipe, count, args.tokens, args.rounds, oracle)
                    ratio = round(figures["ms_per_token"] / plain[count]["ms_per_token"], 3)
                    report(what="eagle", batch=count, drafts=drafts, **figures, ratio=ratio)


def write_random_head(folder: Path, model: str) -> Path:
    """Write a head of the published shape for a model."""
    described = json.loads((resolve_checkpoint(model) / "config.json").read_text())
    vocab_size = described.get("text_config", described)["vocab_size"]
    config = describe_head(described, draft_vocab_size=min(MOST_KNOWN, vocab_size // 2))
    return write_head(folder, config, make_tensors(config, dtype=torch.bfloat16))


if __name__ == "__main__":
    main()
