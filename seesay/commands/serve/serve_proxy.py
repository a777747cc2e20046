"""`seesay serve proxy`: one address for several servers."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seesay.commands.arguments import key_options, options, server_options
from seesay.commands.command import Command
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.serving.settings import ServerSettings

_STRATEGIES = ("cache_affinity", "random", "min_expected_latency", "min_observed_latency")
_EXAMPLES = """\
  seesay serve proxy --nodes http://10.0.0.1:23333 http://10.0.0.2:23333
  SEESAY_ADMIN_KEYS=secret seesay serve proxy                                       servers register themselves:
  SEESAY_PROXY_KEY=secret seesay serve api_server --proxy-url http://10.0.0.9:8000
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("distributor")
    server_options.add_address(group, 8000)
    group.add_argument("--nodes", nargs="+", default=[], metavar="URL", help="servers, such as http://10.0.0.1:23333")
    group.add_argument(
        "--strategy",
        choices=_STRATEGIES,
        default=_STRATEGIES[0],
        help="where a request goes: to where its pictures or the beginning of its prompt are cached, at random, or by "
        "latency (default: cache_affinity)",
    )
    key_options.add_api_keys(group, "keys that requests need; they are passed on, so give them to the servers, too")
    key_options.add_admin_keys(group, "keys that change the nodes (default: none, this machine alone changes them)")
    server_options.add_ssl(group)
    server_options.add_limits(parser.add_argument_group("load"), max_concurrent_requests=4096)
    server_options.add_tracing(parser.add_argument_group("traces"))
    options.add_log_options(parser, default="WARNING")


def make_settings(arguments: argparse.Namespace) -> ServerSettings:
    """Return the distributor's settings. Raises ConfigError that names the option."""
    from seesay.serving.settings import ServerSettings

    certfile, keyfile = server_options.read_ssl_files() if arguments.ssl else (None, None)
    return ServerSettings(
        host=arguments.server_name,
        port=arguments.server_port,
        api_keys=key_options.read_api_keys(arguments.api_keys),
        admin_keys=key_options.read_admin_keys(arguments.admin_keys),
        max_concurrent_requests=arguments.max_concurrent_requests,
        max_queue=arguments.max_queue,
        max_body_bytes=arguments.max_body_bytes,
        max_total_body_bytes=arguments.max_total_body_bytes,
        drain_timeout_s=arguments.drain_timeout,
        otlp_traces_endpoint=arguments.otlp_traces_endpoint,
        log_level=arguments.log_level,
        max_log_len=200 if arguments.max_log_len is None else arguments.max_log_len,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )


def _run(arguments: argparse.Namespace) -> int:
    from seesay.serving import require_packages

    require_packages()
    from seesay.serving.http.listener import open_sockets, port_of, shown_host, warn_of_strangers
    from seesay.serving.proxy.app import serve_nodes
    from seesay.serving.proxy.nodes import Nodes
    from seesay.serving.routing.node import Node
    from seesay.system.log import set_up_logging

    settings = make_settings(arguments)
    urls = _read_nodes(arguments.nodes)
    set_up_logging(settings.log_level, settings.max_log_len)

    with open_sockets(settings.host, settings.port) as sockets:

        def say_ready() -> None:
            scheme = "https" if settings.ssl_certfile else "http"
            address = f"{scheme}://{shown_host(settings.host)}:{port_of(sockets)}"
            print(f"seesay: distributing {address} by {arguments.strategy}", file=sys.stderr, flush=True)
            if not settings.api_keys:
                warn_of_strangers(settings.host, "the API", key_options.ADVICE)

        async def serve() -> None:
            nodes = Nodes(arguments.strategy, key=next(iter(settings.api_keys), ""))
            for url in urls:
                nodes.add(Node(url))
            await serve_nodes(settings, nodes, sockets=sockets, on_ready=say_ready)

        asyncio.run(serve())
    return 0


def _read_nodes(urls: Sequence[str]) -> list[str]:
    """Return the URLs of nodes as they are compared. Raises ConfigError for one that is none of a node."""
    from seesay.serving.errors import ApiError
    from seesay.serving.http.listener import read_url

    try:
        return [read_url(url) for url in urls]
    except ApiError as error:
        raise ConfigError(f"--nodes: {error.message}") from None


COMMAND = Command(
    name="proxy",
    summary="distribute requests among several servers",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS]",
    examples=_EXAMPLES,
)
