"""A user's script is typed as it runs: checked by mypy and by pyright, both strict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seesay

SCRIPT = Path(__file__).parent / "typing" / "user_script.py"
ROOT = Path(seesay.__file__).parents[1]
WRONG = {number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if line.endswith("# wrong")}
# Skipped is what the script's types do not need: reading it takes mypy a minute.
_MYPY_INI = """\
[mypy]
strict = True
[mypy-seesay.*]
follow_imports = silent
[mypy-torch.*,transformers.*,tokenizers.*,triton.*,fastapi.*,starlette.*,pydantic.*,gradio.*,uvicorn.*,huggingface_hub.*]
follow_imports = skip
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script in a folder of its own, away from the settings of this project."""
    return Path(shutil.copy(SCRIPT, tmp_path / "script.py"))


def run(script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=800, cwd=script.parent, env=environment
    )


@pytest.mark.slow  # pyright says the same
def test_mypy(script: Path) -> None:
    (script.parent / "mypy.ini").write_text(_MYPY_INI)
    done = run(script, "mypy", "--output", "json", script.name, MYPYPATH=str(ROOT))
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = {(problem["file"], problem["line"]) for problem in found if problem["severity"] == "error"}
    assert errors == {(script.name, line) for line in WRONG}, done.stdout + done.stderr


def test_pyright(script: Path) -> None:
    pytest.importorskip("pyright")
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": [script.name]}
    (script.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    if run(script, "pyright", "--version").returncode:
        pytest.skip("pyright cannot be started: its first run downloads it")
    done = run(script, "pyright", "--outputjson", "--pythonpath", sys.executable)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {(Path(problem["file"]).name, problem["range"]["start"]["line"] + 1) for problem in found}
    assert errors == {(script.name, line) for line in WRONG}, done.stdout
