"""The examples for machines without containers, and the commands of the pages about them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from doc_examples import read_examples
from shell_lines import check_shell, find_seesay, parse_seesay, read_text

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGES = ("deploying", "several_servers", "tracing", "batch", "benchmarking", "accuracy")


def test_systemd_unit(tmp_path: Path) -> None:
    command = shutil.which("systemd-analyze")
    unit = read_text(DEPLOY / "systemd" / "seesay.service")
    started = re.search(r"^ExecStart=(\S+) (.*) \$SEESAY_OPTIONS$", unit, re.MULTILINE)
    example = re.search(r"SEESAY_OPTIONS=(.*?) and ", unit)
    assert started is not None and example is not None
    options = parse_seesay([*started[2].split(), *example[1].split()])
    seconds = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert seconds is not None and int(seconds[1]) > options.drain_timeout
    if command is None:
        pytest.skip("systemd-analyze is not here")
    path = tmp_path / "seesay.service"
    path.write_text(unit.replace(started[1], sys.executable))
    done = subprocess.run([command, "verify", str(path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0 and "seesay.service" not in done.stderr, done.stderr


def test_only_root_reads_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "seesay.env"
    page = read_text(ROOT / "docs" / "deploying.md")
    (command,) = [line for line in page.splitlines() if " /etc/seesay.env <<<" in line]
    subprocess.run(["bash", "-c", f"umask 022; {command.replace('/etc/seesay.env', str(path))}"], check=True)
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text().startswith("SEESAY_OPTIONS=Qwen/")


def test_slurm_script() -> None:
    script = read_text(DEPLOY / "slurm" / "seesay.sbatch")
    proxy, server = find_seesay(script)
    assert server[-2:] == ["--proxy-url", "$address"] and server[2] == "$@"
    assert parse_seesay(proxy).server_port == 8000
    example = re.search(r"seesay\.sbatch (.*)$", script, re.MULTILINE)
    assert example is not None
    options = parse_seesay(["serve", "api_server", *example[1].split(), "--proxy-url", "http://a:8000"])
    assert options.session_len == 16384 and options.proxy_url == "http://a:8000"
    check_shell(script)


def test_skypilot_task() -> None:
    task = yaml.safe_load(read_text(DEPLOY / "skypilot" / "seesay.yaml"))
    (words,) = find_seesay(task["run"])
    options = parse_seesay(words)
    assert options.server_port == task["resources"]["ports"] and options.model_path == "$MODEL"
    assert "MODEL" in task["envs"] and task["service"]["readiness_probe"]["path"] == "/ready"
    for script in (task["setup"], task["run"]):
        check_shell(script)


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_page(page: str) -> None:
    """Each block is clean to ShellCheck. `tests/test_docs.py` checks the options of `seesay` commands."""
    blocks = [
        block.code for block in read_examples(read_text(ROOT / "docs" / f"{page}.md")) if block.language == "bash"
    ]
    assert blocks
    for block in blocks:
        check_shell(block)


def test_files_of_page_are_there() -> None:
    page = read_text(ROOT / "docs" / "deploying.md")
    named = set(re.findall(r"deploy/[\w./-]*[\w]", page))
    assert len(named) > 8
    for name in named:
        assert (ROOT / name).exists(), name
