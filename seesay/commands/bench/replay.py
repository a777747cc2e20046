"""`seesay replay`: repeat the requests of a recording."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.commands.arguments import engine_options, options
from seesay.commands.command import Command
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.bench.recorded import Recorded
    from seesay.bench.replay import Repeated, Target

_EXAMPLES = """\
  seesay serve api_server MODEL --record requests.jsonl --record-media    record what a server answers
  seesay replay requests.jsonl --model MODEL                              answer it again in this process
  seesay replay requests.jsonl --base-url http://gpu7:23333 --speed 2     by a server, twice as fast
"""
_MOST_SHOWN = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", type=Path, metavar="FILE", help="what --record has written")
    parser.add_argument(
        "--model",
        dest="model_path",
        default=options.DEMO_MODEL,
        metavar="MODEL",
        help=f"folder or hub id of the model (default: {options.DEMO_MODEL}, the built-in checkpoint)",
    )
    options.add_other_server(parser)
    parser.add_argument(
        "--speed",
        type=options.number,
        default=1.0,
        metavar="X",
        help="send requests X times as fast as they came; 0: all at once (default: 1)",
    )
    parser.add_argument(
        "--media",
        type=Path,
        metavar="FOLDER",
        help="where the pictures and videos are, found by their SHA-256 (default: FILE.media)",
    )
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.bench.recorded import read_recording
    from seesay.system.log import set_up_logging

    set_up_logging(arguments.log_level, arguments.max_log_len)
    if arguments.speed < 0:
        raise ConfigError(f"--speed must be at least 0, got {arguments.speed:g}")
    if arguments.base_url is not None and not arguments.base_url.startswith(("http://", "https://")):
        raise ConfigError(f"--base-url must begin with http:// or https://, got {arguments.base_url!r}")
    if arguments.media is not None and not arguments.media.is_dir():
        raise ConfigError(f"--media must be a folder, got {str(arguments.media)!r}")
    requests = read_recording(arguments.recording)
    if not requests:
        raise ConfigError(f"{arguments.recording}: there is no request in it")
    return asyncio.run(_replay(arguments, requests))


async def _replay(arguments: argparse.Namespace, requests: list[Recorded]) -> int:
    from seesay.bench.recorded import MediaFolder
    from seesay.bench.replay import list_other_weights, replay
    from seesay.engine.front.recording import media_folder

    folder = MediaFolder(arguments.media or media_folder(arguments.recording))
    open_target = _open_engine if arguments.base_url is None else _open_server
    async with open_target(arguments) as target:
        for line in list_other_weights(requests, target.weights)[:_MOST_SHOWN]:
            print(line, file=sys.stderr)
        repeated = await replay(requests, target, folder, speed=arguments.speed or None)
        return await _report(repeated, target)


async def _report(repeated: Sequence[Repeated], target: Target) -> int:
    """Print what differs, and the times. Return the exit status."""
    from seesay.bench.replay import compare_times, describe_difference, list_problems

    different = [each for each in repeated if each.differs_at is not None]
    num_missing = sum(each.answer is None for each in repeated)
    for each in different[:_MOST_SHOWN]:
        print(await describe_difference(each, target))
    for line in list_problems(repeated)[:_MOST_SHOWN]:
        print(line, file=sys.stderr)
    num_equal = len(repeated) - len(different) - num_missing
    print(f"{num_equal} equal, {len(different)} different, {num_missing} not repeated")
    print("".join(f"{line}\n" for line in compare_times(repeated)), end="")
    return int(bool(different) or num_equal == 0)


@asynccontextmanager
async def _open_engine(arguments: argparse.Namespace) -> AsyncIterator[Target]:
    from seesay.bench.replay import EngineTarget
    from seesay.engine.front.engine import AsyncEngine

    with AsyncEngine(
        arguments.model_path,
        backend_config=engine_options.make_engine_config(arguments),
        vision_config=engine_options.make_vision_config(arguments),
        chat_template_config=engine_options.make_chat_template_config(arguments),
    ) as engine:
        yield EngineTarget(engine)


@asynccontextmanager
async def _open_server(arguments: argparse.Namespace) -> AsyncIterator[Target]:
    import httpx

    from seesay.bench.replay import ServerTarget

    key = arguments.api_key or os.environ.get("SEESAY_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout, limits = httpx.Timeout(None, connect=30.0), httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits) as client:
        yield ServerTarget(client, arguments.base_url)


COMMAND = Command(
    name="replay",
    summary="answer recorded requests again, and compare",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] FILE",
    examples=_EXAMPLES,
)
