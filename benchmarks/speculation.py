"""How many steps and milliseconds a token takes with speculation and without.

    python benchmarks/speculation.py MODEL_DIR [--drafts 7] [--scale 1.0]

*single*: milliseconds per token, and steps per token, of one greedy answer of 512 tokens; a model with random weights
soon repeats itself, so that nearly all of what is proposed is accepted: `accepted_share` says how much. *text*:
requests per second of the workload of h200.py, whose answers are drawn at temperature 1 and do not repeat themselves.
Prints a line `RESULT {JSON}` with `ngram`, and one without speculation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from h200 import open_pipeline, report

from seesay import GenerationConfig, Pipeline, SpeculativeConfig
from seesay.bench import workload

NUM_TOKENS, NUM_ROUNDS = 512, 3


def count_steps(pipe: Pipeline) -> int:
    return sum(number for _, number in pipe.engine.stats().step_sizes)


def measure(pipe: Pipeline, scale: float) -> dict[str, float]:
    """Return the figures of an engine."""
    [request] = workload.text_requests(1)
    greedy = GenerationConfig(do_sample=False, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, ignore_eos=True)
    rounds, num_steps, num_accepted, num_rejected = list[float](), 0, 0, 0
    for _ in range(1 + NUM_ROUNDS):
        before, started_s = count_steps(pipe), time.perf_counter()
        answer = pipe(request.text, gen_config=greedy)
        rounds.append(1e3 * (time.perf_counter() - started_s) / NUM_TOKENS)
        num_steps = count_steps(pipe) - before
        assert answer.usage is not None, answer.error
        num_accepted += answer.usage.accepted_prediction_tokens
        num_rejected += answer.usage.rejected_prediction_tokens
    requests = workload.text_requests(max(1, int(512 * scale)))
    configs = [
        GenerationConfig(do_sample=True, top_k=0, max_new_tokens=n, min_new_tokens=n, ignore_eos=True, random_seed=seed)
        for seed, n in enumerate(request.num_output_tokens for request in requests)
    ]
    started_s = time.perf_counter()
    pipe([request.text for request in requests], gen_config=configs)
    seconds = time.perf_counter() - started_s
    return {
        "single_tpot_ms": round(min(rounds[1:]), 3),
        "steps_per_token": round(num_steps / NUM_TOKENS, 3),
        "accepted_share": round(num_accepted / max(1, num_accepted + num_rejected), 3),
        "req_per_s": round(len(requests) / seconds, 2),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--drafts", type=int, default=7, help="most tokens that are proposed at once")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests of the workload text")
    args = parser.parse_args(argv)
    for method in ("ngram", "none"):
        config = SpeculativeConfig(method="ngram", num_speculative_tokens=args.drafts) if method == "ngram" else None
        with open_pipeline(args.model, speculative=config) as pipe:
            report(what="speculation", method=method, **measure(pipe, args.scale))


if __name__ == "__main__":
    main()
