"""What a server records is answered again, equally, by an engine and by the server itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import LiveServer, ask_about, make_data_url, make_settings, serve, wait_until
from PIL import Image
from recorded_lines import LINE

from seesay import cli
from seesay.bench.recorded import read_recording
from seesay.config import EngineConfig, GenerationConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.recording import append, check_path, media_folder, write_line
from seesay.errors import ConfigError
from seesay.offline.pipeline import Pipeline
from seesay.values.records import MediaRecord, RequestRecord

KEY = "sk-a-secret-key"
HEADERS = {"Authorization": f"Bearer {KEY}"}
ENGINE = ["--device", "cpu", "--session-len", "512", "--cache-block-seq-len", "16"]


@dataclass(frozen=True)
class Recording:
    """A recording of a server that still answers, and the checkpoint of its model."""

    path: Path
    checkpoint: Path
    server: LiveServer

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def post(server: LiveServer, path: str, **body: Any) -> dict[str, Any]:
    response = server.post(path, body, headers=HEADERS)
    assert response.status_code == 200, response.text
    return {} if body.get("stream") else response.json()


def cancel(server: LiveServer) -> None:
    """Leave a stream behind its first tokens."""
    body = {"messages": ask_about("go on"), "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, headers=HEADERS, timeout=60) as response:
        for number, _ in enumerate(response.iter_lines()):
            if number > 6:
                break


@pytest.fixture(scope="module")
def recording(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """Of requests of all kinds, from a server with a key."""
    path, checkpoint = tmp_path_factory.mktemp("recording") / "requests.jsonl", tiny_checkpoint("qwen2_5_vl")
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16, record=path, record_media=True)
    limits = MediaLimits(allow_local_paths=False)
    with (
        AsyncEngine(str(checkpoint), backend_config=config, media_limits=limits) as engine,
        serve(engine, make_settings(api_keys=(KEY,))) as server,
    ):
        chat, url = "/v1/chat/completions", make_data_url(seed=1)
        drawn = {"temperature": 1.0, "max_tokens": 12}
        post(server, chat, messages=ask_about("hello"), **drawn)
        post(server, chat, messages=ask_about("what is this", url), stream=True, cache_salt="a salt", **drawn)
        post(server, chat, messages=ask_about("and", url, "or", make_data_url(seed=2)), n=2, seed=5, **drawn)
        form = {"type": "regex", "regex": "[ab]{4,9}"}
        post(server, chat, messages=ask_about("a or b"), response_format=form, **drawn)
        post(server, "/v1/completions", prompt="once", logit_bias={"7": 4.0}, stop=["e"], ignore_eos=True, **drawn)
        post(server, "/generate", input_ids=[5, 6, 7], repetition_penalty=1.3, include_stop_str_in_output=True, **drawn)
        cancel(server)
        refused = server.post(chat, {"messages": ask_about("hi"), "max_tokens": 10**6}, headers=HEADERS)
        assert refused.status_code == 400
        wait_until(lambda: len(path.read_text().splitlines()) == 8)
        copy = path.with_name("copy.jsonl")  # what is repeated by the server is recorded, too
        shutil.copy2(path, copy)
        shutil.copytree(media_folder(path), media_folder(copy))
        yield Recording(copy, checkpoint, server)


def test_a_recording_holds_what_a_run_needs_and_no_secret(recording: Recording) -> None:
    text, lines = recording.path.read_text(), recording.lines
    assert stat.S_IMODE(recording.path.stat().st_mode) == 0o600
    assert not any(word in text for word in (KEY, "a salt", "data:", "base64", "hello"))
    assert [line["finish_reason"] for line in lines].count("abort") == 1
    assert all(line["tokens"] and line["options"] for line in lines)
    folder = media_folder(recording.path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    named = {item["sha256"] for line in lines for item in line.get("media", [])}
    assert len(named) == 2 and named == {path.name for path in folder.iterdir()}
    for path in folder.iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    salts = [line.get("salt", "") for line in lines]
    assert all(salts) and len({*salts}) == 2, "of the key, and of the key with the client's own"
    arrivals = [line["arrived_at"] for line in lines]
    assert max(arrivals) - min(arrivals) < 600 and all(line["total_s"] > 0 for line in lines)


def replay(recording: Recording, *words: str, path: Path | None = None) -> int:
    return cli.main(["replay", str(path or recording.path), "--speed", "0", *words])


def test_an_engine_repeats_it(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(recording, "--model", str(recording.checkpoint), *ENGINE) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("8 equal, 0 different, 0 not repeated\n")
    assert re.search(r"whole answer  p99 +[0-9.]+ s +[0-9.]+ s  ratio [0-9.]+\n$", printed)


def test_a_server_repeats_it(
    recording: Recording, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEESAY_API_KEY", KEY)
    assert replay(recording, "--base-url", recording.server.url) == 0
    assert capsys.readouterr().out.startswith("8 equal, 0 different, 0 not repeated\n")


def test_other_answers_are_shown(recording: Recording, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The first token that differs, both texts, and status 1. Media are found by what they hold, too."""
    path = tmp_path / "other.jsonl"
    lines = [line for line in recording.lines if line["finish_reason"] == "length"]
    changed, shorter = lines[0], lines[1]
    kept = changed["answer"][2]
    changed["answer"][2] = 9 if kept != 9 else 8
    shorter["answer"].pop()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "media").mkdir()
    for number, file in enumerate(media_folder(recording.path).iterdir()):
        (tmp_path / "media" / f"{number}.png").write_bytes(file.read_bytes())
    words = ["--model", str(recording.checkpoint), "--media", str(tmp_path / "media"), *ENGINE]
    assert replay(recording, *words, path=path) == 1
    printed = capsys.readouterr().out
    assert f"token 2 was {changed['answer'][2]}, now it is {kept}\n  was: " in printed and "\n  now: " in printed
    assert f"token {len(shorter['answer'])} was the end (length), now it is" in printed
    assert f"{len(lines) - 2} equal, 2 different, 0 not repeated" in printed


def test_media_that_are_not_there(recording: Recording, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Those requests are named and left out. A file that has changed is not taken for the one that was recorded."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(recording.path.read_bytes())
    words = ["--model", str(recording.checkpoint), *ENGINE]
    assert replay(recording, *words, path=path) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("5 equal, 0 different, 3 not repeated\n")
    assert re.fullmatch(
        r"lines \d, \d, \d: not repeated: its image [0-9a-f]{64} is not there: see --media\n", captured.err
    )
    media_folder(path).mkdir()
    for file in media_folder(recording.path).iterdir():
        (media_folder(path) / file.name).write_bytes(b"another")
    assert replay(recording, *words, path=path) == 0
    assert capsys.readouterr().err.endswith(" has another content than was recorded\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": []}, "tokens must be a list of 1 to"),
        ({"tokens": [1, -1]}, "tokens must be token ids"),
        ({"tokens": ["a"]}, "tokens must be a list"),
        ({"tokens": None}, "tokens must be a list"),
        ({"num_continued": 3}, "of which num_continued, but not all"),
        ({"record": 2}, "is not a request of a recording"),
        ({"path": "/etc/passwd"}, "'path' is not a field"),
        ({"options": {"max_new_tokens": 0}}, "max_new_tokens must be at least 1"),
        ({"options": {"n": 2}}, "options: 'n' is not an option"),
        ({"options": {"\x1b[2J": 2}}, r"options: '\x1b[2J' is not an option"),
        ({"answer": [-1]}, "answer must be token ids"),
        ({"answer": [1 << 31]}, "answer must be token ids"),
        ({"options": {"logit_bias": {"x": 1}}}, "keys must be token ids"),
        ({"options": [1]}, "options"),
        ({"arrived_at": 1e300}, "arrived_at must be in [0, "),
        ({"finish_reason": "gone"}, "finish_reason must be one of"),
        ({"media": {}}, "media must be a list of objects"),
        ({"media": [{"position": 0, "modality": "image", "sha256": "../../etc/passwd", "num_tokens": 1}]}, "sha256"),
        ({"media": [{"position": 0, "modality": "image", "sha256": "f" * 63 + "/", "num_tokens": 1}]}, "sha256"),
        ({"media": [{"position": 3, "modality": "image", "sha256": "f" * 64, "num_tokens": 1}]}, "position of media"),
        ({"media": [{"position": 0, "modality": "sound", "sha256": "f" * 64, "num_tokens": 1}]}, "modality"),
        ({"model": None}, "model must be a string"),
    ],
)
def test_a_line_that_is_wrong_is_named(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps({**LINE, **change}) + "\n")
    assert cli.main(["replay", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{path}, line 2: " in error and message in error and len(error) < 700


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"record":1', "it is cut off"),
        (b"\n", "it is not JSON, remove it to replay the others"),
        (b"[]\n", "is not a request of a recording"),
        (b'{"record":1,"arrived_at":NaN}\n', "NaN is not JSON"),
        (b"[" * 100_000 + b"\n", "it is not JSON"),
        (b'{"record":1,"arrived_at":' + b"9" * 5000 + b"}\n", "it is not JSON"),
        (b'{"record":1,"tokens":[1' + b"0" * 400 + b"]}\n", "line 1"),
        (b"\xff\xfe\n", "it is not JSON"),
        (b'{"record":1}\n', "missing"),
    ],
)
def test_a_damaged_line_is_named(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(line)
    with pytest.raises(ConfigError, match="line 1: ") as raised:
        read_recording(path)
    assert message in str(raised.value) and len(str(raised.value)) < 700


def test_why_a_server_did_not_look_at_requests(
    recording: Recording, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A key, a route and an adapter that it does not know make no answers that differ. A reason is told once."""
    assert replay(recording, "--base-url", recording.server.url, "--api-key", "another") == 1
    captured = capsys.readouterr()
    assert captured.out == "0 equal, 0 different, 8 not repeated\n"
    assert captured.err.startswith("lines 1, 2, 3, 4, 5, 6, 7, 8: not repeated: the server answers with status 401: ")
    assert captured.err.count("\n") == 1
    assert replay(recording, "--base-url", f"{recording.server.url}/elsewhere", "--api-key", KEY) == 1
    assert "not repeated: the server answers with status 404: " in capsys.readouterr().err
    path = tmp_path / "adapted.jsonl"
    path.write_text(json.dumps({**recording.lines[0], "adapter": "shouting"}) + "\n")
    assert replay(recording, "--base-url", recording.server.url, "--api-key", KEY, path=path) == 1
    captured = capsys.readouterr()
    assert captured.out == "0 equal, 0 different, 1 not repeated\n" and "'shouting'" in captured.err


def test_why_an_engine_answers_otherwise(
    recording: Recording, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "adapted.jsonl"
    path.write_text(json.dumps({**recording.lines[0], "adapter": "shouting"}) + "\n")
    assert replay(recording, "--model", str(recording.checkpoint), *ENGINE, path=path) == 1
    captured = capsys.readouterr()
    assert re.search(r"now it is the end \(error: invalid_request: .*'shouting'", captured.out) and not captured.err
    path.write_text(json.dumps({**recording.lines[0], "weights": "0" * 16, "model": "\x1b[2Jother"}) + "\n")
    assert replay(recording, "--model", str(recording.checkpoint), *ENGINE, path=path) == 0
    assert capsys.readouterr().err == "line 1: answered by other weights when it was recorded, of '\\x1b[2Jother'\n"


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    """Of a process that was killed. The next one goes on in a line of its own."""
    path = tmp_path / "requests.jsonl"
    whole = json.dumps(LINE).encode() + b"\n"
    path.write_bytes(whole + whole[:20])
    for _ in range(2):
        check_path(path)
        append(path, whole)
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines == [whole, whole[:20] + b"\n", whole, whole]
    with pytest.raises(ConfigError, match="line 2: it is not JSON, remove it to replay the others"):
        read_recording(path)


def test_a_recording_that_is_missing_or_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    for path, message in ((tmp_path / "none", "No such file"), (tmp_path / "empty", "there is no request in it")):
        assert cli.main(["replay", str(path)]) == 1
        assert message in capsys.readouterr().err


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    item = MediaRecord(position=1, modality="video", sha256="a" * 64, num_tokens=9, options={"fps": 1.5})
    record = RequestRecord(
        version="v", model="m", weights="w", arrived_at=3.5, tokens=[1, 0, 2], num_prompt_tokens=11, media=[item],
        options={"logit_bias": {3: 1.5}, "stop_words": ["é"], "do_sample": True}, streams=False, answer=[4, 5],
        finish_reason="length", first_token_s=0.25, total_s=1.5,
    )  # fmt: skip
    path = tmp_path / "requests.jsonl"
    path.write_bytes(write_line(record))
    [read] = read_recording(path)
    assert read.record == RequestRecord(**{**_fields(record), "options": read.record.options})
    assert read.options == GenerationConfig(**record.options)


def _fields(record: RequestRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "none"])
def test_a_recording_goes_to_a_regular_file_only(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "other").touch()
        path.symlink_to(tmp_path / "other")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = tmp_path / "missing" / "requests.jsonl"
    with pytest.raises(ConfigError, match="cannot be written"):
        AsyncEngine(backend_config=EngineConfig(record=path, device_type="cpu"))


def test_media_without_a_file_to_be_in() -> None:
    with pytest.raises(ConfigError, match=r"record_media needs EngineConfig\.record"):
        EngineConfig(record_media=True)


@pytest.mark.parametrize("name", ["llava", "internvl", "gemma3_vision", "minicpmv_4_5"])
def test_prompts_of_other_families(name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Markers, numbers and texts around pictures are tokens of the recording; pictures are expanded again. Pixels and
    functions that change logits: the first are a PNG, the others cannot be repeated."""
    path, checkpoint = tmp_path / "requests.jsonl", tiny_checkpoint(name)
    config = EngineConfig(session_len=2048, device_type="cpu", record=path, record_media=True)
    pixels = np.random.default_rng(3).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    drawn = GenerationConfig(do_sample=True, max_new_tokens=6)
    function = GenerationConfig(max_new_tokens=2, logits_processors=[lambda _, logits: logits])
    with Pipeline(str(checkpoint), config) as pipe:
        whole = pipe(("compare", [Image.fromarray(pixels), pixels[:30]]), gen_config=drawn)
        assert whole.finish_reason in ("stop", "length"), whole.text
        pipe("hi", gen_config=function)
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["answer"] == list(whole.token_ids) and len(first["media"]) == 2
    assert first["num_prompt_tokens"] == whole.input_token_len
    assert "functions of the program" in second["unrepeatable"]
    assert cli.main(["replay", str(path), "--model", str(checkpoint), "--device", "cpu", "--session-len", "2048"]) == 0


def test_two_frontends_write_one_recording(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path, checkpoint = tmp_path / "requests.jsonl", str(tiny_checkpoint("qwen2_5_vl"))
    words = ["--frontends", "2", "--server-name", "127.0.0.1", "--server-port", "0", "--record", str(path), *ENGINE]
    process = subprocess.Popen(
        [sys.executable, "-m", "seesay", "serve", "api_server", checkpoint, *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = next(found[0] for line in process.stdout if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        asyncio.run(_ask_often(url))
        wait_until(lambda: len(path.read_text().splitlines()) == 24)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    owners = {json.loads(line)["owner"].partition("-")[0] for line in path.read_text().splitlines()}
    assert len(owners) == 2, "both have answered"
    assert cli.main(["replay", str(path), "--model", checkpoint, "--speed", "0", *ENGINE]) == 0


async def _ask_often(url: str) -> None:
    """Ask over a connection for each request, so that both frontends take some."""

    async def ask(number: int) -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            body = {"input_ids": [number + 1, 5], "max_tokens": 6, "temperature": 1.0}
            response = await client.post(f"{url}/generate", json=body)
            assert response.status_code == 200, response.text

    await asyncio.gather(*map(ask, range(24)))
