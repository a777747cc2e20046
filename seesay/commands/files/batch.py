"""`seesay batch`: answer a file of requests in OpenAI's batch format."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seesay.commands.arguments import engine_options, options
from seesay.commands.command import Command

if TYPE_CHECKING:
    from seesay.serving.batches.results import ResultFile

_EXAMPLES = """\
  seesay batch questions.jsonl answers.jsonl                  the built-in model, in this process
  seesay batch questions.jsonl answers.jsonl --model Qwen/Qwen2.5-VL-7B-Instruct
  seesay batch questions.jsonl answers.jsonl --base-url http://gpu7:23333
a line: {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
started again, it answers the lines that have no result in OUTPUT yet.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, metavar="INPUT", help="requests, one JSON object a line")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="results; a file that exists is continued")
    parser.add_argument(
        "--model",
        dest="model_path",
        default=options.DEMO_MODEL,
        metavar="MODEL",
        help=f"folder or hub id; it answers all lines (default: {options.DEMO_MODEL}, the built-in checkpoint)",
    )
    options.add_other_server(parser)
    parser.add_argument(
        "--concurrency",
        type=options.whole(1, 4096),
        default=128,
        metavar="N",
        help="lines answered at the same time (default: 128)",
    )
    parser.add_argument(
        "--request-timeout",
        type=options.number,
        default=3600.0,
        metavar="S",
        help="longest time for an answer including waiting, in seconds (default: 3600)",
    )
    group = parser.add_argument_group("pictures and videos")
    group.add_argument(
        "--allowed-local-media-path",
        metavar="FOLDER",
        help="lines may refer to files in this folder (default: no local files)",
    )
    options.add_media_options(group, max_bytes="64 MiB", max_pixels="64 million", max_items="64")
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.serving import require_packages

    require_packages()
    from seesay.serving.batches.file_run import count_lines
    from seesay.serving.batches.results import ResultFile
    from seesay.system.log import set_up_logging

    set_up_logging(arguments.log_level, 200 if arguments.max_log_len is None else arguments.max_log_len)
    num_lines = count_lines(arguments.input, arguments.output)
    started_s = time.perf_counter()
    stopped_by = 0
    with ResultFile(arguments.output) as results:
        num_earlier = results.num_results
        if num_earlier < num_lines:
            run = _run_here if arguments.base_url is None else _run_remotely
            stopped_by = _run_until_signal(run(arguments, results, num_lines))
    earlier = f", {num_earlier} of them before" if num_earlier else ""
    _say(
        f"{results.num_good} of {num_lines} lines answered, {results.num_bad} failed{earlier}; "
        f"{time.perf_counter() - started_s:.1f} s"
    )
    if results.num_bad:
        output = shlex.quote(str(arguments.output))
        _say(f"what failed has its error in {output}: grep -v '\"status_code\":200' {output}")
    if stopped_by:
        _say("stopped: run the same command again to go on")
        return 128 + stopped_by
    return int(results.num_bad > 0)


def _say(text: str) -> None:
    print(f"seesay: {text}", file=sys.stderr)


def _run_until_signal(run: Coroutine[Any, Any, None]) -> int:
    """Run to the end. Return the signal that has ended it before, SIGINT or SIGTERM, or 0."""
    stopped_by = int(signal.SIGINT)

    def stop(number: int, _: object) -> None:
        nonlocal stopped_by
        stopped_by = number
        signal.raise_signal(signal.SIGINT)  # which asyncio handles

    is_main = threading.current_thread() is threading.main_thread()  # others get no signals
    before = signal.signal(signal.SIGTERM, stop) if is_main else None
    try:
        asyncio.run(run)
    except KeyboardInterrupt:
        return stopped_by
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
    return 0


async def _run_here(arguments: argparse.Namespace, results: ResultFile, num_lines: int) -> None:
    """Answer with a model in this process."""
    from seesay.config import MediaLimits
    from seesay.engine.front.engine import AsyncEngine
    from seesay.serving.app import create_app
    from seesay.serving.batches.answering import AppAnswering
    from seesay.serving.batches.file_run import run_file
    from seesay.serving.settings import ServerSettings

    media = MediaLimits.for_server(
        **options.read_media_options(arguments), allowed_local_media_path=arguments.allowed_local_media_path
    )
    settings = ServerSettings(
        any_model_name=True,
        max_concurrent_requests=arguments.concurrency,
        request_timeout_s=arguments.request_timeout,
        media=media,
    )
    with AsyncEngine(
        arguments.model_path,
        backend_config=engine_options.make_engine_config(arguments),
        vision_config=engine_options.make_vision_config(arguments),
        chat_template_config=engine_options.make_chat_template_config(arguments),
        media_limits=media,
    ) as engine:
        answer = AppAnswering(create_app(engine, settings))
        await run_file(arguments.input, results, answer, num_lines=num_lines, num_at_once=arguments.concurrency)


async def _run_remotely(arguments: argparse.Namespace, results: ResultFile, num_lines: int) -> None:
    """Answer by a server."""
    import httpx

    from seesay.serving.batches.answering import ServerAnswering
    from seesay.serving.batches.file_run import run_file

    key = arguments.api_key or os.environ.get("SEESAY_API_KEY")
    limits = httpx.Limits(max_connections=arguments.concurrency, max_keepalive_connections=arguments.concurrency)
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(arguments.request_timeout, connect=30.0),
        limits=limits,
    ) as client:
        await run_file(
            arguments.input,
            results,
            ServerAnswering(client, arguments.base_url),
            num_lines=num_lines,
            num_at_once=arguments.concurrency,
        )


COMMAND = Command(
    name="batch",
    summary="answer a file of requests in OpenAI's batch format",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] INPUT OUTPUT",
    examples=_EXAMPLES,
)
