"""The batch script for Slurm, run with stand-ins for Slurm's commands and for seesay: what ends when, and with which
status."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import find_port
from shell_lines import read_text
from waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "seesay.sbatch"
SEESAY = """
import os, pathlib, signal, socket, sys, time
folder, port = pathlib.Path(__file__).parents[1], {port}
kind = sys.argv[2]

def note(text):
    with (folder / "log").open("a") as log:
        log.write(f"{{kind}} {{text}}\\n")

def is_listening():
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0

def end(*_):
    if kind == "api_server":  # whose last answers still need the distributor
        deadline = time.monotonic() + 1.5
        while is_listening() and time.monotonic() < deadline:
            time.sleep(0.05)
        note("drained" if is_listening() else "lost the distributor")
    note("ended")
    os._exit(0)

signal.signal(signal.SIGTERM, end)
if (folder / f"no_{{kind}}").exists():
    sys.exit(5)
if kind == "proxy":
    listener = socket.create_server(("127.0.0.1", port))
note(f"began {{os.getpid()}}")
while True:
    time.sleep(60)
"""
COMMANDS = {
    "srun": 'echo $$ > "{folder}/step"; exec "$@"',
    "scancel": 'test "$*" = "--signal=TERM 7"; kill -TERM "$(cat "{folder}/step")"',
    "hostname": "echo node1",
}


class Job:
    """The script in a folder with these commands."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, find_port()
        (folder / "bin").mkdir()
        self._write("seesay", f"#!{sys.executable}\n{SEESAY.format(port=self.port)}")
        for name, command in COMMANDS.items():
            self._write(name, f"#!/bin/sh\nset -e\n{command.format(folder=folder)}\n")
        self.script = folder / "seesay.sbatch"
        self.script.write_text(read_text(SCRIPT).replace("8000", str(self.port)))
        self.process: subprocess.Popen[str] | None = None

    def _write(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "VENV": str(self.folder), "SLURM_JOB_ID": "7"}
        self.process = subprocess.Popen(
            [shutil.which("bash") or "bash", str(self.script), "a/model"], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        return self.process

    def log(self) -> list[str]:
        """What the stand-ins of seesay did."""
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def pid_of(self, kind: str) -> int:
        """The process id of a stand-in, once it has begun."""
        begun = f"{kind} began "
        wait_until(lambda: any(line.startswith(begun) for line in self.log()), f"{kind} begins")
        return int(next(line for line in self.log() if line.startswith(begun)).split()[2])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    if job.process is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.communicate(timeout=60)


def test_a_signal_ends_the_servers_first_and_the_job_well(job: Job) -> None:
    process = job.start()
    job.pid_of("api_server")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.splitlines() == [f"seesay: http://node1:{job.port}"]
    assert job.log()[2:] == ["api_server drained", "api_server ended", "proxy ended"]


def test_a_distributor_that_does_not_start_ends_the_job(job: Job) -> None:
    (job.folder / "no_proxy").touch()
    process = job.start()
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "the distributor did not start" in errors
    assert not output and not job.log(), "nobody is given an address, and no server begins"


def test_a_distributor_that_ends_takes_the_job_along(job: Job) -> None:
    process = job.start()
    job.pid_of("api_server")
    os.kill(job.pid_of("proxy"), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "the distributor has ended" in errors
    assert job.log()[-1] == "api_server ended"


def test_the_status_of_servers_is_that_of_the_job(job: Job) -> None:
    (job.folder / "no_api_server").touch()
    process = job.start()
    process.communicate(timeout=60)
    assert process.returncode == 5 and job.log()[-1] == "proxy ended"
