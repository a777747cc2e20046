"""Several frontend processes of one server, over real sockets: killed, stopped, hung up on, and ended.

A frontend that is stopped (SIGSTOP) accepts no connections, so the others answer: that is how a test chooses one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from adapter_folders import write_adapter
from forked_python import forked, started
from live_server import make_data_url, wait_until
from other_weights import copy_with_other_weights

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.system.liveness import is_stopped

COMMAND = [sys.executable, "-m", "seesay", "serve", "api_server"]
SLOW_COMMAND = [
    sys.executable,
    "-c",
    f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "support")]!r}
from seesay.serving.frontends import frontend_processes
frontend_processes._MODULE = "slow_frontend"
from seesay.cli import main
sys.exit(main())
""",
    *COMMAND[3:],
]
"""The server with frontends of `slow_frontend`."""
OPTIONS = ["--server-name", "127.0.0.1", "--device", "cpu", "--session-len", "2048", "--model-name", "tiny"]
FRONT, ENGINE = "seesay.serving.frontends.process", "seesay.engine.process.child"
CHAT, INTERACTIVE = "/v1/chat/completions", "/v1/chat/interactive"
LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "go on"}],
    "max_tokens": 1500,
    "ignore_eos": True,
    "temperature": 0,
}
LONG_TURN: dict[str, Any] = {
    "prompt": "go on",
    "interactive_mode": True,
    "request_output_len": 1500,
    "ignore_eos": True,
    "temperature": 0,
}


@dataclass
class Server:
    """A server with two frontends, and what its processes write to the temporary folder."""

    url: str
    process: subprocess.Popen[str]
    folder: Path

    def children(self, module: str) -> list[int]:
        """The living child processes that run `module`, oldest first."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if int(fields[1]) == self.process.pid and fields[0] != "Z" and module.encode() in command:
                    found.append((int(fields[19]), int(entry.name)))
        return [pid for _, pid in sorted(found)]

    def num_connections(self, pid: int) -> int:
        """The HTTP connections that a process has open."""
        port = int(self.url.rpartition(":")[2])
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        ours = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"}
        num = 0
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                num += str(entry.readlink()) in ours
        return num

    @contextlib.contextmanager
    def only(self, index: int) -> Iterator[None]:
        """Let only this frontend take connections."""
        others = [pid for number, pid in enumerate(self.children(FRONT)) if number != index]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json={"model": "tiny", **body}, timeout=120)

    def chat(self, **body: Any) -> httpx.Response:
        return self.post(CHAT, messages=[{"role": "user", "content": "hi"}], max_tokens=4, **body)

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(f"{self.url}/metrics", timeout=120).text.splitlines()
        values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
        assert len(values) == len([line for line in lines if not line.startswith("#")]), "a sample is there twice"
        return values

    def refuses(self) -> bool:
        """Whether a request is refused by a frontend that drains, or accepted by nobody."""
        try:
            return self.chat().status_code == 503
        except httpx.TransportError:
            return True

    @contextlib.contextmanager
    def without_descriptors(self) -> Iterator[None]:
        """Let the first process have no descriptor for another process, until it has said so in its log. It keeps those
        below the limit for as long as it lives, and waits for no more at a time."""
        limits = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (8, limits[1]))
        try:
            yield
            assert self.process.stderr is not None
            found = next((line for line in self.process.stderr if "cannot be started" in line), None)
            assert found is not None and "Too many open files" in found, "it has ended"
        finally:
            if self.process.poll() is None:
                resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, limits)

    def is_up(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            found = self.metrics()
            return all(found[f'seesay_front_up{{front="{index}"}}'] for index in (0, 1))
        return False


@contextlib.contextmanager
def running(
    model: str, port: int, folder: Path, *options: str, program: Sequence[str] = COMMAND, **variables: str
) -> Iterator[Server]:
    command = [*program, model, "--server-port", str(port), "--frontends", "2", *OPTIONS, *options]
    command += ["--frontend-timeout", "300"]  # `only` stops the others for as long as a model loads
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", **variables}
    with forked():  # `program` need not be the command
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    server = Server(f"http://127.0.0.1:{port}", process, folder)
    assert process.stderr is not None
    try:
        log = []
        for line in process.stderr:
            log.append(line)
            if "ready after" in line:
                break
        assert process.poll() is None and "with 2 frontends" in log[-1], log
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[[str], Path]) -> str:
    return str(tiny_checkpoint("qwen2_5_vl"))


@pytest.fixture(scope="module")
def server(
    model: str, unused_tcp_port_factory: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """May take new weights, from the folder "other", and an adapter, from the folder "adapter"."""
    weights = tmp_path_factory.mktemp("weights")
    copy_with_other_weights(Path(model), weights / "other")
    write_adapter(Path(model), weights / "adapter", r"model.layers.*(self_attn|mlp)\.\w+_proj")
    options = ["--admin-keys", "root", "--allowed-weights-path", str(weights)]
    options += ["--max-adapters", "1", "--allowed-adapter-folders", str(weights)]
    with running(model, unused_tcp_port_factory(), tmp_path_factory.mktemp("temporary"), *options) as server:
        yield server


@pytest.fixture(scope="module")
def quantized_server(
    unused_tcp_port_factory: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Quantized weights over a quantized cache."""
    options = ["--quantization", "int8", "--kv-cache-dtype", "int4"]
    folder = tmp_path_factory.mktemp("temporary")
    with running("seesay-demo", unused_tcp_port_factory(), folder, *options) as server:
        yield server


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is there, no front of `slow_server` connects to an engine process."""
    return tmp_path_factory.mktemp("hold") / "hold"


@pytest.fixture(scope="module")
def slow_server(
    model: str, hold: Path, unused_tcp_port_factory: Callable[[], int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    options = ["--admin-keys", "root"]
    variables = {"SEESAY_TEST_HOLD": str(hold)}
    folder = tmp_path_factory.mktemp("temporary")
    with running(model, unused_tcp_port_factory(), folder, *options, program=SLOW_COMMAND, **variables) as server:
        yield server


@contextlib.contextmanager
def streaming(server: Server, path: str, **body: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream, once the first has arrived."""
    body = {"model": "tiny", "stream": True, **body}
    with httpx.stream("POST", f"{server.url}{path}", json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def test_a_response_of_one_front_is_continued_by_the_other(server: Server) -> None:
    body = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": make_data_url(seed=5)}]}]}
    options = {"max_output_tokens": 6, "temperature": 0}
    with server.only(0):
        first = server.post("/v1/responses", **body, **options).json()
        here = server.post("/v1/responses", input="and?", previous_response_id=first["id"], **options).json()
    with server.only(1):
        there = server.post("/v1/responses", input="and?", previous_response_id=first["id"], **options).json()
        assert there["output"][0]["content"] == here["output"][0]["content"]
        assert there["usage"]["input_tokens"] == here["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        assert httpx.get(f"{server.url}/v1/responses/{first['id']}", timeout=60).json() == first
        stranger = httpx.get(f"{server.url}/v1/responses/{first['id']}", headers={"x-api-key": "other"}, timeout=60)
        assert stranger.status_code == 404
        assert httpx.delete(f"{server.url}/v1/responses/{first['id']}", timeout=60).json()["deleted"] is True
    with server.only(0):
        assert httpx.get(f"{server.url}/v1/responses/{first['id']}", timeout=60).status_code == 404


def test_what_a_front_has_found_out_about_a_grammar_the_other_knows(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 9}}}
    found = []
    for index in (0, 1):
        with server.only(index):
            assert server.chat(response_format=form).status_code == 200
        found.append({path: path.stat().st_mtime_ns for path in server.folder.glob("*-grammars/*")})
        front = server.children(FRONT)[index]
        assert sum(tries_grammars(each, front) for each in Path("/proc").glob("[0-9]*")) == 1 - index
    assert len(found[0]) == 1 and found[0] == found[1]


def tries_grammars(process: Path, parent: int) -> bool:
    """Whether this is the process that tries grammars for `parent`."""
    with contextlib.suppress(OSError):
        command = (process / "cmdline").read_bytes()
        is_child = int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent
        return is_child and b"seesay.grammars.trial_child" in command
    return False


def read_lines(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    return (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {"))


def test_a_stream_in_the_background_is_resumed_at_the_other_front(server: Server) -> None:
    body = {"input": "go on", "max_output_tokens": 40, "temperature": 0, "background": True, "stream": True}
    with contextlib.ExitStack() as opened:
        with server.only(0):
            stream = httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=120)
            lines = read_lines(opened.enter_context(stream))
            events = [next(lines) for _ in range(3)]
        url = f"{server.url}/v1/responses/{events[0]['response']['id']}"
        with server.only(1):
            stream = httpx.stream("GET", url, params={"stream": True, "starting_after": 2}, timeout=120)
            lines = read_lines(opened.enter_context(stream))
        events += lines
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"] == httpx.get(url, timeout=120).json()["output"]


def test_a_request_is_aborted_at_the_other_front(server: Server) -> None:
    with contextlib.ExitStack() as opened:
        with server.only(0):
            lines = opened.enter_context(streaming(server, CHAT, **LONG, rid="long"))
            next(lines)
        client = opened.enter_context(httpx.Client(base_url=server.url, timeout=120))
        with server.only(1):
            client.get("/health")  # a connection with this one
        for rid, num in (("other", 0), ("long", 1), ("long", 0)):
            assert client.post("/abort_request", json={"rid": rid}).json() == {"num_aborted": num}
        assert "was aborted" in "".join(lines)


def test_connections_are_shared_out(server: Server) -> None:
    """`test_accepting.py` counts them. Here a frontend that is late on a busy machine may get fewer than the other."""
    frontends = server.children(FRONT)
    with contextlib.ExitStack() as opened:
        held = [0, 0]
        while min(held) < 1:
            assert sum(held) < 1000, held
            for _ in range(20):
                client = opened.enter_context(httpx.Client(timeout=120))
                assert client.get(f"{server.url}/health").status_code == 200
            held = [server.num_connections(pid) for pid in frontends]


def administrate(server: Server, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=body, headers={"x-api-key": "root"}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def talk(server: Server, prompt: Any, session_id: int, **options: Any) -> dict[str, Any]:
    options = {"request_output_len": 6, "temperature": 0, "interactive_mode": True, **options}
    response = server.post(INTERACTIVE, prompt=prompt, session_id=session_id, **options)
    return {"status": response.status_code, **response.json()}


def test_a_session_goes_on_at_the_other_front(server: Server) -> None:
    picture = {"type": "image_url", "image_url": {"url": make_data_url(seed=6)}}
    begin = [{"role": "user", "content": [picture, {"type": "text", "text": "look"}]}]
    with server.only(0):
        for session_id in (1, 2):
            first = talk(server, begin, session_id)
        alone = talk(server, "and?", 1)
    with server.only(1):
        moved = talk(server, "and?", 2)
    del alone["cached_tokens"], moved["cached_tokens"]  # the second one finds what the first has computed
    assert moved == alone and moved["history_tokens"] == first["history_tokens"] + first["input_tokens"] + 6


def test_a_session_is_busy_and_cancelled_for_all_frontends(server: Server) -> None:
    with contextlib.ExitStack() as opened:
        with server.only(0):
            lines = opened.enter_context(streaming(server, INTERACTIVE, **LONG_TURN, session_id=3))
        with server.only(1):
            busy = talk(server, "me too", 3)
            assert (busy["status"], busy["error"]["code"]) == (409, "session_busy")
            assert server.post(INTERACTIVE, prompt="", session_id=3, cancel=True).status_code == 200
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]
        assert last["finish_reason"] == "cancel"
    with server.only(1):
        expected = last["history_tokens"] + last["input_tokens"] + last["tokens"]
        assert talk(server, "and?", 3)["history_tokens"] == expected


def test_the_figures_of_all_frontends_add_up(server: Server) -> None:
    counted = 'seesay_http_requests_total{endpoint="/v1/chat/completions",status="200"}'
    wait_until(server.is_up)
    before = server.metrics()
    for index, number in ((0, 2), (1, 3)):
        with server.only(index):
            for _ in range(number):
                assert server.chat(ignore_eos=True).status_code == 200
    wait_until(lambda: server.metrics()[counted] == before.get(counted, 0) + 5)
    for index in (0, 1):
        with server.only(index):  # the other one cannot be asked: its latest figures count
            assert server.metrics()[counted] == before.get(counted, 0) + 5
    after = server.metrics()
    assert after["seesay_generated_tokens_total"] == before["seesay_generated_tokens_total"] + 20
    assert after["seesay_end_to_end_seconds_count"] == before["seesay_end_to_end_seconds_count"] + 5
    assert after["seesay_requests_running"] == 0 and after["seesay_kv_blocks"] > 0


def test_caches_are_reset_in_all_frontends(server: Server) -> None:
    content = [{"type": "image_url", "image_url": {"url": make_data_url(seed=7)}}, {"type": "text", "text": "?"}]
    for index in (0, 1):
        with server.only(index):
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
            assert server.post(CHAT, **body).status_code == 200
    assert server.metrics()["seesay_feature_cache_bytes"] > 0
    administrate(server, "/reset_caches")
    found = server.metrics()
    assert found["seesay_feature_cache_bytes"] == found["seesay_embedding_cache_bytes"] == 0
    assert found["seesay_kv_blocks_cached"] == 0


def test_a_front_that_is_killed_loses_its_own_requests_alone(server: Server) -> None:
    wait_until(server.is_up)
    before, frontends = server.metrics(), server.children(FRONT)
    restarts = before["seesay_front_restarts_total"]
    ended: list[Any] = []

    def read(lines: Iterator[str]) -> None:
        try:
            ended.append(list(lines)[-2])
        except httpx.TransportError as error:
            ended.append(error)

    with contextlib.ExitStack() as opened:
        threads = []
        for index in (0, 1):
            with server.only(index):
                lines = opened.enter_context(streaming(server, CHAT, **LONG))
                opened.enter_context(streaming(server, INTERACTIVE, **LONG_TURN, session_id=10 + index))
            threads.append(threading.Thread(target=read, args=(lines,)))
            threads[-1].start()
        with server.only(0):
            later = server.post("/v1/responses", input="go on", background=True, max_output_tokens=400).json()
        with server.without_descriptors():
            os.kill(frontends[0], signal.SIGKILL)
            assert server.chat().status_code == 200, "the next request is answered"
        threads[0].join(120)
        assert len(ended) == 1 and isinstance(ended[0], httpx.RemoteProtocolError)
        assert talk(server, "me too", 11)["status"] == 409, "the other frontend's session goes on"
        # That of the dead one is free again once the supervisor has noticed.
        wait_until(lambda: talk(server, "me too", 10)["status"] == 200)
        lost = httpx.get(f"{server.url}/v1/responses/{later['id']}", timeout=60).json()
        assert lost["status"] == "failed" and "ended; send the request again" in lost["error"]["message"], lost
        threads[1].join(120)
        assert len(ended) == 2 and ended[1] == "data: [DONE]"
    wait_until(server.is_up)
    after, now = server.metrics(), server.children(FRONT)
    assert after["seesay_front_restarts_total"] == restarts + 1
    assert len(now) == 2 and frontends[0] not in now and frontends[1] in now
    for name, value in before.items():
        if re.search(r"_(total|count|bucket)\b", name) and "part" not in name:
            assert after[name] >= value, name
    with server.only(now.index(frontends[1]) ^ 1):
        assert server.chat().status_code == 200, "so does the new one"


def test_the_fronts_outlive_the_engine_process(server: Server) -> None:
    [engine] = server.children(ENGINE)
    with server.without_descriptors():
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: httpx.get(f"{server.url}/health", timeout=60).status_code == 503)
    wait_until(lambda: httpx.get(f"{server.url}/health", timeout=60).status_code == 200)
    for index in (0, 1):
        with server.only(index):
            wait_until(lambda: httpx.get(f"{server.url}/health", timeout=60).status_code == 200)
            assert server.chat().status_code == 200


def test_an_adapter_is_there_for_all_frontends(server: Server) -> None:
    """Also behind the death of the engine that has loaded it."""
    wait_until(server.is_up)

    def ask(index: int, model: str) -> Any:
        with server.only(index):
            answer = server.chat(temperature=0, ignore_eos=True, model=model)
            return answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else None

    with server.only(0):
        own = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
        administrate(server, "/v1/load_lora_adapter", lora_name="other", lora_path="adapter")
    wait_until(lambda: ask(1, "other") is not None)
    answers = [ask(index, name) for name in (own, "other") for index in (0, 1)]
    assert answers[0] == answers[1] != answers[2] == answers[3]
    [engine] = server.children(ENGINE)
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: server.children(ENGINE) not in ([], [engine]) and server.is_up())
    for index in (0, 1):
        wait_until(lambda index=index: ask(index, "other") == answers[2])  # type: ignore[misc]
    with server.only(1):
        administrate(server, "/v1/unload_lora_adapter", lora_name="other")
    wait_until(lambda: ask(0, "other") is None)


def test_new_weights_and_sleep_are_those_of_all_frontends(server: Server) -> None:
    """Any frontend's request does. When the engine dies asleep, a frontend wakes up the one that the supervisor
    starts."""
    wait_until(server.is_up)

    def ask(index: int) -> Any:
        with server.only(index):
            return server.chat(temperature=0, ignore_eos=True).json()

    def answers() -> list[Any]:
        return [ask(index)["choices"][0]["message"]["content"] for index in (0, 1)]

    before = answers()
    with server.only(0):
        assert administrate(server, "/update_weights", folder="other")["weights_epoch"] == 1
    after = answers()
    assert after[0] == after[1] != before[0] == before[1]
    with server.only(1):
        assert administrate(server, "/sleep?level=2")["is_sleeping"]
    assert [ask(index)["error"]["code"] for index in (0, 1)] == ["sleeping"] * 2
    [engine] = server.children(ENGINE)
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not server.children(ENGINE))
    assert [ask(index)["error"]["code"] for index in (0, 1)] == ["sleeping"] * 2
    assert not server.children(ENGINE)
    with server.only(1):
        assert not administrate(server, "/wake_up")["is_sleeping"]
        for _ in range(30):  # the supervisor wakes it up, and the frontend that answers knows it, too
            assert administrate(server, "/sleep")["asleep"] == ["weights", "kv_cache"]
            assert administrate(server, "/wake_up?tags=weights")["asleep"] == ["kv_cache"]
            assert administrate(server, "/wake_up?tags=kv_cache")["asleep"] == []
    assert answers() == after


def test_ctrl_c_finishes_answers_and_leaves_nothing(server: Server) -> None:
    """Last of this server."""
    wait_until(server.is_up)
    children = server.children(FRONT) + server.children(ENGINE)
    assert len(children) == 3
    with streaming(server, CHAT, **{**LONG, "max_tokens": 300}) as lines:
        server.process.send_signal(signal.SIGINT)
        wait_until(server.refuses)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert server.process.wait(120) == 0
    assert server.process.stderr is not None
    log = server.process.stderr.read()
    assert "SIGINT: waiting up to 30 s for running answers; a second one (Ctrl-C) cuts them off\n" in log, log
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not list(server.folder.iterdir())


def test_all_fronts_answer_of_quantized_weights_over_a_quantized_cache(quantized_server: Server) -> None:
    """One engine process has both; each frontend gives the answers of a pipeline with these options."""
    question, config = "What is 3 + 4?", EngineConfig(device_type="cpu", quantization="int8", kv_cache_dtype="int4")
    with pipeline("seesay-demo", backend_config=config) as pipe:
        expected = pipe(question, gen_config=GenerationConfig(max_new_tokens=16, temperature=0))
    assert "7" in expected.text
    wait_until(quantized_server.is_up)
    for index in (0, 1):
        with quantized_server.only(index):
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": 16, "temperature": 0}
            answer = quantized_server.post(CHAT, **body).json()
        assert answer["choices"][0]["message"]["content"] == expected.text
        assert answer["usage"]["prompt_tokens"] == expected.input_token_len


def test_ctrl_c_twice_cuts_answers_off(quantized_server: Server) -> None:
    """Last of this server. The frontend whose answer it is has taken neither signal when the second comes."""
    frontend = quantized_server.children(FRONT)[0]
    with contextlib.ExitStack() as opened:
        with quantized_server.only(0):
            lines = opened.enter_context(streaming(quantized_server, CHAT, **LONG))
        os.kill(frontend, signal.SIGSTOP)
        wait_until(partial(is_stopped, frontend))  # a signal of a lower number that comes before that is taken first
        for number in (signal.SIGTERM, signal.SIGINT):  # that the supervisor sends it
            quantized_server.process.send_signal(signal.SIGINT)
            wait_until(partial(has_waiting, frontend, number))
        os.kill(frontend, signal.SIGCONT)
        with contextlib.suppress(httpx.TransportError):
            assert "data: [DONE]" not in list(lines)
    assert quantized_server.process.wait(60) == 0
    assert quantized_server.process.stderr is not None
    log = quantized_server.process.stderr.read()
    assert log.count("SIGINT: waiting") == 1 and log.count("SIGINT again: 1 requests are cut off") == 1, log
    assert "Traceback" not in log


def test_what_is_answered_about_sleep_is_true_before_fronts_have_connected(slow_server: Server, hold: Path) -> None:
    """No frontend has heard of the engine process that is started when the engine is woken up."""
    wait_until(slow_server.is_up)

    def read_sleep() -> Any:
        return httpx.get(f"{slow_server.url}/is_sleeping", timeout=120).json()

    def ask(number: int = 0) -> Any:
        return slow_server.chat(temperature=0, ignore_eos=True, seed=number).json()

    before = ask()["choices"]
    assert administrate(slow_server, "/sleep?level=2")["is_sleeping"] and read_sleep()["is_sleeping"]
    hold.touch()
    [engine] = slow_server.children(ENGINE)
    os.kill(engine, signal.SIGKILL)
    assert ask()["error"]["code"] == "sleeping", "whoever has noticed the death"
    wait_until(lambda: len(list(hold.parent.glob("hold.*"))) == 2)
    assert administrate(slow_server, "/wake_up?tags=weights")["asleep"] == read_sleep()["asleep"] == ["kv_cache"]
    assert not slow_server.children(ENGINE)
    for _ in range(4):
        error = ask()["error"]
        assert error["code"] == "sleeping" and "(kv_cache)" in error["message"]
    assert not administrate(slow_server, "/wake_up")["is_sleeping"] and not read_sleep()["is_sleeping"]
    assert slow_server.children(ENGINE)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(ask, number) for number in range(8)]
        time.sleep(0.5)
        hold.unlink()
        assert [answer.result()["choices"] for answer in asked] == [before] * 8


def test_all_processes_end_with_the_one_that_started_them(slow_server: Server) -> None:
    """Last of this server."""
    children = slow_server.children("slow_frontend") + slow_server.children(ENGINE)
    assert len(children) == 3
    with streaming(slow_server, CHAT, **LONG):
        slow_server.process.kill()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    [left] = slow_server.folder.iterdir()
    assert left.name.endswith("-grammars"), "the next server deletes it"


def test_ctrl_c_while_the_model_is_loaded(
    model: str, unused_tcp_port_factory: Callable[[], int], tmp_path: Path
) -> None:
    command = [*COMMAND, model, "--server-port", str(unused_tcp_port_factory()), "--frontends", "2", *OPTIONS]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with started():  # Ctrl-C comes while modules are imported
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    with process:
        server = Server("", process, tmp_path)
        try:
            wait_until(lambda: handles(process.pid, signal.SIGTERM))  # as the supervisor does, before it waits
            children = server.children(FRONT) + server.children(ENGINE)
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, log
    assert log.endswith("\nseesay: interrupted\n") and "ready" not in log and "Traceback" not in log, log
    assert len(children) >= 2 and not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not list(tmp_path.iterdir())


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    return is_in_mask(pid, number, "SigCgt")


def has_waiting(pid: int, number: int) -> bool:
    """Whether a process has been sent a signal that it has not taken yet."""
    return is_in_mask(pid, number, "ShdPnd")


def is_in_mask(pid: int, number: int, mask: str) -> bool:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status[mask], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--max-sequences-per-key", "1"), "--max-sequences-per-key is divided"),
        (("--max-concurrent-requests", "1"), "--max-concurrent-requests is divided"),
        (("--max-total-body-bytes", "100000000"), "needs at least the largest body"),
        (("--no-engine-process",), "--no-engine-process"),
        (("--chat-template", "/none.jinja"), "'/none.jinja': there is no such file"),
    ],
)
def test_options_that_do_not_fit_are_refused(model: str, options: tuple[str, ...], expected: str) -> None:
    command = [*COMMAND, model, "--server-port", "0", "--frontends", "2", *OPTIONS, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1 and expected in done.stderr and "Traceback" not in done.stderr, done.stderr
