"""The example of a Hugging Face Space runs as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import httpx

FOLDER = Path(__file__).parents[2] / "examples" / "huggingface_space"


def test_space_runs(run_space: Callable[[], contextlib.AbstractContextManager[str]]) -> None:
    with run_space() as url:
        response = httpx.get(url, timeout=30, trust_env=False)
        assert response.status_code == 200 and "seesay \u00b7 seesay-demo" in response.text


def test_header_names_what_is_there() -> None:
    header = (FOLDER / "README.md").read_text().split("---")[1]
    fields = dict(line.split(": ", 1) for line in header.strip().splitlines())
    assert fields["sdk"] == "gradio" and (FOLDER / fields["app_file"]).is_file()
    assert (FOLDER / "requirements.txt").read_text().startswith("seesay[serve,ui")
