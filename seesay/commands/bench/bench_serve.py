"""`seesay bench serve`: measure any OpenAI-compatible server."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seesay.commands.arguments import options
from seesay.commands.bench import bench_options
from seesay.commands.command import Command
from seesay.errors import ConfigError

_EXAMPLES = """\
  seesay bench serve --base-url http://localhost:23333 --request-rate 8 --num-prompts 500
  seesay bench serve --dataset-name random-image --image-size 1024x1024 --goodput ttft:2000 tpot:50
  seesay bench serve --dataset-name sharegpt --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json --tokenizer MODEL
  seesay bench serve --base-url http://other:8000 --request-rate 1,2,4,8 --csv rates.csv --plot rates.png
"""
_BACKENDS = (
    "openai-chat", "openai", "seesay", "lmdeploy", "lmdeploy-chat", "vllm", "vllm-chat", "sglang", "sglang-oai",
    "sglang-oai-chat", "other",
)  # fmt: skip
_ENDPOINTS = "/chat/completions", "/completions"


def _rates(text: str) -> tuple[float, ...]:
    values = tuple(math.inf if part.strip() == "inf" else options.number(part) for part in text.split(","))
    if not all(value > 0 for value in values):
        raise argparse.ArgumentTypeError(f"must be above 0, or inf, got {text!r}")
    return values


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return value


def _endpoint(text: str) -> str:
    path = f"/{text.strip('/')}"
    if not path.endswith(_ENDPOINTS):
        raise argparse.ArgumentTypeError(f"must end with {' or '.join(_ENDPOINTS)}, got {text!r}")
    return path


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--backend",
        choices=_BACKENDS,
        default="openai-chat",
        help="what the server is, for the results: all are asked in the same way (default: openai-chat)",
    )
    group.add_argument("--base-url", metavar="URL", help="the server, with or without /v1 (default: --host and --port)")
    group.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    group.add_argument("--port", type=options.port, default=23333, help="default: 23333")
    group.add_argument(
        "--endpoint",
        type=_endpoint,
        default="/v1/chat/completions",
        metavar="PATH",
        help="of chat completions, or of completions such as /v1/completions, whose streams are measured (default: "
        "/v1/chat/completions)",
    )
    group.add_argument("--model", metavar="NAME", help="the server's model (default: the first that it lists)")
    group.add_argument("--api-key", metavar="KEY", help="set SEESAY_API_KEY instead to keep it out of the process list")
    group.add_argument(
        "--extra-request-body",
        "--extra-body",
        type=_object,
        default={},
        metavar="JSON",
        help='more fields, such as {"top_k": 5}',
    )
    lengths = group.add_mutually_exclusive_group()
    lengths.add_argument("--ignore-eos", action="store_true", help="answers have the wanted length: the default")
    lengths.add_argument(
        "--disable-ignore-eos",
        action="store_true",
        help="let answers end by themselves; a server that refuses ignore_eos needs this",
    )
    group.add_argument("--timeout", type=options.number, default=600.0, metavar="S", help="of an answer (default: 600)")
    group = parser.add_argument_group("load")
    group.add_argument(
        "--request-rate",
        type=_rates,
        default=(math.inf,),
        metavar="R,…",
        help="requests per second; several are measured one after the other (default: inf, all at once)",
    )
    group.add_argument(
        "--burstiness",
        type=options.number,
        default=1.0,
        metavar="B",
        help="of arrivals: 1 is a Poisson process, below it come bursts, above it is steadier (default: 1)",
    )
    group.add_argument(
        "-c", "--max-concurrency", "--concurrency", type=options.whole(1), metavar="N", help="requests at a time"
    )
    group.add_argument(
        "--warmup",
        "--num-warmups",
        type=options.whole(0),
        default=1,
        metavar="N",
        help="requests before that do not count (default: 1)",
    )
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress bar")
    group.add_argument(
        "--clients", type=options.whole(1, 64), default=1, metavar="N", help="processes that send (default: 1)"
    )
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="counts the tokens of a file's texts (default: 4 characters are taken for a token)",
    )
    bench_options.add_dataset_options(parser, num_prompts=1000)
    bench_options.add_sampling_options(parser)
    bench_options.add_result_options(parser)
    group = parser.add_argument_group("results under vLLM's names")
    group.add_argument("--save-result", action="store_true", help="write the figures as JSON, as --output-file does")
    group.add_argument("--result-dir", type=Path, metavar="FOLDER", help="where to; it is made (default: here)")
    group.add_argument(
        "--result-filename", metavar="NAME", help="default: BACKEND-RATEqps[-concurrencyN]-MODEL-DATE.json"
    )


def _run(arguments: argparse.Namespace) -> int:
    from seesay.bench.datasets import load_requests
    from seesay.bench.http_load import Target, load, make_body

    if arguments.burstiness <= 0:
        raise ConfigError(f"--burstiness must be above 0, got {arguments.burstiness:g}")
    dataset = bench_options.read_dataset_options(arguments)
    sampling = bench_options.read_sampling(arguments)
    bench_options.check_result_files(arguments)
    url = _address_of(arguments)
    key = arguments.api_key or os.environ.get("SEESAY_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    model = arguments.model or _first_model(url, headers)
    arguments.output_file = _name_result(arguments, model)
    bench_options.check_result_files(arguments)
    requests = load_requests(dataset, _token_counter(arguments.tokenizer))
    ignores_eos, extra = not arguments.disable_ignore_eos, sampling | arguments.extra_request_body
    path = arguments.endpoint
    bodies = [make_body(model, request, path=path, ignores_eos=ignores_eos, extra=extra) for request in requests]
    target = Target(url=url, path=path, headers=headers, timeout_s=arguments.timeout)
    if arguments.warmup:
        load(target, _make_jobs(bodies[: arguments.warmup], math.inf, arguments), arguments.warmup, 1)
    settings = {
        "backend": arguments.backend,
        "base_url": url,
        "model": model,
        "endpoint": path,
        "dataset": dataset.name,
        **sampling,
    }
    records = [_measure(arguments, target, bodies, settings, rate) for rate in arguments.request_rate]
    return bench_options.write_results(arguments, f"{model} at {url}", records)


def _make_jobs(bodies: list[bytes], rate: float, arguments: argparse.Namespace) -> list[Any]:
    from seesay.bench.arrivals import arrival_times_s
    from seesay.bench.http_load import Job

    times = arrival_times_s(len(bodies), rate=rate, burstiness=arguments.burstiness, seed=arguments.seed)
    return [Job(at_s, "request", body) for at_s, body in zip(times, bodies)]


def _measure(
    arguments: argparse.Namespace, target: Any, bodies: list[bytes], settings: Mapping[str, Any], rate: float
) -> dict[str, Any]:
    from seesay.bench.http_load import load
    from seesay.bench.outcomes import make_figures

    concurrency = arguments.max_concurrency or len(bodies)
    result = load(
        target,
        _make_jobs(bodies, rate, arguments),
        concurrency,
        arguments.clients,
        shows_progress=sys.stderr.isatty() and not arguments.disable_tqdm,
    )
    figures = make_figures(result.outcomes, result.seconds, **bench_options.read_figure_options(arguments))
    return {
        "label": f"{rate:g} req/s",
        **settings,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": arguments.burstiness,
        "concurrency": concurrency,
        **figures,
        "client_cores": result.most_cpu_s / result.seconds,
    }


def _name_result(arguments: argparse.Namespace, model: str) -> Path | None:
    """Return the file of the figures, under our option or vLLM's. Makes --result-dir."""
    folder, name = arguments.result_dir, arguments.result_filename
    if not (arguments.save_result or folder or name):
        return arguments.output_file  # type: ignore[no-any-return]
    if arguments.output_file is not None:
        raise ConfigError("--output-file and --save-result are the same: give one of them, with its names")
    rates = "-".join(f"{rate:g}" for rate in arguments.request_rate)
    places = f"-concurrency{arguments.max_concurrency}" if arguments.max_concurrency else ""
    date = time.strftime("%Y%m%d-%H%M%S")
    path = (folder or Path()) / (
        name or f"{arguments.backend}-{rates}qps{places}-{model.rstrip('/').rpartition('/')[2]}-{date}.json"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {str(path.parent)!r}: {error.strerror}") from None
    return path


def _address_of(arguments: argparse.Namespace) -> str:
    url = str(arguments.base_url or f"http://{arguments.host}:{arguments.port}").rstrip("/").removesuffix("/v1")
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ConfigError(f"--base-url must begin with http:// or https://, got {url!r}")
    return url


def _first_model(url: str, headers: dict[str, str]) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{url}/v1/models lists no model ({error}): is it running? Or give --model NAME") from None


def _token_counter(model: str | None) -> Callable[[str], int]:
    if model is None:
        from seesay.bench.datasets import estimate_tokens

        return estimate_tokens
    from seesay.checkpoint import resolve_checkpoint
    from seesay.processors.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(resolve_checkpoint(model))
    return lambda text: len(tokenizer.encode(text))


COMMAND = Command(
    name="serve",
    summary="measure any OpenAI-compatible server",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS]",
    examples=_EXAMPLES,
)
