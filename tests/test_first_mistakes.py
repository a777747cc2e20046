"""The command around a newcomer: closed and full streams, removed folders, odd locales, typing errors."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seesay import cli

ROOT = Path(cli.__file__).parents[1]
FULL = Path("/dev/full")


def run_in_shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, in which $SEESAY is the command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEESAY": f"{sys.executable} -m seesay", **variables}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_little_is_imported_before_ctrl_c_is_caught() -> None:
    """Every module that is imported before `main` is a while in which Ctrl-C shows a traceback."""
    code = (
        "import os, sys; before = set(sys.modules); import seesay.__main__; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    ours = {"seesay", "seesay.__main__", "seesay.moved", "seesay.version"}
    assert set(done.stdout.split()) - ours <= {
        "__future__", "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "warnings",
    }  # fmt: skip


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(streams: str, tmp_path: Path) -> None:
    done = run_in_shell(f"$SEESAY list {streams}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is not here")
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    done = run_in_shell("$SEESAY list > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (1, "seesay: error: cannot write the output: No space left on device\n")


def test_a_folder_that_has_been_removed(tmp_path: Path) -> None:
    done = run_in_shell("mkdir gone && cd gone && rmdir ../gone && $SEESAY chat --prompt hi", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "seesay: error: the current folder does not exist any more: change to another one\n"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("''", "--prompt must be a question, it is empty"),
        ("' ' ", "--prompt must be a question, it is empty"),
        ("- < /dev/null", "--prompt must be a question, standard input is empty"),
        ("$'caf\\xe9'", "--prompt must be UTF-8 text, byte 3 is not"),
    ],
)
def test_prompts_that_are_none(prompt: str, message: str, tmp_path: Path) -> None:
    done = run_in_shell(f"$SEESAY chat --prompt {prompt}", tmp_path)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"seesay: error: {message}"


def test_a_prompt_in_a_locale_without_its_characters(tmp_path: Path) -> None:
    odd = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_in_shell("$SEESAY chat --prompt 'Calculate 3 + 4, s\u2019il te plaît.'", tmp_path, **odd)
    assert done.returncode == 0 and "surrogate" not in done.stderr and done.stdout.strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("demo --seed x", "argument --seed: must be an integer, got 'x'"),
        ("lite auto_awq m --w-bits four", "argument --w-bits: must be an integer, got 'four'"),
        ("--config none.yaml chat", "--config none.yaml: No such file or directory"),
    ],
)
def test_typing_errors(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words.split())
    assert caught.value.code == 2 and capsys.readouterr().err.endswith(f": error: {message}\n")


class Files(http.server.BaseHTTPRequestHandler):
    """A server that has nothing."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_an_address_that_is_another_server(tmp_path: Path) -> None:
    """Not a refusal: nobody who serves files knows what was asked."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = run_in_shell(f"$SEESAY serve api_client http://127.0.0.1:{server.server_port}", tmp_path)
        server.shutdown()
        thread.join()
    assert done.returncode == 1
    assert done.stderr.endswith("/v1/models is not there (404): is it the address of a seesay server?\n"), done.stderr


def test_a_work_folder_that_cannot_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lite", "fp8", "seesay-demo", "--work-dir", "/proc/none", "--device", "cpu"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "seesay: error: --work-dir='/proc/none' cannot be used: No such file or directory"
