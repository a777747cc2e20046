"""The README's examples run, one after the other, as a reader would type them."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import seesay.demo

ROOT = Path(__file__).parent.parent
CHECKPOINT = Path(seesay.demo.__file__).parent / "checkpoint"


def blocks():
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.M)


def test_there_are_examples_and_no_other_languages():
    assert len(blocks()) >= 10
    for language in re.findall(r"^```(\w+)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M):
        assert language in ("python", "bash")


@pytest.mark.skipif(not (CHECKPOINT / "config.json").is_file(), reason="the built-in checkpoint is not here")
def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "readme"}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for number, block in enumerate(blocks(), 1):
            exec(compile(block, f"README.md, example {number}", "exec"), namespace)
    assert "error | cannot read the file 'missing.png'" in shown.getvalue()
