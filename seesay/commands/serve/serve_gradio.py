"""`seesay serve gradio`: the WebUI, for a running server or for a model, for which it starts a server."""

from __future__ import annotations

import argparse

from seesay.commands.arguments import engine_options, key_options, options
from seesay.commands.command import Command

_EXAMPLES = """\
  seesay serve gradio                                        the built-in model at http://localhost:6006
  seesay serve gradio Qwen/Qwen2.5-VL-3B-Instruct --server-name 0.0.0.0
  seesay serve gradio http://localhost:23333                 a running server
  SEESAY_API_KEYS=key1,key2 seesay serve gradio              visitors sign in with one of the keys
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
        help="key of the server at a URL, for all visitors; set SEESAY_API_KEY instead to keep it out of the process "
        "list. Without one, the page asks visitors for a key if the server has keys",
    )
    key_options.add_api_keys(group, "keys of a model's visitors: the page asks for one")
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.ui.app import run_webui

    backend_config = engine_options.make_engine_config(arguments)
    is_running = arguments.model_path.startswith(("http://", "https://"))
    run_webui(
        arguments.model_path,
        server_name=arguments.server_name,
        server_port=arguments.server_port,
        api_key=arguments.api_key,
        # A running server has keys of its own, and does not care for those of the environment.
        api_keys=arguments.api_keys if is_running else key_options.read_api_keys(arguments.api_keys),
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
