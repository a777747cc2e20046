"""`seesay bench throughput`: how many requests an engine in this process answers."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.commands.arguments import engine_options, options
from seesay.commands.bench import bench_options
from seesay.commands.command import Command
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.bench.dataset_options import DatasetOptions
    from seesay.engine.front.engine import AsyncEngine

_EXAMPLES = """\
  seesay bench throughput                                       random texts, the built-in model
  seesay bench throughput Qwen/Qwen2.5-VL-7B-Instruct --dataset-name random-image --num-prompts 500 --csv out.csv
  seesay bench throughput MODEL --dataset-name sharegpt --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[DATASET] MODEL",
        help=f"folder or hub id (default: {options.DEMO_MODEL}); in front of it, as in LMDeploy, the --dataset-path",
    )
    parser.add_argument(
        "-c", "--concurrency", type=options.whole(1), default=256, metavar="N", help="requests at a time (default: 256)"
    )
    parser.add_argument("--disable-tqdm", action="store_true", help="show no progress bar")
    bench_options.add_dataset_options(parser, num_prompts=1000)
    bench_options.add_sampling_options(parser)
    bench_options.add_result_options(parser)
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _read_words(arguments: argparse.Namespace) -> None:
    """Set the model, and the dataset if it was given as LMDeploy's script takes it."""
    *before, arguments.model_path = arguments.words or [options.DEMO_MODEL]
    if len(before) > 1 or (before and arguments.dataset_path is not None):
        raise ConfigError(f"give one dataset and one model, got {' '.join(arguments.words)}")
    if before:
        arguments.dataset_path = Path(before[0])


def _run(arguments: argparse.Namespace) -> int:
    _read_words(arguments)
    dataset = bench_options.read_dataset_options(arguments)
    sampling = bench_options.read_sampling(arguments)
    bench_options.check_result_files(arguments)
    with open_engine(arguments) as engine:
        record = asyncio.run(_measure(arguments, engine, dataset, sampling))
    return bench_options.write_results(arguments, arguments.model_path, [record])


def open_engine(arguments: argparse.Namespace) -> AsyncEngine:
    """Return the engine that the options of the command describe."""
    from seesay.engine.front.engine import AsyncEngine
    from seesay.system.log import set_up_logging

    set_up_logging(arguments.log_level, 200 if arguments.max_log_len is None else arguments.max_log_len)
    return AsyncEngine(
        arguments.model_path,
        backend_config=engine_options.make_engine_config(arguments),
        vision_config=engine_options.make_vision_config(arguments),
        chat_template_config=engine_options.make_chat_template_config(arguments),
    )


async def _measure(
    arguments: argparse.Namespace, engine: AsyncEngine, dataset: DatasetOptions, sampling: dict[str, float]
) -> dict[str, Any]:
    from seesay.bench.datasets import load_requests
    from seesay.bench.in_process import answer_all, make_requests
    from seesay.bench.outcomes import make_figures

    def count_tokens(text: str) -> int:
        return len(engine.tokenize_text(text, add_special_tokens=False))

    requests = make_requests(load_requests(dataset, count_tokens), sampling)
    await answer_all(engine, requests[:1], num_at_once=1)  # the first request pays for what is set up lazily
    outcomes, seconds = await answer_all(
        engine,
        requests,
        num_at_once=arguments.concurrency,
        shows_progress=sys.stderr.isatty() and not arguments.disable_tqdm,
    )
    figures = make_figures(outcomes, seconds, **bench_options.read_figure_options(arguments))
    return {
        "label": f"{arguments.concurrency} at a time",
        "backend": "engine",
        "model": arguments.model_path,
        "device": engine.core.facts.device,
        "dataset": dataset.name,
        **sampling,
        "concurrency": arguments.concurrency,
        **figures,
    }


COMMAND = Command(
    name="throughput",
    summary="measure how many requests an engine in this process answers",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [[DATASET] MODEL]",
    examples=_EXAMPLES,
)
