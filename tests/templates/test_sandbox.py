"""The limits of templates that nobody vouches for, and the processes that enforce them."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until

from seesay.system.liveness import HELPER_LIMIT_S, STOPPED_LIMIT_S, Progress
from seesay.templates import sandbox
from seesay.templates.sandbox import BoundedTemplate, RenderError, RenderLimits, RenderPool

NESTED = "{% set ns = namespace(x=['ab']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
LONG = "{% set ns = namespace(s='ab') %}{% for i in range(22) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"  # 8 million
BOMBS = {
    "times": "{{ 'a' * 10**11 }}",
    "times, not constant": "{{ x * 10**11 }}",
    "list times": "{{ ([x] * 10**10) | length }}",
    "concatenation": LONG.replace("22", "60") + "{{ ns.s }}",
    "addition": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "power, not constant": "{{ n ** (n ** n) }}",
    "squares": "{% set ns = namespace(i=9) %}{% for i in range(60) %}{% set ns.i = ns.i * ns.i %}{% endfor %}",
    "output of one text": "{{ x * 150000000 }}",
    "output": "{% for i in range(100000) %}{{ x * 100000 }}{% endfor %}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops of text": "{% for i in range(99999) %}{% for j in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
    "recursion": "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "recursive loop": "{% for i in [[1]] recursive %}{{ loop([i, i]) }}{{ loop([i, i]) }}{% endfor %}",
    "replace": LONG + "{{ ns.s.replace('a', ns.s) }}",
    "filter replace": LONG + "{{ ns.s | replace('a', ns.s) }}",
    "join": LONG + "{{ ns.s.join(ns.s) }}",
    "filter join": LONG + "{{ ns.s | list | join(ns.s) }}",
    "ljust": "{{ 'x'.ljust(10**11) }}",
    "rjust": "{{ 'x'.rjust(10**11) }}",
    "zfill": "{{ 'x'.zfill(10**11) }}",
    "str.center": "{{ 'x'.center(10**11) }}",
    "center": "{{ 'x' | center(10**11) }}",
    "indent": LONG + "{{ ns.s.replace('a', '\n') | indent(100000) }}",
    "indent width": "{{ 'x\ny' | indent(10**11) }}",
    "wordwrap": LONG + "{{ ns.s | wordwrap(1, true, ns.s) }}",
    "expandtabs": "{{ '\t'.expandtabs(2**31 - 1) }}",
    "expandtabs of many": "{{ ('\t' * 100000).expandtabs(1000000) }}",
    "translate": LONG + "{{ ns.s.translate({97: ns.s}) }}",
    "percent": "{{ '%100000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (2000000000, 1) }}",
    "format width": "{{ '{:100000000000}'.format(1) }}",
    "filter format": "{{ '%2000000000d' | format(1) }}",
    "format_map": "{{ '{a:2000000000}'.format_map({'a': 1}) }}",
    "encode": LONG + "{{ (ns.s * 100).encode() }}",
    "sum of lists": LONG + "{{ ([ns.s | list] * 100000) | sum(start=[]) | length }}",
    "repr": NESTED + "{{ ns.x }}",
    "string": NESTED + "{{ ns.x | string | length }}",
    "tilde": NESTED + "{{ (ns.x ~ '') | length }}",
    "pprint": NESTED + "{{ ns.x | pprint }}",
    "tojson": NESTED + "{{ ns.x | tojson }}",
    "tojson indent": "{{ {'a': [1, {'b': 2}]} | tojson(indent=2000000000) }}",
    "equality": NESTED + NESTED.replace("ns", "other") + "{{ ns.x == other.x }}",
    "in": NESTED + NESTED.replace("ns", "other") + "{{ other.x in [ns.x] }}",
    "unique": LONG + "{{ (ns.s | list) | map('upper') | list | unique | list | length * 10**12 * 'a' }}",
    "sort": LONG + "{{ ((ns.s | list) * 100) | sort | length }}",
    "groupby": LONG + "{{ ((ns.s | list) * 100) | groupby('x') | length }}",
    "list": LONG + "{{ (ns.s * 100) | list | length }}",
    "batch": "{{ [1] | batch(10**10, 'x') | list | length }}",
    "slice": "{{ [1] | slice(10**10, 'x') | list | length }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "round": "{{ 1.5 | round(10**10) }}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "urlize": LONG + "{{ (('http://a.' ~ ns.s) * 20) | urlize }}" + "{{ x * 10**11 }}",
    "striptags": LONG + "{{ ('<' ~ ns.s.replace('a', '<!--') * 20) | striptags }}" + "{{ x * 10**11 }}",
    "xmlattr": LONG + "{{ {'a': ns.s * 1000} | xmlattr }}",
    "truncate": LONG + "{{ (ns.s * 1000) | truncate(10**11, true) }}",
    "strftime": "{{ strftime_now('%Y' * 10**10) }}",
    "cycler": "{% set c = cycler(*range(99999)) %}{% for i in range(99999) %}{% for j in range(99999) %}{{ c.next() }}"
              "{% endfor %}{% endfor %}",
    "calls": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
             + "{% call m() %}" * 40 + "x" * 100000 + "{% endcall %}" * 40,
}  # fmt: skip


@pytest.fixture
def pool() -> Iterator[RenderPool]:
    """Processes of this test alone, with less patience."""
    pool = RenderPool(RenderLimits(cpu_s=0.5))
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def pool_of_bombs() -> Iterator[RenderPool]:
    """Each bomb ends the process that renders it, and nothing else: the next one is rendered by a new process."""
    pool = RenderPool(RenderLimits(cpu_s=0.1))
    yield pool
    pool.close()


def processes(pool: RenderPool) -> list[int]:
    return [worker._process.pid for worker in pool._workers]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until_gone(pids: list[int], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still there: {pids}"
        time.sleep(0.02)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str, pool_of_bombs: RenderPool) -> None:
    """Each ends as an error of the template, soon, and takes no memory here; the next template is rendered as ever."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    tracemalloc.start()
    try:
        with pytest.raises(RenderError) as raised:
            BoundedTemplate(BOMBS[name], pool_of_bombs).render({"x": "x", "n": 9})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert raised.value.kind in ("limit", "syntax", "failed", "raised"), raised.value
    assert raised.value.kind == "limit" or not any(word in str(raised.value) for word in ("process", "jinja2")), raised
    assert peak < 1 << 20, "the output came into this process"
    assert BoundedTemplate("{{ x }}!", pool_of_bombs).render({"x": "ok"}) == "ok!"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime < 4


def test_what_it_may_see(pool: RenderPool) -> None:
    """Files cannot be written, and nothing of this process's environment is there."""
    os.environ["SEESAY_SECRET_OF_THIS_TEST"] = "1"
    try:
        BoundedTemplate("x", pool).render({})
        [pid] = processes(pool)
        assert b"SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
        limits = Path(f"/proc/{pid}/limits").read_text()
    finally:
        del os.environ["SEESAY_SECRET_OF_THIS_TEST"]
    assert f"Max address space         {RenderLimits().memory_bytes}" in limits
    assert "Max file size             0  " in limits and "Max open files            32  " in limits


def test_values_come_through(pool: RenderPool) -> None:
    context = {"s": "a\ud800\u0000猫😀", "n": 2**70, "f": 1.5, "none": None, "list": [True, {"k": [1]}]}
    template = BoundedTemplate("{{ s }}|{{ n }}|{{ f }}|{{ none }}|{{ list }}|{{ s | length }}", pool)
    assert template.render(context) == f"{context['s']}|{2**70}|1.5|None|[True, {{'k': [1]}}]|5"
    assert BoundedTemplate("{{ s }}", pool).render({"s": "x" * (8 << 20)}) == "x" * (8 << 20)


def test_kinds_of_errors(pool: RenderPool) -> None:
    for source, kind, words in (
        ("{% if %}", "syntax", "Expected an expression"),
        ("{{ raise_exception('roles must alternate') }}", "raised", "^roles must alternate$"),
        ("{{ none.x.y }}", "raised", "no attribute 'x'"),
        ("{{ 1 // 0 }}", "failed", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe", "__class__"),
    ):
        with pytest.raises(RenderError, match=words) as raised:
            BoundedTemplate(source, pool).render({})
        assert raised.value.kind == kind


def test_a_template_is_compiled_once_by_one_process(pool: RenderPool) -> None:
    templates = [BoundedTemplate("{{ x }}" + str(number), pool) for number in range(10)]
    for _ in range(3):
        for number, template in enumerate(templates):
            assert template.render({"x": "a"}) == f"a{number}"
    [worker] = pool._workers
    assert len(worker.known) == 10
    for number in range(100):  # a process is replaced before it holds too many
        assert BoundedTemplate(f"{number}", pool).render({}) == str(number)
    assert len(pool._workers) <= 1


def test_threads_share_a_few_processes(pool: RenderPool) -> None:
    template = BoundedTemplate("{% for i in range(2000) %}{{ x }}{% endfor %}", pool)
    with ThreadPoolExecutor(16) as threads:
        answers = [threads.submit(template.render, {"x": f"{number},"}) for number in range(200)]
        for number, answer in enumerate(answers):
            assert answer.result() == f"{number}," * 2000
    assert 1 <= len(pool._workers) <= sandbox.MAX_PROCESSES
    assert len(pool._idle) == len(pool._workers)


def test_one_that_hangs_does_not_stop_others(pool: RenderPool) -> None:
    """Another process is started when the first is busy."""
    bomb = BoundedTemplate(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ x }}", pool
    )
    quick = BoundedTemplate("{{ x }}", pool)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(bomb.render, {"x": 1})
        wait_until(lambda: any(worker not in pool._idle for worker in pool._workers))
        [busy] = processes(pool)
        os.kill(busy, signal.SIGSTOP)  # so that it is not over before the other has started
        assert quick.render({"x": "now"}) == "now" and not slow.done()
        os.kill(busy, signal.SIGCONT)
        with pytest.raises(RenderError, match=r"longer than 0\.5 s"):
            slow.result()


def test_the_clock_bounds_one_that_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seesay.system.liveness.STOPPED_LIMIT_S", 60.0)
    pool = RenderPool(RenderLimits(wall_s=5.0))
    template = BoundedTemplate("{{ x }}", pool)
    [pid] = processes(pool)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RenderError, match="longer than 5 s"):
        template.render({"x": "a"})
    wait_until_gone([pid])
    assert template.render({"x": "a"}) == "a"
    pool.close()


def test_one_that_does_not_respond_is_replaced_and_the_new_one_asked(
    pool: RenderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a signal has stopped is replaced soon: no load on the machine explains it."""
    patient = RenderPool(RenderLimits(wall_s=60.0))
    limits: list[Progress] = []

    def watch(pid: int) -> Progress:
        limits.append(Progress(pid))
        return limits[-1]

    monkeypatch.setattr(sandbox, "Progress", watch)
    template = BoundedTemplate("{{ x }}", patient)
    [pid] = processes(patient)
    os.kill(pid, signal.SIGSTOP)
    assert template.render({"x": "a"}) == "a"
    wait_until_gone([pid])
    assert STOPPED_LIMIT_S < max(each._silence.look()[0] for each in limits) < HELPER_LIMIT_S
    slow = "{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}{{ x }}"
    assert BoundedTemplate(slow, patient).render({"x": "b"}) == "b", "one that computes is left alone"
    patient.close()


def test_a_process_that_was_killed_is_replaced(pool: RenderPool) -> None:
    template = BoundedTemplate("{{ x }}", pool)
    for _ in range(3):
        [pid] = processes(pool)
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
        assert template.render({"x": "a"}) == "a"
        assert processes(pool) != [pid]


def test_ctrl_c_in_the_terminal_does_not_reach_the_processes(pool: RenderPool) -> None:
    """Also while one starts: it has not set what it does with signals yet."""
    BoundedTemplate("{{ x }}", pool).render({"x": "a"})
    assert processes(pool)
    assert all(os.getpgid(pid) != os.getpgid(0) for pid in processes(pool))


@pytest.mark.parametrize(("kept_bytes", "is_kept"), [(100 << 20, True), (1 << 20, False)])
def test_one_that_has_grown_is_replaced(kept_bytes: int, is_kept: bool) -> None:
    """What counts is what it holds after a rendering, not what this process holds."""
    ballast = np.ones(300 << 20, dtype=np.uint8)
    pool = RenderPool(RenderLimits(kept_bytes=kept_bytes))
    template = BoundedTemplate("{{ x }}", pool)
    pids = processes(pool)
    assert len(pids) == is_kept and len(ballast)
    for value in "ab":
        assert template.render({"x": value}) == value and processes(pool) == pids
    pool.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_processes_of_its_own(pool: RenderPool) -> None:
    """Also when another thread held the pool's lock; the parent's stay the parent's."""
    template = BoundedTemplate("{{ x }}", pool)
    own = processes(pool)
    with pool._changed:  # a child must not wait for it
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            ok = b"-"
            try:
                ok = b"+" if template.render({"x": "child"}) == "child" and processes(pool) != own else b"-"
                pool.close()
            finally:
                os.write(write, ok)
                os._exit(0)
    os.close(write)
    try:
        assert os.read(read, 1) == b"+"
    finally:
        os.close(read)
        os.waitpid(pid, 0)
    assert processes(pool) == own and template.render({"x": "parent"}) == "parent"
    assert processes(pool) == own


SCRIPT = """
import os, sys, threading, time
from seesay.system.liveness import Progress
from seesay.templates import sandbox
template = sandbox.BoundedTemplate("{{ x }}")
template.render({"x": 1})
print(*[worker._process.pid for worker in sandbox._pool._workers], flush=True)
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "os._exit(1)",
        "os.kill(os.getpid(), 9)",
        "raise SystemExit(3)",
        "pid = os.fork(); os._exit(0) if pid else time.sleep(60)",
        "loop = '{% for i in range(99999) %}'; bomb = sandbox.BoundedTemplate(loop + loop + 2 * '{% endfor %}')\n"
        "threading.Thread(target=bomb.render, args=({},), daemon=True).start(); time.sleep(0.3); os._exit(0)",
    ],
)
def test_no_process_is_left_behind(end: str) -> None:
    """However this process ends: even while a template is rendered, or when a child lives on that was forked."""
    script = SCRIPT + end
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert child.stdout is not None and child.stderr is not None
    try:
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 1
        child.wait(60)
        wait_until_gone(pids)
        if not end:
            assert child.returncode == 0 and child.stderr.read() == b""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        child.stderr.close()


def test_ctrl_c_is_not_its_own(pool: RenderPool) -> None:
    template = BoundedTemplate("{{ x }}", pool)
    pids = processes(pool)
    os.kill(pids[0], signal.SIGINT)
    assert template.render({"x": "a"}) == "a" and processes(pool) == pids


def test_one_that_is_busy_is_waited_for_when_no_other_can_be_started(pool: RenderPool) -> None:
    template = BoundedTemplate("{{ x }}", pool)
    executable = multiprocessing.spawn.get_executable()
    busy = pool.take()
    multiprocessing.set_executable("/nonexistent/python")
    try:
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(template.render, {"x": "later"})
            with pytest.raises(TimeoutError):
                answer.result(0.1)  # ten times as long as it waits before it starts another one
            pool.give_back(busy, is_fine=True)
            assert answer.result(60) == "later"
    finally:
        multiprocessing.set_executable(executable)


def test_a_process_that_cannot_be_started_says_so(pool: RenderPool) -> None:
    executable = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable("/nonexistent/python")
    try:
        for _ in range(2):
            with pytest.raises(RenderError, match="cannot be started") as raised:
                BoundedTemplate("x", pool)
            assert raised.value.kind == "unavailable"
    finally:
        multiprocessing.set_executable(executable)
    assert threading.active_count() >= 1
