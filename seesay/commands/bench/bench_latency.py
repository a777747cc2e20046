"""`seesay bench latency`: times of answers by the number of requests and the lengths of prompts and answers."""

from __future__ import annotations

import argparse
import asyncio
import random
from typing import TYPE_CHECKING, Any

from seesay.commands.arguments import engine_options, options
from seesay.commands.bench import bench_options
from seesay.commands.bench.bench_throughput import open_engine
from seesay.commands.command import Command
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.engine.front.engine import AsyncEngine

_EXAMPLES = """\
  seesay bench latency                                                     one request, 128 tokens in, 128 out
  seesay bench latency MODEL --concurrency 1 16 64 --prompt-tokens 128 2048 --completion-tokens 128 128 --csv out.csv
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    group = parser.add_argument_group("requests")

    def add(*names: str, default: list[int], help: str) -> None:
        group.add_argument(*names, nargs="+", type=options.whole(1), default=default, metavar="N", help=help)

    add("-c", "--concurrency", default=[1], help="requests at a time; several are measured in turn (default: 1)")
    add("-pt", "--prompt-tokens", default=[128], help="lengths of the prompts (default: 128)")
    add("-ct", "--completion-tokens", default=[128], help="lengths of their answers, one for each (default: 128)")
    group.add_argument(
        "-tr", "--test-round", type=options.whole(1), default=3, metavar="N", help="times each is measured (default: 3)"
    )
    group.add_argument(
        "-w", "--warmup-round", type=options.whole(0), default=1, metavar="N", help="times before that (default: 1)"
    )
    group.add_argument("--seed", type=options.whole(0), default=0, metavar="N", help="of the prompts (default: 0)")
    bench_options.add_sampling_options(parser)
    bench_options.add_result_options(parser)
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    if len(arguments.prompt_tokens) != len(arguments.completion_tokens):
        raise ConfigError(
            "--completion-tokens must have a length for each of --prompt-tokens, "
            f"got {len(arguments.completion_tokens)} for {len(arguments.prompt_tokens)}"
        )
    sampling = bench_options.read_sampling(arguments)
    bench_options.check_result_files(arguments)
    with open_engine(arguments) as engine:
        records = [
            asyncio.run(_measure(arguments, engine, sampling, concurrency, num_prompt, num_answer))
            for concurrency in arguments.concurrency
            for num_prompt, num_answer in zip(arguments.prompt_tokens, arguments.completion_tokens)
        ]
    return bench_options.write_results(arguments, arguments.model_path, records)


async def _measure(
    arguments: argparse.Namespace,
    engine: AsyncEngine,
    sampling: dict[str, float],
    concurrency: int,
    num_prompt: int,
    num_answer: int,
) -> dict[str, Any]:
    from seesay.bench.in_process import answer_all, make_token_requests
    from seesay.bench.outcomes import make_figures

    draw = random.Random(arguments.seed)

    def make_round() -> list[Any]:
        """Prompts that no cache has."""
        drawn = ([draw.randrange(min(1000, engine.vocab_size)) for _ in range(num_prompt)] for _ in range(concurrency))
        return [request for ids in drawn for request in make_token_requests(1, ids, num_answer, sampling)]

    for _ in range(arguments.warmup_round):
        await answer_all(engine, make_round(), num_at_once=concurrency)
    rounds = [await answer_all(engine, make_round(), num_at_once=concurrency) for _ in range(arguments.test_round)]
    figures = make_figures(
        [outcome for outcomes, _ in rounds for outcome in outcomes],
        sum(seconds for _, seconds in rounds),
        **bench_options.read_figure_options(arguments),
    )
    return {
        "label": f"{concurrency} x {num_prompt} in, {num_answer} out",
        "backend": "engine",
        "model": arguments.model_path,
        "device": engine.core.facts.device,
        "concurrency": concurrency,
        "prompt_tokens": num_prompt,
        "completion_tokens": num_answer,
        **sampling,
        **figures,
    }


COMMAND = Command(
    name="latency",
    summary="measure the times of answers of an engine in this process",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [MODEL]",
    examples=_EXAMPLES,
)
