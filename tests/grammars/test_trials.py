"""Grammars are tried before requests are admitted: hostile ones are bounded in time and memory, at nobody's cost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grammars.byte_grammar import END

from seesay.config.grammar import Grammar
from seesay.engine.process.python import python_command
from seesay.errors import MissingExtraError, RequestError
from seesay.grammars import trials as trials_module
from seesay.grammars.masks import CompiledGrammars, MaskRow, MaskThreads, Matcher
from seesay.grammars.trial_child import CPU_S
from seesay.grammars.trials import GrammarTrials

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
    "stars": Grammar(kind="regex", source="((((a*)*)*)*)*" * 40),
    "left recursion": Grammar(kind="ebnf", source='root ::= root root | "a" | ""'),
    "endless": Grammar(kind="ebnf", source="root ::= root"),
    "deep EBNF": Grammar(kind="ebnf", source="root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "no EBNF": Grammar(kind="ebnf", source="root ::= ::= ["),
    "naughty names": schema({"type": "object", "properties": {name: {"type": "null"} for name in NAUGHTY}}),
    "many choices": Grammar(kind="choice", source=json.dumps([f"choice number {i}" for i in range(4096)])),
}  # fmt: skip


AS_LONG_AS_THEY_MAY = ("states", "10,000 properties", "10,000 required")
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
    assert trials.check(Grammar(kind="regex", source="ab?")).kind == "regex"


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
        'root ::= TagDispatch(("<f>", x))\nx ::= "a" x | "b"',
    ],
)
def test_recursion_that_ends_is_taken(trials: GrammarTrials, source: str) -> None:
    assert trials.check(Grammar(kind="ebnf", source=source)).kind == "ebnf"


def test_what_the_compiler_says_comes_without_a_place_in_its_sources(trials: GrammarTrials) -> None:
    tag = Grammar(kind="structural_tag", source=json.dumps({"format": {"type": "sequence", "elements": []}}))
    with pytest.raises(RequestError, match="the grammar cannot be compiled: Invalid structural tag error: Sequence"):
        trials.check(tag)


def test_a_grammar_that_no_token_can_begin_is_refused() -> None:
    few = GrammarTrials(lambda: [b"a", b"b", b""], python_command("seesay.grammars.trial_child"))
    try:
        assert few.check(Grammar(kind="regex", source="[a-z]"))
        with pytest.raises(RequestError, match="no token of this model can begin"):
            few.check(Grammar(kind="regex", source="[c-z]"))
    finally:
        few.close()


def test_the_process_loads_neither_torch_nor_transformers(trials: GrammarTrials) -> None:
    assert trials.check(schema({"type": "object"})).kind == "json_schema"
    child = trials._child
    assert child is not None
    maps = Path(f"/proc/{child._process.pid}/maps").read_text()
    assert "tvm_ffi" in maps and "libtorch" not in maps and "tokenizers" not in maps


@pytest.mark.parametrize("code", ["torch.__version__", "torch.nothing(1).more", "class A(torch.B): pass"])
def test_xgrammar_is_imported_with_torch_where_it_must_be(tmp_path: Path, code: str) -> None:
    """A version that takes a real value of torch as it is imported gets torch itself, with what it imported of its
    own."""
    for name, text in (("torch", "__version__ = '9'"), ("xgrammar/part", f"import torch\n{code}"), ("tvm_ffi", "")):
        file = tmp_path / (f"{name}.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (tmp_path / "xgrammar" / "__init__.py").write_text("from . import part")
    script = (
        "import sys; from seesay.grammars.compiler_import import import_compiler; import_compiler();"
        "torch = sys.modules['torch']; print(torch and torch.__version__, hasattr(sys.modules['xgrammar'], 'part'))"
    )
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["9" if "__version__" in code else "None", "True"]


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
        first._silence.limit_s = 0.2
        os.kill(first._process.pid, signal.SIGSTOP)
        trials.check(Grammar(kind="ebnf", source='root ::= "' + "d" * (100_000 if is_large else 1) + '"'))
        first._thread.join()
        assert first._process.returncode == -signal.SIGKILL
        trials.check(Grammar(kind="regex", source="e"))
        assert trials._child is not first
    finally:
        trials.close()


def test_one_that_takes_too_long_is_given_up_while_others_are_tried(
    trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Grammar(kind="regex", source="(a|b)*a(a|b){9000}(c|d)*c(c|d){9000}")
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

    def note(program: Grammar) -> str:
        asked.append(program.source)
        return ask(program)

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
    assert len(asked) == 1
    monkeypatch.setattr(trials_module, "MAX_KEPT_BYTES", 4000)
    for number in range(10):
        trials.check(Grammar(kind="regex", source=f"b{number}"))
    assert len(trials._known) <= 4
    trials.close()
    with pytest.raises(RequestError):
        trials.check(Grammar(kind="regex", source="after"))


def test_without_the_extra_the_error_names_it(trials: GrammarTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"requires the package 'xgrammar': pip install .*grammar"):
        trials.check(Grammar(kind="regex", source="a"))


class SlowMatcher(Matcher):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def fill(self, generated_ids: Any, bits: Any, row: int) -> bool:
        time.sleep(self._seconds)
        bits[row] = row
        return True


def test_a_mask_that_takes_too_long_ends_its_own_row() -> None:
    threads = MaskThreads(max_mask_s=0.5)
    rows = [MaskRow(SlowMatcher(30.0 if index == 3 else 0.0), None) for index in range(40)]  # type: ignore[arg-type]
    bits = threads.fill(rows, 257)
    assert [index for index, row in enumerate(rows) if row.error is not None] == [3]
    assert all(row.is_masked and bits[index, 0] == index for index, row in enumerate(rows) if index != 3)
    again = [MaskRow(SlowMatcher(0.0), None)]  # type: ignore[arg-type]
    assert threads.fill(again, 257).shape == (1, 9) and again[0].error is None


def test_compiled_grammars_are_shared_and_bounded() -> None:
    import numpy as np

    grammars = CompiledGrammars(lambda: TOKENS, max_bytes=300_000)
    first = Grammar(kind="regex", source="[ab]+c")
    compiled = grammars.find(first).result()
    assert grammars.find(first).result() is compiled
    for number in range(40):
        grammars.find(Grammar(kind="regex", source=f"[a-z]{{{number},99}}x")).result()
    assert 0 < grammars.num_bytes <= 300_000
    matcher, bits = Matcher(compiled, [END]), np.zeros((1, 9), dtype=np.int32)
    assert matcher.fill(np.array([ord("a")]), bits, 0) and not bits[0, END // 32] >> (END % 32) & 1
    assert matcher.fill(np.array([ord("a"), ord("c")]), bits, 0)
    assert bits[0, END // 32] >> (END % 32) & 1 and not bits[0, :8].any()  # only the end may follow
    with pytest.raises(ValueError, match="does not allow token 120"):
        matcher.fill(np.array([ord("a"), ord("c"), ord("x")]), bits, 0)
    grammars.close()
