"""Options that the commands of `seesay bench` share. Names are those of LMDeploy, vLLM and SGLang."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seesay.bench.dataset_options import NAMES, DatasetOptions
from seesay.bench.plotting import add_plot_option
from seesay.commands.arguments import options
from seesay.errors import ConfigError

_OF_CSV = 50.0, 75.0, 95.0, 99.0  # the columns of LMDeploy


def add_dataset_options(parser: argparse.ArgumentParser, *, num_prompts: int) -> None:
    """Add the options of the requests that are measured."""
    group = parser.add_argument_group("requests")
    group.add_argument(
        "--dataset-name",
        choices=NAMES,
        help="random texts, or texts with random pictures; conversations of ShareGPT; questions about pictures as in "
        "VisionArena; or a JSONL file of your own with `prompt`, `output_tokens`, `images` (default: random, and "
        "sharegpt with --dataset-path)",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="the file of all but random requests")
    group.add_argument(
        "--image-folder", type=Path, metavar="FOLDER", help="where its pictures are (default: beside the file)"
    )
    group.add_argument(
        "-n", "--num-prompts", type=options.whole(1), default=num_prompts, metavar="N", help=f"default: {num_prompts}"
    )
    group.add_argument(
        "--random-input-len",
        "--input-len",
        type=options.whole(1),
        default=1024,
        metavar="N",
        help="words of a text (default: 1024)",
    )
    group.add_argument(
        "--random-output-len",
        type=options.whole(1),
        default=128,
        metavar="N",
        help="tokens of an answer, also where a file does not say (default: 128)",
    )
    group.add_argument(
        "--random-range-ratio",
        type=_share,
        default=1.0,
        metavar="R",
        help="draw lengths between R times these and these (default: 1)",
    )
    group.add_argument(
        "--random-prefix-len",
        type=options.whole(0),
        default=0,
        metavar="N",
        help="words that all random texts begin with, before those (default: 0)",
    )
    group.add_argument(
        "--output-len",
        "--sharegpt-output-len",
        type=options.whole(1),
        metavar="N",
        help="tokens of each answer, whatever the dataset says",
    )
    group.add_argument(
        "--image-size", type=_size, default=(1024, 1024), metavar="WxH", help="of random pictures (default: 1024x1024)"
    )
    group.add_argument(
        "--images-per-request", type=options.whole(1), default=1, metavar="N", help="of random pictures (default: 1)"
    )
    group.add_argument("--seed", type=options.whole(0), default=0, metavar="N", help="of what is drawn (default: 0)")


def read_dataset_options(arguments: argparse.Namespace) -> DatasetOptions:
    """Return which requests are measured. Raises `ConfigError` for a dataset without its file."""
    return DatasetOptions(
        name=arguments.dataset_name or ("random" if arguments.dataset_path is None else "sharegpt"),
        path=arguments.dataset_path,
        num_prompts=arguments.num_prompts,
        input_len=arguments.random_input_len,
        output_len=arguments.random_output_len,
        range_ratio=arguments.random_range_ratio,
        prefix_len=arguments.random_prefix_len,
        fixed_output_len=arguments.output_len,
        image_size=arguments.image_size,
        num_images=arguments.images_per_request,
        image_folder=arguments.image_folder,
        seed=arguments.seed,
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of how tokens are chosen."""
    group = parser.add_argument_group("answers")
    group.add_argument(
        "-temp",
        "--temperature",
        type=options.number,
        metavar="T",
        help="0 always takes the most likely token (default: 0, and 1 with --top-p or --top-k)",
    )
    group.add_argument(
        "--top-p", type=options.number, metavar="P", help="sample from the most likely tokens up to this probability"
    )
    group.add_argument(
        "--top-k", type=options.whole(0), metavar="K", help="sample from this many most likely tokens; 0 is all"
    )


def read_sampling(arguments: argparse.Namespace) -> dict[str, float]:
    """Return `temperature`, and `top_p` and `top_k` where they are given: as fields of a request, or of
    `GenerationConfig`."""
    given = {name: value for name in ("top_p", "top_k") if (value := getattr(arguments, name)) is not None}
    temperature = arguments.temperature if arguments.temperature is not None else float(bool(given))
    if given and temperature == 0:
        raise ConfigError(
            "--top-p and --top-k choose among several tokens: give --temperature above 0, or leave it out"
        )
    return {"temperature": temperature, **given}


def add_result_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of where the figures go."""
    group = parser.add_argument_group("results")
    group.add_argument(
        "--output-file", "--json", "--output-json", type=Path, metavar="FILE", help="write the figures as JSON"
    )
    group.add_argument("--csv", type=Path, metavar="FILE", help="write them as CSV, with LMDeploy's columns first")
    add_plot_option(group)
    group.add_argument(
        "--percentiles",
        "--metric-percentiles",
        type=_percentiles,
        default=(50.0, 75.0, 90.0, 95.0, 99.0),
        metavar="P,…",
        help="percentiles of the times, beside 50, 75, 95 and 99 (default: 90)",
    )
    group.add_argument(
        "--percentile-metrics",
        type=_metrics,
        metavar="METRIC,…",
        help="the times that are reported (default: ttft,tpot,itl,e2el)",
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        type=_limit,
        default=[],
        metavar="METRIC:MS",
        help="count requests that keep these limits, of ttft, tpot and e2el: --goodput ttft:2000 tpot:50",
    )


def read_figure_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `make_figures`."""
    metrics = {} if arguments.percentile_metrics is None else {"metrics": arguments.percentile_metrics}
    return {"percentiles": arguments.percentiles, "goodput_ms": dict(arguments.goodput), **metrics}


def check_result_files(arguments: argparse.Namespace) -> None:
    """Raise `ConfigError` for a file of the results that cannot be written. Called before anything is measured."""
    for path in filter(None, (arguments.output_file, arguments.csv, arguments.plot)):
        is_new = not path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None
        if is_new:
            path.unlink()


def write_results(arguments: argparse.Namespace, title: str, records: Sequence[Mapping[str, Any]]) -> int:
    """Print the figures, write the files, and return the exit status: 1 if a request failed."""
    from seesay.bench import report

    for record in records:
        print(f"{report.make_table(record)}\n")
    try:
        if arguments.output_file is not None:
            report.write_json(arguments.output_file, records)
        if arguments.csv is not None:
            report.write_csv(arguments.csv, records)
        if arguments.plot is not None and any(record["completed"] for record in records):
            report.plot(arguments.plot, title, records)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename!r}: {error.strerror}") from None
    return int(any(record["failed"] for record in records))


def _share(text: str) -> float:
    value = options.number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text}")
    return value


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be WIDTHxHEIGHT in pixels, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _percentiles(text: str) -> tuple[float, ...]:
    values = tuple(options.number(part) for part in text.split(","))
    if not all(0 <= value <= 100 for value in values):
        raise argparse.ArgumentTypeError(f"must be numbers from 0 to 100, got {text!r}")
    return tuple(sorted({*values, *_OF_CSV}))


def _metrics(text: str) -> tuple[str, ...]:
    from seesay.bench.outcomes import METRICS

    names = [name.strip() for name in text.split(",")]
    if not {*names} <= {*METRICS}:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(METRICS)}, with commas between, got {text!r}")
    return tuple(name for name in METRICS if name in names)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"must be ttft, tpot or e2el, a colon and milliseconds, got {text!r}")
    return name, options.number(value)
