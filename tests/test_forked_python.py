"""`tests/support/forked_python.py`: a fork is what a started process is, and what must be started is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from forked_python import FORKS, ForkedPopen, forked, start_template, started

from seesay.engine.process.launch import start_module

pytestmark = pytest.mark.skipif(not FORKS, reason="forks where there is Linux and no GPU")
SHOW = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "name": __name__, "folder": os.getcwd(),
    "main": sorted(set(vars(sys.modules["__main__"])) - {"__file__", "__cached__"}), "value": os.environ.get("SHOWN"),
    "files": [int(file) for file in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{file}")],
    "input": sys.stdin.read(),
    "group": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getpid(), "parent": os.getppid(),
    "streams": [[s.encoding, s.errors, s.line_buffering, s.write_through] for s in (sys.stdin, sys.stdout, sys.stderr)],
    "cmdline": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"), "is_forked": "torch" in sys.modules,
}))
"""


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with ForkedPopen([sys.executable, *words], **options) as process:
        out, error = process.communicate("words", timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, out, error)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"start_new_session": True}, {"process_group": 0}, {"cwd": "/"},
        {"env": {**os.environ, "SHOWN": "é", "PYTHONUNBUFFERED": "1"}},
    ],
    ids=["plain", "session", "group", "folder", "environment"],
)  # fmt: skip
@pytest.mark.parametrize("way", ["code", "script", "module"])
def test_a_fork_shows_what_a_process_shows(way: str, options: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "shown_here.py"
    script.write_text(SHOW)
    words = {"code": ["-c", SHOW], "script": [str(script)], "module": ["-P", "-m", "shown_here"]}[way]
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), str(tmp_path), os.environ.get("PYTHONPATH")]))
    options = {**options, "env": {**options.get("env", os.environ), "PYTHONPATH": paths}}
    reading, writing = os.pipe()
    try:
        done = [run(*words, "one", "-x", pass_fds=(reading,), **options)]
        with started():
            done.append(run(*words, "one", "-x", pass_fds=(reading,), **options))
    finally:
        os.close(reading)
        os.close(writing)
    assert [each.returncode for each in done] == [0, 0], done
    forked, real = (json.loads(each.stdout) for each in done)
    assert (forked.pop("is_forked"), real.pop("is_forked")) == (True, False)
    *files, template = sorted(forked.pop("files"))
    assert files == sorted(real.pop("files")) == [0, 1, 2, reading] and template >= 512
    assert forked == real
    assert forked["parent"] == os.getpid()


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)", "raise SystemExit('so')", "raise SystemExit", "1/0", "raise KeyboardInterrupt",
        "import os; os.kill(os.getpid(), 9)", "import os; os._exit(5)", "import signal; signal.raise_signal(15)",
        "import atexit; atexit.register(print, 'last'); print('first')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start(); print(1)",
        "import sys; sys.stdout.write('a'); sys.stderr.write('b')",
        "import multiprocessing as m\nif __name__ == '__main__': print(m.get_context('fork').Pool(1).map(abs, [-1]))",
    ],
)  # fmt: skip
def test_a_fork_ends_as_a_process_does(code: str) -> None:
    forked = run("-c", code)
    with started():
        real = run("-c", code)
    assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)


@pytest.mark.parametrize(
    "options",
    [
        {"env": {**os.environ, "OMP_NUM_THREADS": "3"}}, {"env": {**os.environ, "PYTHONWARNINGS": "error"}},
        {"env": {**os.environ, "CUDA_VISIBLE_DEVICES": "7"}}, {"env": {**os.environ, "TRITON_INTERPRET": "7"}},
        {"preexec_fn": os.getpid}, {"umask": 0o22},
    ],
    ids=["threads", "warnings", "devices", "interpreter", "function", "umask"],
)  # fmt: skip
def test_what_is_read_at_the_start_is_read(options: dict[str, Any]) -> None:
    assert run("-c", "import sys; print('torch' in sys.modules)", **options).stdout == "False\n"


def test_another_copy_of_the_package_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "seesay"
    package.mkdir()
    (package / "__init__.py").write_text("print('a copy')")
    found = run("-c", "import seesay", cwd=tmp_path)
    assert found.stdout == "a copy\n"


@pytest.mark.parametrize("name", ["sitecustomize.py", "numpy.py", "plugin-1.0.dist-info"])
def test_a_path_that_changes_what_was_imported_makes_a_start(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(tmp_path)])
    found = run("-c", "import sys; print('torch' in sys.modules)", env={**os.environ, "PYTHONPATH": paths})
    assert found.stdout == "False\n"


NESTED = """
import subprocess, sys
from seesay.engine.process.launch import start_module
child = start_module("is_forked")
child.stdin.close()
sys.exit(child.wait())
"""


def test_processes_of_ours_are_forks_and_those_of_forks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "is_forked.py").write_text("import os, sys; os._exit(40 + ('torch' in sys.modules))")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "transformers_modules").mkdir()
    monkeypatch.setitem(sys.modules, "transformers_modules", ModuleType("transformers_modules"))  # another test has it
    child = start_module("is_forked")
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(60) == 41
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(tmp_path)])
    assert run("-c", NESTED, env={**os.environ, "PYTHONPATH": paths}).returncode == 41


def test_other_programs_are_forked_where_that_is_asked_for() -> None:
    command = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    assert subprocess.check_output(command, text=True) == "False\n"
    with forked():
        assert subprocess.check_output(command, text=True) == "True\n"
    with forked(), started():
        assert subprocess.check_output(command, text=True) == "False\n"


def test_commands_are_forks() -> None:
    with subprocess.Popen([sys.executable, "-m", "seesay", "chat", "--device", "cpu"], stdin=-1, stderr=-1) as process:
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        process.kill()
    assert "libtorch" in mapped


def test_a_fork_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Neither its own template nor a file that its readers wait for."""
    start_template()
    process = ForkedPopen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], stdout=-1)
    assert process.stdout is not None and process.stdout.readline() == b"1\n"
    [template] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert os.getpgid(int(template)) != os.getpgid(process.pid)
    process.send_signal(signal.SIGKILL)
    assert process.stdout.read() == b"" and process.wait(60) == -9
    process.stdout.close()
    while Path(f"/proc/{template}/fd").exists() and any(Path(f"/proc/{template}/fd").iterdir()):
        pass
