"""`seesay batch` as people run it: the built-in model, a process that is killed, and a second one that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from live_server import make_data_url
from PIL import Image
from waiting import wait_until

SEESAY = [sys.executable, "-m", "seesay", "batch"]
OPTIONS = ["--device", "cpu", "--session-len", "2048", "--max-batch-size", "2", "--concurrency", "2"]
NUM_LINES = 30


def make_line(number: int) -> str:
    content = [
        {"type": "text", "text": f"Calculate {number} + 4."},
        *([{"type": "image_url", "image_url": {"url": make_data_url(Image.new("RGB", (40, 30), "red"))}}]
          if number % 10 == 9 else []),
    ]  # fmt: skip
    body = {"model": "any", "messages": [{"role": "user", "content": content}], "max_tokens": 40}
    return json.dumps({"custom_id": f"n{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"


def test_a_killed_run_is_continued_and_answers_each_line_once(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(map(make_line, range(NUM_LINES))))
    command = [*SEESAY, str(source), str(target), *OPTIONS]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (target.exists() and target.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = target.read_bytes().count(b"\n")
    assert 3 <= kept < NUM_LINES
    with target.open("ab") as file:
        file.write(b'{"id":"batch_req_0123","custom_id":"n2')
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"{NUM_LINES} of {NUM_LINES} lines answered, 0 failed, {kept} of them before" in done.stderr
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(result["custom_id"] for result in results) == sorted(f"n{number}" for number in range(NUM_LINES))
    answers = {result["custom_id"]: result["response"]["body"]["choices"][0]["message"] for result in results}
    assert answers["n3"]["content"] == "3 + 4 = 7."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_stopped_run_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    """The server answers the first line alone."""
    answered = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = b'{"choices": []}'
            if answered.is_set():
                stopped.wait(120)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            answered.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    stopped = threading.Event()
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(map(make_line, range(3))))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        command = [*SEESAY, str(source), str(target), "--base-url", f"http://127.0.0.1:{server.server_address[1]}"]
        try:
            process = subprocess.Popen([*command, "--concurrency", "1"], stderr=subprocess.PIPE, text=True)
            wait_until(lambda: target.exists() and target.read_bytes().count(b"\n") == 1)
            process.send_signal(number)
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 128 + number, errors
            assert "1 of 3 lines answered, 0 failed" in errors and "run the same command again to go on" in errors
            assert "Traceback" not in errors
            stopped.set()
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0 and "3 of 3 lines answered, 0 failed, 1 of them before" in done.stderr
        finally:
            stopped.set()
            server.shutdown()
            thread.join(60)


def test_what_failed_is_in_the_status_and_nothing_is_loaded_for_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("nonsense\n")
    command = [*SEESAY, str(source), str(target), "--base-url", "http://127.0.0.1:1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "0 of 1 lines answered, 1 failed;" in done.stderr
    shown = done.stderr.partition("what failed has its error in ")[2].splitlines()[0].partition(": ")[2]
    errors = subprocess.run(["sh", "-c", shown], check=True, capture_output=True, text=True).stdout
    assert errors == target.read_text() and "must be a JSON object" in errors
    again = [*SEESAY, str(source), str(target), "--model", "/no/such/model"]
    done = subprocess.run(again, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "1 of them before" in done.stderr, done.stderr
