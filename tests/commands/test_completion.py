"""Completion scripts, and what bash makes of its one."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from seesay import cli


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def complete(file: Path, *words: str) -> list[str]:
    code = f'source {file}; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _seesay; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", code, "bash", *words], capture_output=True, text=True, check=True, timeout=60, cwd=file.parent
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    file = tmp_path / "seesay.bash"
    file.write_text(script("bash", capsys))
    return file


def test_bash(bash: Path) -> None:
    subprocess.run(["bash", "-n", str(bash)], check=True, timeout=60)
    assert complete(bash, "seesay", "") == [command.name for command in cli.COMMANDS]
    assert complete(bash, "seesay", "se") == ["serve"]
    assert complete(bash, "seesay", "serve", "api") == ["api_server", "api_client"]
    assert complete(bash, "seesay", "serve", "api_server", "--dtype", "b") == ["bfloat16"]
    assert complete(bash, "seesay", "serve", "api_server", "model", "--server-p") == ["--server-port"]
    assert complete(bash, "seesay", "chat", "--device", "cpu", "--imag") == ["--image"]
    assert complete(bash, "seesay", "completion", "") == ["bash", "zsh", "fish"]
    assert complete(bash, "seesay", "chat", "seesay.b") == ["seesay.bash"]
    (bash.parent / "my model").mkdir()
    assert complete(bash, "seesay", "chat", "my") == ["my model"], "bash quotes the space of one name"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for word in ("chat", "serve", "api_server", "gradio", "server-port", "bfloat16"):
        assert word in text
    if shell == "zsh":
        shlex.split(text, comments=True)  # raises for a quote that is not closed
    else:
        assert text.replace("\\'", "").count("'") % 2 == 0
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(text)
        subprocess.run([shell, "-n", str(file)], check=True, timeout=60)
