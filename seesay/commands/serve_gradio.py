"""`seesay serve gradio`: the WebUI, for a running server or for a model, for which it starts a server."""

from __future__ import annotations

import argparse

from seesay.commands import engine_options, options
from seesay.commands.command import Command

_EXAMPLES = """\
  seesay serve gradio                                        the built-in model at http://localhost:6006
  seesay serve gradio Qwen/Qwen2.5-VL-3B-Instruct --server-name 0.0.0.0
  seesay serve gradio http://localhost:23333                 a running server
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(
        parser,
        metavar="MODEL_OR_URL",
        help="folder, hub id, or the URL of a server (default: seesay-demo, the built-in checkpoint)",
    )
    group = parser.add_argument_group("WebUI")
    group.add_argument(
        "--server-name",
        default="127.0.0.1",
        metavar="HOST",
        help="address to listen on (default: 127.0.0.1; 0.0.0.0 allows other machines)",
    )
    group.add_argument("--server-port", type=options.port, default=6006, metavar="PORT", help="default: 6006")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="key of the server at a URL; set SEESAY_API_KEY instead to keep it out of the process list",
    )
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.ui.app import run_webui

    backend_config = engine_options.make_engine_config(arguments)
    run_webui(
        arguments.model_path,
        server_name=arguments.server_name,
        server_port=arguments.server_port,
        api_key=arguments.api_key,
        backend_config=backend_config,
        vision_config=engine_options.make_vision_config(arguments),
        chat_template_config=engine_options.make_chat_template_config(arguments),
        log_level=arguments.log_level,
    )
    return 0


COMMAND = Command(
    name="gradio",
    summary="chat with a model in a browser",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [MODEL_OR_URL]",
    examples=_EXAMPLES,
)
