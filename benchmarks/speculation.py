"""What speculation saves where a given share of what is proposed is right, and what it costs where nothing is.

    python benchmarks/speculation.py MODEL_DIR [--method ngram|eagle3|mtp|draft] [--batches 1,32] [--drafts 7]
        [--rate 0.97] [--proposer FOLDER] [--tokens 256] [--rounds 3] [--unrepeated 256]

*copied* (`ngram`): greedy answers that are their prompts again, but for a share of 1 - `--rate` of the tokens, as edits
of a code or pages that are read. A model with random weights repeats nothing; see copied_text.py for how it is made to.
What is proposed, and whether it is accepted, is as in real use. *forced* (`eagle3`, `mtp`, `draft`): random weights
propose nothing that is right, so what they propose is accepted by lot: each token behind accepted ones with
probability `--rate`. Prompts come at once, so that rounds are alike. Both print `ms_per_token` of each answer while all
of them go on, as the last tokens of few say little of many at once, `accepted_share` of all proposed tokens,
`tokens_per_step`, and `ratio`, milliseconds per token by those without speculation: of the median round.

*unrepeated*: requests per second of so many answers at once, drawn at temperature 1, that do not repeat themselves, and
`ratio`, by those without speculation; 0 leaves it out.

With `ngram`, one engine is loaded, of which the rounds with and without speculation take turns, so that both find the
GPU alike. `--batches 1 --unrepeated 0` measures how much less time a token takes of copied text alone, and `--batches
"" --unrepeated 256` what text costs that does not repeat itself.

`--proposer` is the folder of a head or a smaller model; without it, a random head of the published shape is written for
`eagle3`. Prints a line `RESULT {JSON}` per figure, and to stderr what each round gave.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from copied_text import CopyingModel, count_changed
from forced_proposals import ForcedAcceptance, write_random_head
from h200 import open_pipeline, report

from seesay import GenerationConfig, Pipeline, SpeculativeConfig
from seesay.bench import workload
from seesay.engine.front.request_batch import RequestBatch
from seesay.values import GenerationRequest, OutputDelta, Usage
from seesay.vl.prompts.conversation_parts import parse_prompts

NUM_FIRST_ROUNDS = 1
"""Rounds before those that are measured."""


class Asked(NamedTuple):
    """Requests, and what raises AssertionError for token ids of answers that are not theirs."""

    requests: list[GenerationRequest]
    check: Callable[[list[list[int]]], None]


Ask = Callable[[int, int], Asked]
"""Makes a number of requests of which all want a number of greedy tokens."""


def count_steps(pipe: Pipeline) -> int:
    return sum(number for _, number in pipe.engine.stats().step_sizes)


def make_greedy(num_tokens: int) -> GenerationConfig:
    return GenerationConfig(do_sample=False, max_new_tokens=num_tokens, min_new_tokens=num_tokens, ignore_eos=True)


def ask_texts(count: int, num_tokens: int) -> Asked:
    prompts = [request.text for request in workload.text_requests(count)]
    requests, _ = parse_prompts(prompts, make_greedy(num_tokens))
    return Asked([request for request in requests if isinstance(request, GenerationRequest)], lambda _: None)


def make_copies(copying: CopyingModel, text_tokens: int) -> Ask:
    """Return what asks for texts of which prompts have `text_tokens`."""

    def ask(count: int, num_tokens: int) -> Asked:
        prompts, expected = copying.make_prompts(count, text_tokens)
        config = make_greedy(num_tokens)

        def check(found: list[list[int]]) -> None:
            changed = count_changed(found, [text[:num_tokens] for text in expected])
            assert not changed, f"{changed} of {count} answers are not the texts of their prompts"

        return Asked([GenerationRequest(prompt=tuple(prompt), gen_config=config) for prompt in prompts], check)

    return ask


class Window:
    """The time in which all of `count` answers go on: from the first token of the last one to the end of the first."""

    def __init__(self, count: int) -> None:
        self.token_ids = [list[int]() for _ in range(count)]
        self._num_begun = 0
        self._began: tuple[float, int] | None = None
        self._ended: tuple[float, int] | None = None

    def add(self, index: int, delta: OutputDelta) -> None:
        own, has_ended = self.token_ids[index], delta.finish_reason is not None
        self._num_begun += not own and bool(delta.token_ids)
        own.extend(delta.token_ids)
        moment = time.perf_counter(), sum(map(len, self.token_ids))
        if self._began is None and self._num_begun == len(self.token_ids):
            self._began = moment
        if self._ended is None and has_ended:
            self._ended = moment

    @property
    def ms_per_token(self) -> float:
        """Of each answer."""
        assert self._began is not None and self._ended is not None
        (began_s, num_before), (ended_s, num_tokens) = self._began, self._ended
        assert num_tokens > num_before, "an answer was over before all had begun: ask for more tokens"
        return 1e3 * (ended_s - began_s) * len(self.token_ids) / (num_tokens - num_before)


def measure_once(pipe: Pipeline, asked: Asked, num_tokens: int) -> dict[str, float]:
    """Return figures of a round of answers."""
    num_steps, window, usages = count_steps(pipe), Window(len(asked.requests)), list[Usage]()
    for index, delta in RequestBatch(pipe.engine, asked.requests, streams=True).deltas():
        assert delta.error is None, delta.error
        window.add(index, delta)
        usages += [delta.usage] if delta.usage is not None else []
    asked.check(window.token_ids)
    assert len(usages) == len(asked.requests)
    accepted = sum(usage.accepted_prediction_tokens for usage in usages)
    rejected = sum(usage.rejected_prediction_tokens for usage in usages)
    return {
        "ms_per_token": round(window.ms_per_token, 3),
        "accepted_share": round(accepted / max(1, accepted + rejected), 3),
        "tokens_per_step": round(num_tokens / (count_steps(pipe) - num_steps), 3),
    }


def tell(what: str, **figures: Any) -> None:
    """Print what a round gave, so that a run that takes long is seen to go on."""
    print(what, *(f"{name}={value:.4g}" for name, value in figures.items()), file=sys.stderr, flush=True)


def measure(pipe: Pipeline, ask: Ask, count: int, args: argparse.Namespace) -> dict[str, float]:
    """Return the figures of the median round, by time per token: what is accepted by lot differs between rounds."""
    rounds = []
    for _ in range(NUM_FIRST_ROUNDS + args.rounds):
        rounds.append(measure_once(pipe, ask(count, args.tokens), args.tokens))
        tell(f"{count} answers:", **rounds[-1])
    ordered = sorted(rounds[NUM_FIRST_ROUNDS:], key=lambda figures: figures["ms_per_token"])
    return ordered[len(ordered) // 2]


class Unrepeated:
    """Answers that do not repeat themselves, all at once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._texts = [request.text for request in workload.text_requests(args.unrepeated)]
        self._configs = [
            GenerationConfig(
                do_sample=True, top_k=0, max_new_tokens=args.tokens, min_new_tokens=args.tokens, ignore_eos=True,
                random_seed=seed,
            )
            for seed in range(len(self._texts))
        ]  # fmt: skip

    def measure_once(self, pipe: Pipeline) -> float:
        """Return requests per second of a round."""
        started_s = time.perf_counter()
        answers = pipe(self._texts, gen_config=self._configs)
        assert all(answer.error is None for answer in answers), answers[0].error
        per_s = len(answers) / (time.perf_counter() - started_s)
        tell(f"{len(answers)} answers that do not repeat themselves:", req_per_s=per_s)
        return per_s


class Switch:
    """Turns speculation of an engine in this process off and on, while nothing is asked."""

    def __init__(self, pipe: Pipeline) -> None:
        engine: Any = pipe.engine
        self._steps = engine.core.steps
        self._speculation = self._steps.speculation

    def turn(self, *, on: bool) -> None:
        self._steps.speculation = self._speculation if on else None


def measure_ngram(args: argparse.Namespace, drafts: int) -> None:
    """Measure and report with up to `drafts` proposed tokens, and without, in turns."""
    batches = [int(number) for number in args.batches.split(",") if number]
    copying = CopyingModel(args.model, edits=1 - args.rate) if batches else None
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=drafts)
    with open_pipeline(args.model, speculative=config, engine_process=False, enable_prefix_caching=False) as pipe:
        switch = Switch(pipe)
        if args.unrepeated:
            report_unrepeated(pipe, switch, args, drafts)
        if copying is None:
            return
        copying.apply(pipe)
        for count in batches:
            plain_ms = 0.0
            for number in (0, drafts):
                switch.turn(on=number > 0)
                figures = measure(pipe, make_copies(copying, args.tokens), count, args)
                plain_ms = plain_ms or figures["ms_per_token"]
                ratio = round(figures["ms_per_token"] / plain_ms, 3)
                report(what="copied", method="ngram", drafts=number, batch=count, **figures, ratio=ratio)


def report_unrepeated(pipe: Pipeline, switch: Switch, args: argparse.Namespace, drafts: int) -> None:
    answers, found = Unrepeated(args), dict[int, list[float]]({0: [], drafts: []})
    for _ in range(NUM_FIRST_ROUNDS + args.rounds):
        for number in found:
            switch.turn(on=number > 0)
            found[number].append(answers.measure_once(pipe))
    best = {number: max(rounds[NUM_FIRST_ROUNDS:]) for number, rounds in found.items()}
    for number, per_s in best.items():
        common = {"what": "unrepeated", "method": "ngram", "drafts": number, "answers": args.unrepeated}
        report(**common, req_per_s=round(per_s, 3), ratio=round(per_s / best[0], 4))


class ForcedBenchmark:
    """Measures a model without speculation, then with each number of tokens that are proposed by a head or a model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._batches = [int(number) for number in args.batches.split(",")]
        self._plain: dict[int, dict[str, float]] = {}
        self._plain_unrepeated = 0.0

    def run(self, drafts: int, proposer: str) -> None:
        """Measure and report with up to `drafts` proposed tokens, 0: without speculation, which comes first."""
        args, config = self._args, None
        if drafts:
            config = SpeculativeConfig(method=args.method, model=proposer, num_speculative_tokens=drafts)
        common = {"method": args.method, "drafts": drafts}
        with open_pipeline(args.model, speculative=config, engine_process=False, enable_prefix_caching=False) as pipe:
            if args.unrepeated:
                answers = Unrepeated(args)
                per_s = max([answers.measure_once(pipe) for _ in range(NUM_FIRST_ROUNDS + args.rounds)][1:])
                self._plain_unrepeated = self._plain_unrepeated or per_s
                ratio = round(per_s / self._plain_unrepeated, 4)
                report(what="unrepeated", **common, answers=args.unrepeated, req_per_s=round(per_s, 3), ratio=ratio)
            for count in self._batches:
                with ForcedAcceptance(args.rate):
                    figures = measure(pipe, ask_texts, count, args)
                plain = self._plain.setdefault(count, figures)
                ratio = round(figures["ms_per_token"] / plain["ms_per_token"], 3)
                report(what="forced", **common, batch=count, **figures, ratio=ratio)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--method", choices=("ngram", "eagle3", "mtp", "draft"), default="ngram")
    parser.add_argument("--batches", default="1,32", help="numbers of answers at once")
    parser.add_argument("--drafts", help="most tokens that are proposed at once: 7 with ngram, else 3,5")
    parser.add_argument("--rate", type=float, help="share of right tokens: 0.97 with ngram, else 0.7")
    parser.add_argument("--proposer", default="", help="folder of a head or a smaller model")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of answers")
    parser.add_argument("--unrepeated", type=int, help="answers that do not repeat themselves: 256 with ngram, else 0")
    args = parser.parse_args(argv)
    is_ngram = args.method == "ngram"
    args.rate = (0.97 if is_ngram else 0.7) if args.rate is None else args.rate
    args.unrepeated = (256 if is_ngram else 0) if args.unrepeated is None else args.unrepeated
    drafts = args.drafts or ("7" if is_ngram else "3,5")
    if args.method == "draft" and not args.proposer:
        parser.error("--method draft needs --proposer FOLDER")
    if is_ngram:
        for number in map(int, drafts.split(",")):
            measure_ngram(args, number)
        return
    benchmark = ForcedBenchmark(args)
    with tempfile.TemporaryDirectory() as folder:
        proposer = args.proposer
        if args.method == "eagle3" and not proposer:
            proposer = str(write_random_head(Path(folder) / "head", args.model))
        for number in (0, *map(int, drafts.split(","))):
            benchmark.run(number, proposer)


if __name__ == "__main__":
    main()
