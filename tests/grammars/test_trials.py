"""Grammars are tried before requests are admitted: hostile ones are bounded in time and memory, at nobody's cost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from grammars.byte_grammar import END
from held_trials import begin_endless
from waiting import wait_until

from seesay.config.grammar import Grammar
from seesay.errors import MissingExtraError, RequestError
from seesay.grammars import trial_child
from seesay.grammars import trials as trials_module
from seesay.grammars.compile import TokenTable
from seesay.grammars.masks import CompiledGrammars, MaskRow, MaskThreads
from seesay.grammars.program import make_program
from seesay.grammars.trial_child import CPU_S
from seesay.grammars.trials import GrammarTrials
from seesay.system.cancellation import Cancellation
from seesay.system.fair_threads import FairThreads
from seesay.system.liveness import HELPER_LIMIT_S
from seesay.system.python import python_command

TOKENS = [*(bytes([i]) for i in range(256)), b""]


@pytest.fixture(scope="module")
def trials() -> Iterator[GrammarTrials]:
    trials = GrammarTrials(lambda: TOKENS, python_command("seesay.grammars.trial_child"))
    yield trials
    trials.close()


def schema(value: Any) -> Grammar:
    return Grammar(kind="json_schema", source=json.dumps(value))


def nest(depth: int) -> Any:
    value: Any = {"type": "integer"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    return value


NAUGHTY = [
    "",
    "\x00",
    '"',
    "\\",
    "a\nb",
    "__proto__",
    "constructor",
    "root",
    "::=",
    "\u202e",
    "😀" * 50,
    "a" * 5000,
    "$ref",
]
HOSTILE = {
    "recursion": schema({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}, "$ref": "#/$defs/a"}),
    "10,000 properties": schema({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(10_000)}}),
    "10,000 required": schema(
        {"type": "object", "properties": {f"p{i}": {} for i in range(5000)}, "required": [f"p{i}" for i in range(5000)]}
    ),
    "depth 60": schema(nest(60)),
    "depth 1000": schema(nest(300)),
    "nested brackets": Grammar(kind="json_schema", source="[" * 100_000),
    "exponential references": schema(
        {
            "$defs": {
                f"a{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{i + 1}"}] * 8, "minItems": 8}
                for i in range(30)
            }
            | {"a30": {"type": "null"}},
            "$ref": "#/$defs/a0",
        }
    ),
    "exponential regex": Grammar(kind="regex", source="((a{0,99}){0,99}){0,99}((b{0,99}){0,99}){0,99}"),
    "states": Grammar(kind="regex", source="(a|b)*a(a|b){400}"),
    "10,000 optional names": schema({"type": "object", "properties": {f"p{i}": {} for i in range(10_000)}}),
    "stars": Grammar(kind="regex", source="((((a*)*)*)*)*" * 40),
    "left recursion": Grammar(kind="ebnf", source='root ::= root root | "a" | ""'),
    "endless": Grammar(kind="ebnf", source="root ::= root"),
    "deep EBNF": Grammar(kind="ebnf", source="root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "no EBNF": Grammar(kind="ebnf", source="root ::= ::= ["),
    "naughty names": schema({"type": "object", "properties": {name: {"type": "null"} for name in NAUGHTY}}),
    "many choices": Grammar(kind="choice", source=json.dumps([f"choice number {i}" for i in range(4096)])),
}  # fmt: skip


AS_LONG_AS_THEY_MAY = ("10,000 properties", "10,000 required", "10,000 optional names")
"""Take as long as they may, as the grammar does that is given up while others are tried."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in AS_LONG_AS_THEY_MAY else ()) for name in HOSTILE]
)
def test_hostile_grammars_are_compiled_or_refused_within_limits(trials: GrammarTrials, name: str) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_cpu_s = time.process_time()
    try:
        trials.check(HOSTILE[name])
    except RequestError as error:
        assert error.param == "response_format" and error.message.startswith("response_format"), error.message
        assert "has ended" not in error.message
    assert time.process_time() - started_cpu_s < CPU_S  # in this process
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 256 << 10
    assert trials.check(Grammar(kind="regex", source="ab?")).kind == "lark"


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("root ::= root", "root"),
        ('root ::= root "a"', "root"),
        ('root ::= "a" root', "root"),
        ('root ::= "a" | x\nx ::= "b" (y | "c" x)\ny ::= x', "x"),
        ('root ::= x{0,2} "d"\nx ::= "::=" x', "x"),
        ("root ::= []", "root"),
        ('root ::= [^\\x00-\\U0010ffff] "a"', "root"),
    ],
)
def test_a_rule_without_an_end_is_refused_by_name(trials: GrammarTrials, source: str, rule: str) -> None:
    with pytest.raises(RequestError, match=f"from the rule '{rule}' no text can be made"):
        trials.check(Grammar(kind="ebnf", source=source))
    inside = {"type": "sequence", "elements": [{"type": "grammar", "grammar": source}]}
    tag = Grammar(kind="structural_tag", source=json.dumps({"format": inside}))
    with pytest.raises(RequestError, match=f"from the rule '{rule}' no text can be made"):
        trials.check(tag)


@pytest.mark.parametrize(
    "source",
    [
        'root ::= root "a" | "b"',
        'root ::= ""',
        "root ::= (root)? [\\]x(]",
        'root ::= x*\nx ::= "" | "a|b" x',
        'root ::= "a"\nunused ::= unused',
        'root ::= x{0,3} "(" (root ")" | "x ::= y")\nx ::= "\\"" [^"]',
    ],
)
def test_recursion_that_ends_is_taken(trials: GrammarTrials, source: str) -> None:
    assert trials.check(Grammar(kind="ebnf", source=source)).kind == "lark"


def test_what_the_compiler_says_comes_without_the_grammar(trials: GrammarTrials) -> None:
    with pytest.raises(RequestError, match=r"the grammar cannot be compiled: .*unknown") as caught:
        trials.check(Grammar(kind="ebnf", source="start: unknown\n" + "# more\n" * 50))
    assert "\n" not in caught.value.message and len(caught.value.message) < 500


def test_a_grammar_that_no_token_can_begin_is_refused() -> None:
    few = GrammarTrials(lambda: [b"a", b"b", b""], python_command("seesay.grammars.trial_child"))
    try:
        assert few.check(Grammar(kind="regex", source="[a-z]"))
        with pytest.raises(RequestError, match="no token of this model can begin"):
            few.check(Grammar(kind="regex", source="[c-z]"))
    finally:
        few.close()


def test_the_process_loads_neither_torch_nor_transformers(trials: GrammarTrials) -> None:
    assert trials.check(schema({"type": "object"})).kind == "lark"
    child = trials._child
    assert child is not None
    maps = Path(f"/proc/{child._process.pid}/maps").read_text()
    assert "llguidance" in maps and "libtorch" not in maps and "tokenizers" not in maps


def test_ctrl_c_in_the_terminal_does_not_reach_the_process(trials: GrammarTrials) -> None:
    trials.check(Grammar(kind="regex", source="c"))
    assert trials._child is not None
    assert os.getpgid(trials._child._process.pid) != os.getpgid(0)


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "larger than a pipe"])
def test_a_process_that_hangs_is_replaced_and_the_new_one_asked(is_large: bool) -> None:
    trials = GrammarTrials(lambda: TOKENS, python_command("seesay.grammars.trial_child"))
    try:
        trials.check(Grammar(kind="regex", source="c"))
        first = trials._child
        assert first is not None
        os.kill(first._process.pid, signal.SIGSTOP)
        trials.check(Grammar(kind="ebnf", source='root ::= "' + "d" * (100_000 if is_large else 1) + '"'))
        first._thread.join()
        assert first._silence.look()[0] < HELPER_LIMIT_S, "it was stopped, which no load explains"
        assert first._process.returncode == -signal.SIGKILL
        trials.check(Grammar(kind="regex", source="e"))
        assert trials._child is not first
    finally:
        trials.close()


def test_trials_end_with_the_process_that_asked_for_them(trials: GrammarTrials) -> None:
    trials.check(Grammar(kind="regex", source="f"))
    child = trials._child
    assert child is not None and child._process.stdin is not None

    def ask() -> None:
        with suppress(RequestError):
            trials.check(schema({"type": "object", "properties": {f"f{i}": {} for i in range(10_000)}}))

    pid, deadline_s = child._process.pid, time.monotonic() + 60
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while any(_used_s(int(fork)) for fork in children.read_text().split()):  # that of the first trial
        assert time.monotonic() < deadline_s
    thread = threading.Thread(target=ask)
    thread.start()
    while not (forks := [fork for fork in children.read_text().split() if _used_s(int(fork))]):
        assert time.monotonic() < deadline_s
    child._process.stdin.close()  # as when the process that asked has died
    child._process.wait(60)
    while any(used_s := [_used_s(int(fork)) for fork in forks]):
        assert max(used_s) < 0.8 * CPU_S, "a fork goes on until its limit"
        time.sleep(0.01)
    thread.join()


def _used_s(pid: int) -> float:
    """The processor time of a process that runs, else 0: one that has ended may wait to be noticed by its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return 0.0 if fields[0] in "ZX" else 0.01 + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_process_that_does_not_start_is_given_up() -> None:
    trials = GrammarTrials(lambda: TOKENS, (["sh", "-c", "kill -STOP $$"], {}))
    try:
        with pytest.raises(RequestError, match="has ended: send the request again"):
            trials.check(Grammar(kind="regex", source="a"))
    finally:
        trials.close()


def test_one_that_takes_too_long_is_given_up_while_others_are_tried(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = HOSTILE["10,000 properties"]
    errors: list[RequestError] = []

    def ask() -> None:
        try:
            trials.check(slow)
        except RequestError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    trials.check(Grammar(kind="regex", source="abc"))
    for thread in threads:
        thread.join()
    assert len({error.message for error in errors}) <= 1


def test_each_grammar_is_tried_once_and_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = GrammarTrials(lambda: TOKENS, python_command("seesay.grammars.trial_child"))
    asked: list[str] = []
    child = trials._find_child()
    ask = child.ask

    def note(grammar: Grammar, waiting: Cancellation) -> Any:
        asked.append(grammar.source)
        return ask(grammar, waiting)

    monkeypatch.setattr(child, "ask", note)
    same = Grammar(kind="regex", source="a+")
    threads = [threading.Thread(target=trials.check, args=(same,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bad = schema({"uniqueItems": True})
    for _ in range(2):
        with pytest.raises(RequestError, match="uniqueItems"):
            trials.check(bad)
    assert len(asked) == 2
    monkeypatch.setattr(trials_module, "MAX_KEPT_BYTES", 4000)
    for number in range(10):
        trials.check(Grammar(kind="regex", source=f"b{number}"))
    assert len(trials._known) <= 4
    trials.close()
    with pytest.raises(RequestError):
        trials.check(Grammar(kind="regex", source="after"))


def test_without_the_extra_the_error_names_it(trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"requires the package 'llguidance': pip install .*grammar"):
        trials.check(Grammar(kind="regex", source="a"))


def test_an_owner_with_hard_grammars_delays_nobody_elses() -> None:
    """Each of them takes as long as it may; a simple one of another owner is compiled meanwhile."""
    trials = GrammarTrials(lambda: TOKENS, python_command("seesay.grammars.trial_child"))
    threads = FairThreads(8, name="ask", max_per_owner=3)
    try:
        trials.check(Grammar(kind="regex", source="start"))
        hard = [
            schema({"type": "object", "properties": {f"p{i}": {} for i in range(10_000)}, "title": str(number)})
            for number in range(8)
        ]
        asked = [threads.submit("hard", trials.check, grammar) for grammar in hard]
        simple = threads.submit("simple", trials.check, Grammar(kind="regex", source="simple"))
        assert simple.result(60).kind == "lark"
        assert not any(one.done() for one in asked[3:])
    finally:
        trials.close()
        threads.close()


def make_object(num_properties: int, title: str) -> Grammar:
    """An object whose properties may be left out takes time that grows with the square of their number."""
    return schema({"type": "object", "properties": {f"p{i}": {} for i in range(num_properties)}, "title": title})


def test_hard_grammars_of_many_owners_delay_no_small_one() -> None:
    """They have forks of their own, once it is known that they take long, and begin again where these are in use."""
    num_hard = trial_child.MAX_QUICK + trial_child.MAX_SLOW
    trials = GrammarTrials(lambda: TOKENS, python_command("seesay.grammars.trial_child"))
    threads = FairThreads(num_hard + 1, name="ask")
    try:
        trials.check(Grammar(kind="regex", source="start"))
        hard = [make_object(10_000, str(number)) for number in range(num_hard)]
        asked = [threads.submit(number, trials.check, grammar) for number, grammar in enumerate(hard)]
        child = trials._find_child()
        wait_until(lambda: len(child._waiting) == num_hard)
        assert trials.check(Grammar(kind="regex", source="small")).kind == "lark"
        assert not any(one.done() for one in asked)
    finally:
        trials.close()
        threads.close()


def test_what_was_put_back_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes longer than the budget, and all of them together are more than may take long at a time."""
    command, environment = python_command("seesay.grammars.trial_child")
    code = (
        "from seesay.grammars import trial_child as child; child.BUDGET_S = child.PATIENCE_S = 0.02; "
        "child.MAX_SLOW = 1; child.main()"
    )
    trials = GrammarTrials(lambda: TOKENS, ([command[0], "-P", "-c", code], environment))
    threads = FairThreads(6, name="ask")
    try:
        asked = [threads.submit(None, trials.check, make_object(1500, str(number))) for number in range(6)]
        programs = [one.result(120) for one in asked]
        assert [program.kind for program in programs] == ["lark"] * 6
        assert sum(program.is_slow for program in programs) > 1
        assert not trials.check(Grammar(kind="regex", source="small")).is_slow
    finally:
        trials.close()
        threads.close()


def test_slow_programs_of_many_owners_delay_no_small_one() -> None:
    grammars = CompiledGrammars(lambda: TOKENS)
    slow = [replace(make_program(make_object(4000 + i, "")), is_slow=True) for i in range(6)]
    asked = [grammars.find(program, owner=i) for i, program in enumerate(slow)]
    assert grammars.find(make_program(Grammar(kind="regex", source="small")), owner="small").result(60)
    assert not any(one.done() for one in asked)
    assert all(one.result(120) for one in asked)
    grammars.close()


def test_an_object_with_many_optional_properties_can_be_written() -> None:
    """llguidance has four ways to go on for each of them, and gives up at 2,000 unless it is told otherwise."""
    grammars = CompiledGrammars(lambda: TOKENS)
    matcher = grammars.find(make_program(make_object(2000, ""))).result(60).make_matcher([END])
    row = MaskRow(matcher, np.array(list(b'{"p3": 1, "p1999": 2}'), dtype=np.int64))
    MaskThreads().fill([row], 257)
    assert row.error is None and row.is_masked
    grammars.close()


TOO_AMBIGUOUS = schema(
    {"anyOf": [{"type": "object", "properties": {f"p{i}_{kind}": {} for i in range(500)}} for kind in range(12)]}
)


def test_a_grammar_that_is_too_ambiguous_is_refused_before_the_answer(trials: GrammarTrials) -> None:
    with pytest.raises(RequestError, match="takes too much for one token, make it less ambiguous") as caught:
        trials.check(TOO_AMBIGUOUS)
    assert caught.value.param == "response_format"


def test_a_grammar_that_becomes_too_ambiguous_is_told_from_a_token_that_is_not_allowed() -> None:
    grammars = CompiledGrammars(lambda: TOKENS)
    program = make_program(TOO_AMBIGUOUS)
    matchers = [grammars.find(program).result(60).make_matcher([END]) for _ in range(2)]
    rows = [MaskRow(matcher, np.array(list(text))) for matcher, text in zip(matchers, (b"{", b"x"))]
    MaskThreads().fill(rows, 257)
    messages = [row.error.message for row in rows if row.error is not None]
    assert "takes too much for one token" in messages[0] and "does not allow token 120" in messages[1]
    grammars.close()


def test_large_grammars_leave_the_processors_to_others_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones do when they have taken long."""

    def wait(*args: object) -> None:
        time.sleep(60)
        os._exit(0)

    monkeypatch.setattr(trial_child, "_try", wait)
    started = [trial_child._start(TokenTable(TOKENS), 0, "regex", "a" * size, False) for size in (100, 60_000)]
    try:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        found = [os.getpriority(os.PRIO_PROCESS, trial.pid) - own for trial in started]
        assert found == [0, min(trial_child.NICENESS, 19 - own)]
    finally:
        for trial in started:
            trial_child._finish(trial)


def test_what_takes_long_until_its_limit_is_over_and_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all forks for what takes long are in use, too."""
    monkeypatch.setattr(trial_child, "WALL_S", 0.0)
    trials = begin_endless(TokenTable(TOKENS), 7, monkeypatch)
    [(number, answer)] = trials.advance(())
    assert number == 7 and trial_child.TOO_SLOW in answer[0] and not trials.running
    trials.begin()
    assert not trials.running


def test_patience_is_measured_in_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a small grammar waits long for a processor."""
    ready, begin = os.pipe()

    def wait_and_work(*args: object) -> None:
        os.read(ready, 1)
        while time.process_time() < trial_child.PATIENCE_S:
            pass
        time.sleep(60)
        os._exit(0)

    monkeypatch.setattr(trial_child, "_try", wait_and_work)
    trial = trial_child._start(TokenTable(TOKENS), 0, "regex", "a", False)
    try:
        time.sleep(2 * trial_child.PATIENCE_S)
        assert trial.find_cpu_s() < trial_child.PATIENCE_S
        os.write(begin, b"x")
        until_s = time.monotonic() + 60
        while trial.find_cpu_s() < trial_child.PATIENCE_S:
            assert time.monotonic() < until_s
            time.sleep(0.05)
    finally:
        trial_child._finish(trial)
        os.waitpid(trial.pid, 0)
        os.close(ready)
        os.close(begin)
    assert trial.find_cpu_s() == 0.0, "it has ended"


def test_a_grammar_that_takes_too_much_ends_its_own_row_and_is_compiled_anew() -> None:
    """Its expressions are so many that llguidance gives up in the middle of an answer."""
    grammars = CompiledGrammars(lambda: TOKENS)
    many = schema({"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500})
    program, other = make_program(many), make_program(Grammar(kind="regex", source="[ab]*"))
    compiled = grammars.find(program).result(60)
    text = b'"' + b"This is a summary of the example service. " * 12
    rows = [
        MaskRow(compiled.make_matcher([END]), np.array(list(text), dtype=np.int64)),
        MaskRow(grammars.find(other).result(60).make_matcher([END]), np.array([], dtype=np.int64)),
    ]
    MaskThreads().fill(rows, 257)
    assert rows[1].error is None and rows[1].is_masked
    if rows[0].error is not None:
        assert rows[0].error.message.startswith("response_format: ")
    grammars.close()


def test_an_owner_with_many_grammars_loses_his_own() -> None:
    grammars = CompiledGrammars(lambda: TOKENS, max_kept=6)
    few = [make_program(Grammar(kind="regex", source=f"few{number}")) for number in range(2)]
    kept = [grammars.find(program, owner="few").result(60) for program in few]
    many = [make_program(Grammar(kind="regex", source=f"many{number}")) for number in range(12)]
    for program in many:
        last = grammars.find(program, owner="many").result(60)
    assert [grammars.find(program, owner="other").result() for program in few] == kept
    assert grammars.find(many[-1], owner="many").result() is last and grammars.num_kept <= 6
    grammars.close()


def test_compiled_grammars_are_shared_and_bounded() -> None:
    grammars = CompiledGrammars(lambda: TOKENS, max_kept=5)
    first = make_program(Grammar(kind="regex", source="[ab]+c"))
    compiled = grammars.find(first).result(60)
    assert grammars.find(first).result() is compiled and grammars.find(first, forces=True).result(60) is not compiled
    for number in range(12):
        grammars.find(make_program(Grammar(kind="regex", source=f"[a-z]{{{number},99}}x"))).result(60)
    assert 0 < grammars.num_kept <= 5
    matcher = compiled.make_matcher([END])

    def mask(text: bytes) -> tuple[MaskRow, Any]:
        row = MaskRow(matcher, np.array(list(text), dtype=np.int64))
        return row, MaskThreads().fill([row], 257)

    row, bits = mask(b"a")
    assert row.is_masked and not bits[0, END // 32] >> (END % 32) & 1
    row, bits = mask(b"ac")
    assert bits[0, END // 32] >> (END % 32) & 1 and not bits[0, :8].any()  # only the end may follow
    row, bits = mask(b"acx")
    assert row.error is not None and "does not allow token 120" in row.error.message
    grammars.close()


def test_the_compiler_collects_no_stack_traces() -> None:
    """It would make one for each part of a schema that allows no value, in more time than the rest takes."""
    command, environment = python_command("seesay.grammars.compile")
    code = "import seesay.grammars.compile, os; print(os.environ['RUST_LIB_BACKTRACE'])"
    for given, expected in (({}, "0"), ({"RUST_LIB_BACKTRACE": "1"}, "1")):
        run = subprocess.run(
            [command[0], "-c", code],
            env={**environment, "RUST_BACKTRACE": "1", **given},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert run.stdout.strip() == expected


def test_the_process_is_of_our_session_but_not_of_our_group(trials: GrammarTrials) -> None:
    """Linux shares the processors among sessions first, so in one of its own no niceness would yield to the server."""
    trials.check(Grammar(kind="regex", source="session"))
    pid = trials._find_child()._process.pid
    assert os.getsid(pid) == os.getsid(0) and os.getpgid(pid) == pid


def test_an_answer_does_not_wait_for_its_fork_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processors are busy, a fork that was killed takes long to end, and other trials would wait for it."""
    fork = subprocess.Popen(["sleep", "5"])
    reading, writing = os.pipe()
    os.close(writing)
    answer = msgspec.msgpack.encode(("", "start: A", ["format"]))
    trial = trial_child._Trial((1, "regex", "A", False), fork.pid, reading, time.monotonic(), data=answer)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: None)
        assert trial_child._finish(trial) == ("", "start: A", ["format"], False)
    assert fork.poll() is None
    fork.kill()
    assert fork.wait(60) == -signal.SIGKILL
