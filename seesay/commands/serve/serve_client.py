"""`seesay serve api_client`: the chat of `seesay chat`, answered by a server."""

from __future__ import annotations

import argparse

from seesay.commands.chat import chat
from seesay.commands.command import Command
from seesay.errors import ConfigError

_EXAMPLES = """\
  seesay serve api_client                                    the server on port 23333 of this machine
  seesay serve api_client http://gpu7:23333 --model qwen2.5-vl
  seesay serve api_client --image cat.png --prompt 'What is this?'
if the server requires a key, set the environment variable SEESAY_API_KEY.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:23333",
        metavar="URL",
        help="the server (default: http://127.0.0.1:23333)",
    )
    parser.add_argument("--model", metavar="NAME", help="the server's model to use (default: the first)")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="the server's key; set SEESAY_API_KEY instead to keep it out of the process list",
    )
    parser.add_argument("--insecure", action="store_true", help="accept any https certificate")
    chat.add_chat_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    from seesay.commands.arguments import options
    from seesay.commands.chat.answering import RemoteModel
    from seesay.serving.client import APIClient

    terminal = chat.open_terminal()
    with APIClient(arguments.url, arguments.api_key, verify=not arguments.insecure) as client:
        models = client.available_models
        if arguments.model is not None and arguments.model not in models:
            raise ConfigError(f"--model must be one of {', '.join(models) or '(no model)'}, got {arguments.model!r}")
        model = arguments.model or models[0]
        terminal.aside(f"chatting with {model} at {client.api_server_url}; /help lists the commands")
        return chat.run_chat(arguments, RemoteModel(client, model, options.make_request_fields(arguments)), terminal)


COMMAND = Command(
    name="api_client",
    summary="chat with a running server",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [URL]",
    examples=_EXAMPLES,
)
