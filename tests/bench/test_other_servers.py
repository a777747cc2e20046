"""Replaying by servers that are not there, or not seesay's, and what a terminal shows of a recording of others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from recorded_lines import FIELDS, LINE

from seesay import cli
from seesay.bench.recorded import MediaFolder, Recorded
from seesay.bench.replay import ServerTarget, replay
from seesay.config import GenerationConfig
from seesay.values.records import RequestRecord


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:23333", "--base-url must begin with http:// or https://, got 'localhost:23333'"),
        ("http://[", "lines 1, 2: not repeated: "),
        ("http://127.0.0.1:1", "lines 1, 2: not repeated: All connection attempts failed\n"),
    ],
)
def test_a_server_that_is_not_there(url: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(2 * (json.dumps(LINE) + "\n"))
    assert cli.main(["replay", str(path), "--base-url", url, "--speed", "0"]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("event", ["[]", "{}", '{"output_ids": [1]}', "nothing", '{"error": "text"}'])
def test_another_kind_of_server_is_named(event: str) -> None:
    async def ask() -> list[Any]:
        transport = httpx.MockTransport(lambda request: httpx.Response(200, text=f"data: {event}\n\n"))
        async with httpx.AsyncClient(transport=transport) as client:
            recorded = Recorded(line=1, record=RequestRecord(**FIELDS), options=GenerationConfig())
            return await replay([recorded], ServerTarget(client, "http://other"), MediaFolder(None), speed=None)

    [repeated] = asyncio.run(ask())
    assert repeated.answer is None and "is not one of seesay's route /generate" in repeated.problem


def test_no_character_of_a_recording_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps({**LINE, "unrepeatable": "\x1b[2J\nall equal" + "x" * 5000}) + "\n")
    assert cli.main(["replay", str(path), "--base-url", "http://127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(r"line 1: not repeated: \x1b[2J\nall equal") and error.count("\n") == 1
    assert len(error) < 1100
