"""`seesay ocr`: read documents with a model, and write Markdown or JSON."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.commands.arguments import engine_options, options
from seesay.commands.command import Command
from seesay.errors import ConfigError, SeesayError

if TYPE_CHECKING:
    from seesay.commands.chat.answering import Answerer
    from seesay.config import MediaLimits
    from seesay.vl.tasks import Task

_EXAMPLES = """\
  seesay ocr report.pdf -o report.md --model zai-org/GLM-OCR
  seesay ocr scans/ letters/ -o texts --format json --model Qwen/Qwen2.5-VL-7B-Instruct
  seesay ocr report.pdf -o report.md --pages 1-3,7 --base-url http://gpu7:23333
started again, it reads the pages that it has not read yet.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", type=Path, nargs="+", metavar="INPUT", help="PDFs, TIFFs, pictures, and folders of them"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUTPUT",
        help="the file to write for one INPUT, or a folder",
    )
    parser.add_argument(
        "--format",
        choices=("md", "json"),
        help="of the files that are written (default: json where OUTPUT is a file that ends in .json, else md)",
    )
    parser.add_argument(
        "--model",
        dest="model_path",
        default=None,
        metavar="MODEL",
        help=f"folder or hub id, or a name on the server (default: {options.DEMO_MODEL}, or the server's first model)",
    )
    options.add_other_server(parser)
    group = parser.add_argument_group("pages")
    group.add_argument("--pages", metavar="PAGES", help="pages of each document, such as 1-3,7 or 5- (default: all)")
    group.add_argument(
        "--dpi",
        type=options.whole(18, 1200),
        default=144,
        metavar="N",
        help="pixels per inch of PDF pages (default: 144)",
    )
    group.add_argument(
        "--task", metavar="NAME", help="what the model is asked: text, markdown, table, … (default: its first)"
    )
    group.add_argument("--prompt", metavar="TEXT", help="ask this instead")
    group.add_argument(
        "--concurrency", type=options.whole(1, 1024), default=16, metavar="N", help="pages read at a time (default: 16)"
    )
    options.add_generation_options(parser, max_new_tokens=4096)
    media = parser.add_argument_group("pictures and videos")
    options.add_media_options(media, max_bytes="256 MiB", max_pixels="179 million", max_items="1024")
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from seesay.commands.files.transcribing import Reading, choose_format, find_files, is_done, plan_outputs, transcribe
    from seesay.config import MediaLimits
    from seesay.values import DocumentOptions

    DocumentOptions.checked({"pages": arguments.pages})  # before a model is loaded, and not for each document
    files = find_files(arguments.inputs)
    is_one = len(files) == 1 and arguments.inputs[0].is_file()
    form = arguments.format or choose_format(arguments.output, is_one=is_one)
    planned = plan_outputs(files, arguments.output, form, is_one=is_one)
    waiting = [pair for pair in planned if not is_done(pair[1])]
    num_failed = 0
    if waiting:
        limits = MediaLimits(**options.read_media_options(arguments))
        with (
            _open_model(arguments, limits) as (model, name, task),
            ThreadPoolExecutor(arguments.concurrency, thread_name_prefix="seesay-ocr") as threads,
            tqdm(total=0, unit="page", file=sys.stderr, disable=None) as progress,
        ):
            reading = Reading(
                model=model, name=name, task=task, limits=limits, pages=arguments.pages, dpi=arguments.dpi
            )
            for file, output in waiting:
                try:
                    num_failed += transcribe(file, output, form, reading, threads=threads, progress=progress) > 0
                except SeesayError as error:
                    print(f"seesay: {file}: {error}", file=sys.stderr)
                    num_failed += 1
    num_earlier = len(planned) - len(waiting)
    earlier = f", {num_earlier} of them before (delete what was written to read them again)" if num_earlier else ""
    print(f"seesay: {len(planned) - num_failed} of {len(planned)} documents read{earlier}", file=sys.stderr)
    return int(num_failed > 0)


@contextmanager
def _open_model(arguments: argparse.Namespace, limits: MediaLimits) -> Iterator[tuple[Answerer, str, Task]]:
    """Open the model or the server that reads. Yields it, its name, and what it is asked."""
    from dataclasses import replace

    from seesay.commands.chat.answering import LocalModel, RemoteModel
    from seesay.vl.tasks import find_tasks

    if arguments.base_url is not None:
        from seesay.serving.client import APIClient

        with APIClient(arguments.base_url, arguments.api_key or os.environ.get("SEESAY_API_KEY")) as client:
            name = arguments.model_path or client.available_models[0]
            task = _choose_task(arguments, find_tasks(name=name))
            fields = {**options.make_request_fields(arguments), **task.answer_options}
            yield RemoteModel(client, name, fields), name, task
        return
    from seesay.offline.pipeline import pipeline

    path = arguments.model_path or options.DEMO_MODEL
    with pipeline(
        path,
        engine_options.make_engine_config(arguments),
        engine_options.make_chat_template_config(arguments),
        arguments.log_level,
        arguments.max_log_len,
        vision_config=engine_options.make_vision_config(arguments),
        media_limits=limits,
    ) as pipe:
        kind = str(pipe.engine.checkpoint.config.get("model_type") or "")
        task = _choose_task(arguments, find_tasks(kind, path, pipe.engine.family.name))
        gen_config = replace(options.make_generation_config(arguments), **task.answer_options)
        yield LocalModel(pipe, gen_config), path, task


def _choose_task(arguments: argparse.Namespace, tasks: Mapping[str, Task]) -> Task:
    from dataclasses import replace

    if arguments.task is not None and arguments.task not in tasks:
        raise ConfigError(f"--task must be one of {', '.join(tasks)} for this model, got {arguments.task!r}")
    task = tasks[arguments.task or next(iter(tasks))]
    return task if arguments.prompt is None else replace(task, prompt=arguments.prompt)


COMMAND = Command(
    name="ocr",
    summary="read documents with a model, and write Markdown or JSON",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] INPUT ... -o OUTPUT",
    examples=_EXAMPLES,
)
