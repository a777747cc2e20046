"""Starts a server in a child process, `python -m seesay.serving.child`, which reports once it listens or has failed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from seesay.errors import CheckpointError, ConfigError, SeesayError
from seesay.system.log import stderr_descriptor

READY = "ready"
"""The child's report once it listens; otherwise it reports the name of an error."""
MAX_REPORT_BYTES = 1 << 16
_ERRORS: dict[str, type[SeesayError]] = {"ConfigError": ConfigError, "CheckpointError": CheckpointError}


def start_server(
    orders: Mapping[str, object], sockets: Sequence[socket.socket], environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the process. Returns it, and the descriptor of its one report, which the caller closes.

    The child listens on `sockets`, which the caller closes, with the configuration `orders`, and has `environment`
    beside that of this process.
    """
    reports, report = os.pipe()
    try:
        # The configuration goes through a pipe, so that no list of processes shows the keys. When this process
        # ends, the pipe closes and the child ends too. The child has its own session, so that Ctrl-C in the
        # terminal does not reach it.
        process = subprocess.Popen(
            [sys.executable, "-m", "seesay.serving.child", str(report)],
            stdin=subprocess.PIPE,
            stdout=stderr_descriptor(),
            pass_fds=(report, *(sock.fileno() for sock in sockets)),
            start_new_session=True,
            env={**os.environ, **(environment or {}), "PYTHONPATH": _python_path()},
        )
    except BaseException:
        os.close(reports)
        raise
    finally:
        os.close(report)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        numbered = {**orders, "sockets": [sock.fileno() for sock in sockets]}
        process.stdin.write(json.dumps(numbered).encode() + b"\n")
        process.stdin.flush()
    return process, reports


def check_report(report: bytes, process: subprocess.Popen[bytes], failure: type[SeesayError], wait_s: float) -> None:
    """Return if the child reported that it listens. Raises what it reports, and `failure` for other errors and where it
    ended without a report."""
    kind, message = json.loads(report) if report else ("", "")
    if kind != READY:
        status = process.wait(wait_s)
        raise _ERRORS.get(kind, failure)(message or f"the server ended with status {status} before it was ready")


def _python_path() -> str:
    """Return a PYTHONPATH with which the child imports this same copy of the package."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
