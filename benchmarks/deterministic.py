"""The deterministic mode: how many bits differ between arrangements of the same requests, and what it costs.

    python benchmarks/deterministic.py MODEL_DIR [--modes deterministic plain] [--requests 200] [--arrangements 6]
        [--start 1] [--prompt-words 600] [--answer-tokens 24] [--session-len 3072] [--side-px 900] [--no-speed]
    python benchmarks/deterministic.py --products

*bits*: the requests are texts, some with a picture, greedy and drawn. In the first arrangement, they come all at once.
Each further one, numbered from `--start`, is an engine of its own with options drawn at random (rows and tokens of a
step, KV blocks, caches, speculation, steps ahead, pictures at a time, process), an order, and how many are asked at a
time; number 1 asks one after another. Tokens, logits and log-probabilities are compared with those of the first one.
So 2,000 requests in 20 arrangements may be several runs, with `--start 1`, 8 and 15. *speed*: requests per second of
the workload text of h200.py, and milliseconds per token of a single answer. With both modes, the last line has the
ratios deterministic ÷ plain. Every line is printed when it is known.

`--products` needs no model: microseconds of the products of a 7B backbone, beside those of the plain mode and other
tilings, and whether a row gets the same bits with each number of rows.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from h200 import open_pipeline, report

from seesay import GenerationConfig, Pipeline, Response
from seesay.bench import workload

NUM_TOKENS, NUM_ROUNDS = 512, 2
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
HIDDEN, INNER, QKV = 3584, 18944, 4608
SHAPES = {"qkv": (QKV, HIDDEN), "out": (HIDDEN, HIDDEN), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
SEED = 5
LENGTHS = (0.001, 0.01, 0.1, 0.4, 1.0)
"""Of prompts, as shares of the longest one."""
MOST_LOGITS = 100
"""Answers of many whose logits are kept, about: one of a large model takes megabytes."""

Question = tuple[Any, GenerationConfig]


def make_questions(count: int, *, longest: int, answer_tokens: int, side_px: int, has_pictures: bool) -> list[Question]:
    """Prompts of 1 to `longest` words or half as many more, of which some begin alike; every fifth has a picture of up
    to `side_px`."""
    rng = random.Random(SEED)
    beginning = workload.make_text(longest // 2, rng)
    questions = []
    for index in range(count):
        text = workload.make_text(max(1, int(longest * rng.choice(LENGTHS))), rng)
        prompt: Any = beginning + text if index % 3 == 0 else text
        if has_pictures and index % 5 == 0:
            width_px, height_px = (rng.randint(min(60, side_px), side_px) for _ in range(2))
            prompt = (prompt, [workload.make_picture(width_px, height_px, index)])
        drawn: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "random_seed": index}
        config = GenerationConfig(
            max_new_tokens=rng.randint(2, answer_tokens),
            ignore_eos=True,
            logprobs=5,
            output_logits="generation" if index % max(10, count // MOST_LOGITS) == 1 else None,
            **(drawn if index % 2 else {"do_sample": False}),
        )
        questions.append((prompt, config))
    return questions


@dataclass(frozen=True)
class Arrangement:
    """In which order requests come, how many at a time (0: all at once), and the options of engine and vision."""

    number: int
    at_a_time: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)


def draw_arrangement(number: int, *, session_len: int) -> Arrangement:
    """Return an arrangement; number 0 is all requests at once, and 1 one after another, without a prefix cache."""
    if number <= 1:
        return Arrangement(number, number, {"enable_prefix_caching": False} if number else {})
    rng = random.Random(number)
    options: dict[str, Any] = {
        "max_batch_size": rng.choice((3, 16, 50, 256)),
        "max_prefill_token_num": rng.choice((48, 130, 700, 4096)),
        "enable_prefix_caching": rng.random() < 0.7,
        "async_scheduling": rng.random() < 0.7,
        "engine_process": rng.random() < 0.3,
        "speculative": {"method": "ngram"} if rng.random() < 0.4 else None,
        "block_size": rng.choice((16, 64)),
    }
    if rng.random() < 0.5:  # some are preempted
        options["num_gpu_blocks"] = 3 * session_len // (2 * options["block_size"])
        options["num_cpu_blocks"] = rng.choice((0, 200))
    return Arrangement(number, rng.choice((3, 17, 60, 0)), options, {"max_batch_size": rng.choice((1, 4, 16))})


def ask(pipe: Pipeline, questions: Sequence[Question], arrangement: Arrangement) -> list[Response]:
    """Answer in an arrangement."""
    order = list(range(len(questions)))
    if arrangement.number > 1:
        random.Random(arrangement.number).shuffle(order)
    found: dict[int, Response] = {}
    step = arrangement.at_a_time or len(order)
    for start in range(0, len(order), step):
        places = order[start : start + step]
        answers = pipe([questions[i][0] for i in places], gen_config=[questions[i][1] for i in places])
        found.update(zip(places, answers, strict=True))
    return [found[index] for index in range(len(questions))]


def count_differing(one: Sequence[Response], other: Sequence[Response]) -> tuple[int, int]:
    """Return how many bits and how many answers differ. Answers whose tokens differ count as 32 bits per token."""
    counts = [_count_bits(first, second) for first, second in zip(one, other, strict=True)]
    return sum(counts), sum(map(bool, counts))


def _count_bits(one: Response, other: Response) -> int:
    assert one.error is None and other.error is None, (one.error, other.error)
    if list(one.token_ids) != list(other.token_ids):
        return 32 * sum(a != b for a, b in zip(one.token_ids, other.token_ids, strict=True))
    pairs = [(_list_logprobs(one), _list_logprobs(other))]
    if one.logits is not None:
        pairs.append((np.asarray(one.logits, np.float32), np.asarray(other.logits, np.float32)))
    return int(sum(np.bitwise_count(a.view(np.uint32) ^ b.view(np.uint32)).sum() for a, b in pairs))


def _list_logprobs(response: Response) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([pair for step in response.logprobs or () for pair in step.items()], np.float32)


def measure_bits(mode: str, args: argparse.Namespace) -> None:
    questions = make_questions(
        args.requests,
        longest=args.prompt_words,
        answer_tokens=args.answer_tokens,
        side_px=args.side_px,
        has_pictures=not args.texts_only,
    )
    expected, num_bits, num_answers = None, 0, 0
    started_s = time.perf_counter()
    for number in (0, *range(args.start, args.start + args.arrangements - 1)):
        arrangement = draw_arrangement(number, session_len=args.session_len)
        options = {"session_len": args.session_len, "deterministic": mode == "deterministic", **arrangement.options}
        with open_pipeline(args.model, arrangement.vision, **options) as pipe:
            found = ask(pipe, questions, arrangement)
            num_preempted = pipe.engine.stats().total_preemptions
        if expected is None:
            expected = found
        bits, answers = count_differing(expected, found)
        num_bits, num_answers = num_bits + bits, num_answers + answers
        report(
            what="arrangement",
            mode=mode,
            number=number,
            at_a_time=arrangement.at_a_time,
            **arrangement.options,
            pictures_at_a_time=arrangement.vision.get("max_batch_size"),
            preempted=num_preempted,
            differing_bits=bits,
            seconds=round(time.perf_counter() - started_s, 1),
        )
    report(
        what="bits",
        mode=mode,
        requests=args.requests,
        arrangements=args.arrangements,
        differing_bits=num_bits,
        differing_answers=num_answers,
        seconds=round(time.perf_counter() - started_s, 1),
    )


def measure_speed(pipe: Pipeline, mode: str, scale: float) -> dict[str, float]:
    [request] = workload.text_requests(1)
    greedy = GenerationConfig(do_sample=False, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, ignore_eos=True)
    rounds = []
    for _ in range(1 + NUM_ROUNDS):
        started_s = time.perf_counter()
        pipe(request.text, gen_config=greedy)
        rounds.append(1e3 * (time.perf_counter() - started_s) / NUM_TOKENS)
    requests = workload.text_requests(max(1, int(512 * scale)), seed=SEED)
    configs = [
        GenerationConfig(do_sample=False, max_new_tokens=n, min_new_tokens=n, ignore_eos=True)
        for n in (request.num_output_tokens for request in requests)
    ]
    started_s = time.perf_counter()
    pipe([request.text for request in requests], gen_config=configs)
    figures = {
        "req_per_s": round(len(requests) / (time.perf_counter() - started_s), 3),
        "single_tpot_ms": round(min(rounds[1:]), 3),
    }
    report(what="speed", mode=mode, **figures)
    return figures


def measure_models(args: argparse.Namespace) -> None:
    figures = {}
    for mode in args.modes:
        if not args.no_speed:
            started_s = time.perf_counter()
            with open_pipeline(args.model, deterministic=mode == "deterministic") as pipe:
                report(what="start", mode=mode, seconds=round(time.perf_counter() - started_s, 1))
                figures[mode] = measure_speed(pipe, mode, args.scale)
        if mode == "deterministic" or args.compare_plain:
            measure_bits(mode, args)
    if len(figures) == 2:
        ratios = {f"{name}_ratio": figures["deterministic"][name] / value for name, value in figures["plain"].items()}
        report(what="deterministic / plain", **{name: round(value, 3) for name, value in ratios.items()})


def measure_products() -> None:
    """Print the products of all shapes and numbers of rows."""
    for name, (num_outputs, size) in SHAPES.items():
        weights = [
            torch.randn(num_outputs, size, device="cuda", dtype=torch.bfloat16)
            for _ in range(max(1, (1 << 28) // (2 * num_outputs * size)))
        ]
        first = torch.randn(1, size, device="cuda", dtype=torch.bfloat16)
        report(what="products", layer=name, **dict(_time_shape(weights, first)))


def _time_shape(weights: list[torch.Tensor], first: torch.Tensor) -> Iterator[tuple[str, object]]:
    """Yield, for each number of rows, microseconds as chosen, of cuBLAS, and of the best other tiling, if any is better
    by more than 3 %."""
    from seesay.kernels.fixed_matmul import multiply, pick_tiling

    wanted = multiply(first, weights[0], None)
    for num_rows in ROWS:
        x = torch.cat((torch.randn(num_rows - 1, first.shape[1], device="cuda", dtype=first.dtype), first))
        chosen = pick_tiling(num_rows, len(weights[0]), first.shape[1], 2, True)
        figures = {"chosen": _time(lambda w, x=x: multiply(x, w, None), weights)}
        figures["cublas"] = _time(lambda w, x=x: torch.nn.functional.linear(x, w), weights)
        for other in _list_tilings(chosen, num_rows):
            micros = _time(lambda w, x=x, other=other: multiply(x, w, None, tiling=other), weights)
            if micros < 0.97 * min(value for key, value in figures.items() if key != "cublas"):
                figures[f"better {tuple(other)}"] = micros
        is_same = torch.equal(multiply(x, weights[0], None)[-1:], wanted)
        yield f"{num_rows} rows", {**figures, "same_bits": is_same}


def _list_tilings(chosen: Any, num_rows: int) -> list[Any]:
    """Return some other tilings for a number of rows."""
    make = chosen._replace
    if num_rows <= 64:
        return [make(num_stages=4), make(span=64, num_stages=8), make(num_outputs=64), make(num_outputs=32)]
    sizes = [(64, 64, 4), (64, 128, 4), (128, 64, 8), (128, 128, 8), (128, 256, 8)]
    return [
        make(num_outputs=outputs, padded=outputs, rows=rows, num_warps=warps, num_stages=stages)
        for outputs, rows, warps in sizes
        for stages in (3, 4)
        if (outputs, rows, stages) != (chosen.padded, chosen.rows, chosen.num_stages)
    ]


def _time(run: Any, weights: list[torch.Tensor]) -> float:
    """Return the median of microseconds per call in a CUDA graph that takes the weights in turn; infinity for a tiling
    that the GPU has no room for."""
    from triton.runtime.errors import OutOfResources

    try:
        run(weights[0])
    except OutOfResources:
        return math.inf
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in weights:
            run(weight)
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / len(weights))
    return float(round(statistics.median(times), 1))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--products", action="store_true", help="measure products, without a model")
    parser.add_argument("--modes", nargs="+", choices=("deterministic", "plain"), default=("deterministic", "plain"))
    parser.add_argument("--requests", type=int, default=200, help="requests of each arrangement")
    parser.add_argument("--arrangements", type=int, default=6, help="the first one among them")
    parser.add_argument("--start", type=int, default=1, help="number of the second arrangement")
    parser.add_argument("--prompt-words", type=int, default=600, help="of long prompts; some have half as many more")
    parser.add_argument("--answer-tokens", type=int, default=24, help="of the longest answers")
    parser.add_argument("--session-len", type=int, default=3072, help="some arrangements have blocks for 1.5 as many")
    parser.add_argument("--side-px", type=int, default=900, help="longest side of pictures")
    parser.add_argument("--no-speed", action="store_true", help="count bits alone")
    parser.add_argument("--scale", type=float, default=0.5, help="share of the requests of the workload text")
    parser.add_argument("--texts-only", action="store_true", help="ask about no pictures")
    parser.add_argument("--compare-plain", action="store_true", help="count differing bits of the plain mode, too")
    args = parser.parse_args(argv)
    if args.products:
        measure_products()
    elif args.model is None:
        parser.error("give MODEL_DIR, or --products")
    else:
        measure_models(args)


if __name__ == "__main__":
    main()
