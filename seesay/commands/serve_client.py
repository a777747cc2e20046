"""`seesay serve api_client`: the same chat as `seesay chat`, answered by a server."""

from __future__ import annotations

import argparse

from seesay.commands import chat
from seesay.commands.command import Command
from seesay.errors import ConfigError

_EXAMPLES = """\
  seesay serve api_client                                    the server on this machine, port 23333
  seesay serve api_client http://gpu7:23333 --model qwen2.5-vl
  seesay serve api_client --image cat.png --prompt 'What is this?'
the environment variable SEESAY_API_KEY holds the server's key, if it wants one.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        nargs="?",
        default="http://127.0.0.1:23333",
        metavar="URL",
        help="the server (default: http://127.0.0.1:23333)",
    )
    parser.add_argument("--model", metavar="NAME", help="which of its models (default: the first)")
    parser.add_argument(
        "--api-key", metavar="KEY", help="the server's key; the variable SEESAY_API_KEY keeps it off the process list"
    )
    parser.add_argument("--insecure", action="store_true", help="accept any https certificate")
    chat.add_chat_options(parser)


def _run(arguments: argparse.Namespace) -> int:
    from seesay.commands import options
    from seesay.commands.answering import RemoteModel
    from seesay.serving.client import APIClient

    terminal = chat.open_terminal()
    with APIClient(arguments.url, arguments.api_key, verify=not arguments.insecure) as client:
        models = client.available_models
        if arguments.model is not None and arguments.model not in models:
            raise ConfigError(f"--model {arguments.model!r}: the server has {', '.join(models) or 'no model'}")
        model = arguments.model or models[0]
        terminal.aside(f"talking to {model} at {client.api_server_url}; /help shows what you can do")
        return chat.run_chat(arguments, RemoteModel(client, model, options.make_request_fields(arguments)), terminal)


COMMAND = Command(
    name="api_client",
    summary="talk to a running server",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [URL]",
    examples=_EXAMPLES,
)
