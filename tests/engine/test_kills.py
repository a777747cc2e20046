"""Kills at random moments under load: of the engine process, of a frontend, of the vision encoder's thread.

Each request ends in exactly one final answer or error, an answer is the right one, nothing is leaked, and the next
request is answered. `--kills 50` makes it a long run.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from asking import make_picture, parse
from leftovers import count_threads, end_renderers, list_children, list_files, list_threads, wait_until_no_more
from waiting import wait_until

from seesay.config import EngineConfig, VisionConfig
from seesay.config.plain import as_plain
from seesay.encoders.worker import EncoderWorker
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ErrorCode, RequestError
from seesay.values import OutputDelta

faulty_engine = pytest.importorskip("faulty_engine")
forked_python = pytest.importorskip("forked_python")
process_core = pytest.importorskip("seesay.engine.process.remote_core")
listener = pytest.importorskip("seesay.engine.process.listener")

DEFAULT_KILLS = 5
KINDS = ("engine", "front", "raise", "die", "hang")
STEP_TIMEOUT_S = 30.0
"""On a busy machine, a step that does not hang may take seconds."""
CONFIG = EngineConfig(device_type="cpu", block_size=16, step_timeout_s=STEP_TIMEOUT_S)
NUM_TOKENS = 40
NUM_PICTURES = 6
PROMPTS: list[Any] = ["go on", "the game is in the frame", "count the frames of the game"]
PROMPTS += [(f"what is {k}?", make_picture(60 + 9 * k, 50, k)) for k in range(NUM_PICTURES)]
FAILURES = ("send the request again", "stopped unexpectedly", "a fault of the tower")
"""Of the engine process, of the encoder's thread, and of one call of the tower."""


def count_shared(pid: int | str) -> int:
    """Mappings of shared memory between processes, without the segments that are used again."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:seesay ")


@dataclass
class Asked:
    index: int
    delta_count: int = 0
    token_ids: list[int] = field(default_factory=list)
    final: OutputDelta | None = None


class Load:
    """Requests of one frontend, and all that came back for them."""

    def __init__(self, engine: AsyncEngine, rng: random.Random) -> None:
        self.engine = engine
        self.asked: dict[int, Asked] = {}
        self._rng = rng
        self._arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()

    def ask(self, indices: list[int], num_tokens: int = NUM_TOKENS) -> list[int]:
        requests = parse([PROMPTS[index] for index in indices], max_new_tokens=num_tokens, ignore_eos=True)
        ids = self.engine.submit_batch(requests, self._arrived.put)
        self.asked.update({request_id: Asked(index) for request_id, index in zip(ids, indices, strict=True)})
        return ids

    def ask_much(self) -> None:
        """Ask for text and pictures, and leave some of the answers."""
        ids = self.ask([self._rng.randrange(len(PROMPTS)) for _ in range(8)])
        for request_id in self._rng.sample(ids, 2):
            self.engine.abort(request_id)

    def take_all(self) -> None:
        """Take deltas until each request has its final one."""
        left = {request_id for request_id, one in self.asked.items() if one.final is None}
        while left:
            delta = self._arrived.get(timeout=120)
            self._take(delta)
            left.difference_update([delta.request_id] if delta.finish_reason is not None else [])

    def fail_encoder(self, switch: Path) -> None:
        """Let the tower fail, as the file `switch` of `faulty_engine` says."""
        switch.touch()
        while switch.exists():  # what is encoded already is not encoded again
            self.engine.reset_caches()
            self.ask([self._rng.randrange(3, len(PROMPTS))])
            time.sleep(0.01)

    def check_next(self) -> None:
        """The next requests are answered, with text and with a picture."""
        ids = self.ask([0, len(PROMPTS) - 1], num_tokens=4)
        self.take_all()
        for request_id in ids:
            final = self.asked[request_id].final
            assert final is not None and final.finish_reason == "length", final

    def rest(self) -> None:
        """Nobody asks any more: all blocks and embeddings are given back."""

        def is_idle() -> bool:
            stats = self.engine.stats()
            return (stats.num_running, stats.num_waiting, stats.num_used_kv_blocks) == (0, 0, 0)

        def is_empty() -> bool:
            self.engine.reset_caches()
            return self.engine.stats().num_embeddings == 0

        wait_until(is_idle, "all blocks are free")
        wait_until(is_empty, "no embedding is pinned")
        assert self._arrived.empty(), "an output behind the final one"

    def _take(self, delta: OutputDelta) -> None:
        one = self.asked[delta.request_id]
        assert one.final is None, "an output behind the final one"
        one.token_ids += delta.token_ids
        one.final = delta if delta.finish_reason is not None else None

    def check_answers(self, expected: dict[int, list[int]]) -> Counter[str]:
        """Compare what came with the right answers. Returns how many ended for which reason."""
        for one in self.asked.values():
            assert one.final is not None
            right = expected[one.index]
            assert one.token_ids == right[: len(one.token_ids)], one
            if one.final.finish_reason == "error":
                error = one.final.error
                assert isinstance(error, RequestError) and error.code is ErrorCode.INTERNAL, one
                assert any(words in str(error) for words in FAILURES), one
            elif one.final.finish_reason == "length":
                assert len(one.token_ids) in (4, NUM_TOKENS), one
            else:
                assert one.final.finish_reason == "abort", one
        return Counter(str(one.final.finish_reason) for one in self.asked.values() if one.final)


FRONT = """
import sys
sys.path[:0] = {paths!r}
import threading
from asking import make_picture, parse
from seesay.config import EngineConfig
from seesay.encoders.worker import EncoderWorker
from seesay.engine.front.engine import AsyncEngine
config = EngineConfig(device_type="cpu", block_size=16, step_timeout_s={timeout_s})
engine = AsyncEngine({model!r}, backend_config=config, engine_address={address!r})
free = threading.Semaphore(3)
def take(delta):
    if delta.token_ids:
        print(len(delta.token_ids), flush=True)
    if delta.finish_reason is not None:
        free.release()
for k in range(1_000_000):
    free.acquire()
    prompt = ("what?", make_picture(60, 60 + k % 90, 100 + k)) if k % 2 else "go on"
    engine.submit_batch(parse([prompt], max_new_tokens=60, ignore_eos=True), take)
"""


class OtherFrontend:
    """A frontend in a process of its own, which asks all the time."""

    def __init__(self, path: Path, address: str) -> None:
        roots = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "support")]
        script = FRONT.format(paths=roots, model=str(path), address=address, timeout_s=STEP_TIMEOUT_S)
        self.process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)

    def wait_for_answers(self) -> None:
        """Wait until it is in the middle of an answer."""
        assert self.process.stdout is not None and self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Storm:
    """An engine process, a frontend here, a frontend elsewhere, and what goes wrong with them."""

    def __init__(self, path: Path, switches: Path, rng: random.Random) -> None:
        self.switches, self.rng = switches, rng
        self.listener, self.address = listener.open_listener()
        self.path = path
        self.core = process_core.ProcessCore.load(
            path,
            as_plain("backend_config", CONFIG),
            as_plain("vision_config", VisionConfig()),
            step_timeout_s=STEP_TIMEOUT_S,
            listener=self.listener,
            make_origin=faulty_engine.FaultyProcess,
        )
        self.engine = AsyncEngine(str(path), backend_config=CONFIG, engine_address=self.address)
        self.load = Load(self.engine, rng)
        self.other: OtherFrontend | None = None

    def start_other(self) -> None:
        """Start the frontend elsewhere."""
        self.other = OtherFrontend(self.path, self.address)

    def kill_other(self) -> None:
        if self.other is not None:
            self.other.kill()
        self.other = None

    def close(self) -> None:
        self.kill_other()
        self.engine.close()
        self.core.close()
        self.listener.close()

    def strike(self, kind: str) -> None:
        """Let something go wrong in the middle of the load."""
        wait_until(lambda: self.core.pid is not None, "the engine has been started")
        self.load.ask_much()
        if kind == "front":
            assert self.other is not None
            self.other.wait_for_answers()
        time.sleep(self.rng.random() * 0.3)
        if kind == "engine":
            first = self.core.pid
            os.kill(first, signal.SIGKILL)
            self.load.ask_much()  # some of it is sent to the dead process, some waits for the next one
            wait_until(lambda: self.core.pid not in (first, None), "the engine is started again")
        elif kind == "front":
            self.kill_other()
            self.start_other()
        else:
            self._strike_encoder(kind)
        self.load.take_all()

    def _strike_encoder(self, kind: str) -> None:
        first = self.core.pid
        self.load.fail_encoder(self.switches / kind)
        if kind == "hang":
            wait_until(lambda: self.core.pid not in (first, None), "the engine is started again")

    def rest(self) -> None:
        """End what depends on how many asked at once, and wait until nothing is in use."""
        self.kill_other()
        self.load.rest()
        end_renderers()
        wait_until(lambda: not count_shared(self.core.pid) and not count_shared("self"), "no memory is shared")

    def count(self) -> Counter[str]:
        """Return the kinds of files that both processes have open, and the number of the engine's threads."""
        of_engine = {f"engine: {name}": number for name, number in list_files(self.core.pid).items()}
        found = list_files() + Counter({**of_engine, "engine: threads": count_threads(self.core.pid)})
        return Counter({name: number for name, number in found.items() if "seesay-kept" not in name})


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def expected(path: Path) -> dict[int, list[int]]:
    """The right answers, by the number of the prompt."""
    with AsyncEngine(str(path), backend_config=CONFIG) as engine:
        load = Load(engine, random.Random(0))
        load.ask(list(range(len(PROMPTS))))
        load.take_all()
        return {one.index: one.token_ids for one in load.asked.values()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, in which nothing is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    assert not list(folder.iterdir())


@pytest.fixture
def switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of files that let towers of `faulty_engine` fail."""
    switches = tmp_path / "switches"
    switches.mkdir()
    monkeypatch.setenv(faulty_engine.FOLDER, str(switches))
    return switches


def test_every_request_ends_once_when_the_encoder_fails_in_a_thread(
    path: Path, expected: dict[int, list[int]], switches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncoderWorker, "_check_kind", faulty_engine.fail_once)
    rng, before = random.Random(1), list_threads()
    with AsyncEngine(str(path), backend_config=CONFIG) as engine:
        load = Load(engine, rng)
        for kind in ("raise", "die") * 6:
            load.ask_much()
            time.sleep(rng.random() * 0.1)
            load.fail_encoder(switches / kind)
            load.take_all()
            load.check_next()
        load.rest()
        stats = engine.stats()
        assert stats.total_encoder_restarts == 6 and engine.fault is None
    ended = load.check_answers(expected)
    assert ended["length"] and ended["error"] >= 6
    wait_until_no_more(list_threads, before)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("folder")
def test_every_request_ends_once_whatever_is_killed(
    path: Path,
    expected: dict[int, list[int]],
    switches: Path,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    num_kills = pytestconfig.getoption("kills") or DEFAULT_KILLS
    rng = random.Random(num_kills)
    kinds = [KINDS[k % len(KINDS)] for k in range(num_kills)]
    rng.shuffle(kinds)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # torch's own threads begin when a step is large enough for several
    end_renderers()
    forked_python.start_template()  # it stays
    files, threads, children = list_files(), list_threads(), list_children()
    storm = Storm(path, switches, rng)
    try:
        storm.load.ask(list(range(len(PROMPTS))))
        storm.load.take_all()
        storm.load.check_next()
        storm.rest()
        at_start = storm.count()
        storm.start_other()
        for kind in kinds:
            storm.strike(kind)
            storm.load.check_next()
        storm.rest()
        wait_until_no_more(storm.count, at_start)
        started = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in list_children() - children}
        assert started.keys() == {storm.core.pid}, started
        num_restarts = storm.core.stats().total_engine_restarts
    finally:
        storm.close()
    ended = storm.load.check_answers(expected)
    print(f"{Counter(kinds)}, {num_restarts} restarts, {len(storm.load.asked)} requests: {ended}")
    assert num_restarts == kinds.count("engine") + kinds.count("hang")
    assert ended["length"] and ended["error"]
    end_renderers()
    wait_until_no_more(list_files, files)
    wait_until_no_more(list_threads, threads)
    assert list_children() <= children, "the engine process has ended"
