"""tools/install.py: what `make demo` says while pip works."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "tools" / "install.py"
LINES = """\
Collecting torch>=2.11 (from seesay==0.1.0)
  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (31 kB)
  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (539.1 MB)
  Using cached numpy-2.3.1-cp311-cp311-manylinux_2_28_x86_64.whl (16.9 MB)
  Downloading https://index/whl/nvidia_cublas-13.4-py3-none-manylinux_2_27_x86_64.whl (1.4 GB)
Installing collected packages: mpmath, torch, seesay
Successfully installed mpmath-1.3.0 torch-2.15.0
"""


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("install_tool", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_tells_packages_and_sizes(tool: Any) -> None:
    progress = tool.Progress()
    told = []
    for line in LINES.splitlines(keepends=True):
        is_step = progress.read(line)
        told.append((is_step, progress.text))
    assert told[0] == (False, "asking which packages are needed: torch")
    assert told[1][1] == told[0][1], "metadata is no download"
    assert told[2] == (True, "downloading torch 2.15.0 (539 MB, 0 MB before it)")
    assert told[3] == (False, "downloading numpy 2.3.1 (17 MB, 539 MB before it)")
    assert told[4] == (True, "downloading nvidia_cublas 13.4 (1.4 GB, 556 MB before it)")
    assert told[5] == (True, "unpacking 3 packages (2.0 GB downloaded)")


def run(tool: Any, tmp_path: Path, code: str) -> tuple[int, list[str], str]:
    shown: list[str] = []
    log = tmp_path / "install.log"
    status = tool.install([sys.executable, "-c", code], log, lambda progress, *_: shown.append(progress.text))
    return status, shown, log.read_text()


def test_pips_words_go_to_the_log_and_its_status_comes_back(tool: Any, tmp_path: Path) -> None:
    status, shown, log = run(tool, tmp_path, f"print({LINES!r}, end='', flush=True)")
    assert status == 0 and log == LINES
    assert shown[-1] == "unpacking 3 packages (2.0 GB downloaded)"
    assert run(tool, tmp_path, "raise SystemExit('no such package')")[::2] == (1, "no such package\n")


def test_something_is_shown_while_pip_is_silent(tool: Any, tmp_path: Path) -> None:
    _, shown, _ = run(tool, tmp_path, "import time; time.sleep(2.5)")
    assert len(shown) >= 2


def test_a_terminal_has_one_line_and_a_file_one_per_step(tool: Any) -> None:
    progress = tool.Progress()
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        screen = tool.Screen(stream)
        for elapsed_s, is_step in ((1.0, False), (2.0, True), (3.0, False), (18.0, False)):
            screen.show(progress, elapsed_s, is_step)
        screen.end("  20 s  installed")
    assert terminal.getvalue().count("\n") == 1 and terminal.getvalue().count("\r") == 5
    assert [line[:8] for line in file.getvalue().splitlines()] == ["     2 s", "    18 s", "  20 s  "]


def test_a_failure_shows_the_end_of_the_log(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert tool.main([str(tmp_path / "nothing-here")]) != 0
    shown = capsys.readouterr().out
    assert "pip failed with status" in shown and "nothing-here" in shown
    assert tool.main([]) == 2


def test_the_makefile_says_size_and_time_before_it_installs() -> None:
    makefile = (FILE.parents[1] / "Makefile").read_text()
    assert "tools/install.py" in makefile
    said = makefile[makefile.index("Installing seesay into") : makefile.index("Installing the test extras")]
    readme = (FILE.parents[1] / "README.md").read_text()
    for fact in ("3.1 GB", "5.6 GB", "3 minutes", "50 MB/s"):
        assert fact in " ".join(said.split()).replace('" @echo "', " ") or fact in said, fact
        assert fact in " ".join(readme.split()), f"README says another figure than {fact}"
