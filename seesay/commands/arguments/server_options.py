"""Options of commands that listen: the address, https, and limits."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from seesay.commands.arguments import options
from seesay.errors import ConfigError


def add_address(group: argparse._ArgumentGroup, port: int) -> None:
    group.add_argument(
        "--server-name",
        default="0.0.0.0",
        metavar="HOST",
        help="address to listen on (default: 0.0.0.0, all addresses)",
    )
    group.add_argument("--server-port", type=options.port, default=port, metavar="PORT", help=f"default: {port}")


def add_ssl(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ssl",
        action="store_true",
        help="serve https with the files in the environment variables SSL_CERTFILE and SSL_KEYFILE",
    )


def add_tracing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send OpenTelemetry spans of requests to this collector, such as http://localhost:4318/v1/traces "
        "(default: none; which requests, by the environment variables of OpenTelemetry)",
    )


def read_ssl_files() -> tuple[str, str]:
    """Return the files of `--ssl`. Raises ConfigError."""
    files = []
    for name in ("SSL_CERTFILE", "SSL_KEYFILE"):
        value = os.environ.get(name)
        if not value or not Path(value).is_file():
            raise ConfigError(f"--ssl: the environment variable {name} must name a PEM file, got {value!r}")
        files.append(value)
    return files[0], files[1]


def add_limits(group: argparse._ArgumentGroup, *, max_concurrent_requests: int) -> None:
    """Add the limits on requests, bodies and the drain. `max_concurrent_requests` is a default."""
    group.add_argument(
        "--max-concurrent-requests",
        type=options.whole(1),
        default=max_concurrent_requests,
        metavar="N",
        help=f"requests answered at the same time (default: {max_concurrent_requests})",
    )
    group.add_argument(
        "--max-queue",
        type=options.whole(0),
        default=256,
        metavar="N",
        help="further requests that may wait; above that, requests get 429 (default: 256)",
    )
    group.add_argument(
        "--drain-timeout",
        type=options.number,
        default=30.0,
        metavar="S",
        help="time for running answers to finish after SIGTERM, in seconds (default: 30)",
    )
    group.add_argument(
        "--max-body-bytes",
        type=options.whole(1),
        default=64 << 20,
        metavar="N",
        help="largest request body (default: 64 MiB)",
    )
    group.add_argument(
        "--max-total-body-bytes",
        type=options.whole(1),
        default=1 << 30,
        metavar="N",
        help="largest sum of the bodies of all running and waiting requests (default: 1 GiB)",
    )
