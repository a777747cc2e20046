"""Answers of the built-in model under grammars, at temperature 1: all that ended parse and are valid, in both process
forms, ahead or not, preempted, several to a prompt, with pictures, beside others."""

from __future__ import annotations

import errno
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import jsonschema
import pytest
from pairs import num_examples
from PIL import Image

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.front.response import Response
from seesay.errors import ConfigError
from seesay.grammars.trials import GrammarTrials
from seesay.llm.running.launched_step import LaunchedStep, StepResult
from seesay.llm.scheduling import text_follower
from seesay.system.python import python_command

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog", 3, None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,5}$"}, "maxItems": 3},
        "at": {"type": "string", "format": "date"},
        "boss": {"anyOf": [{"$ref": "#/$defs/boss"}, {"type": "null"}]},
    },
    "required": ["name", "age", "boss"],
    "$defs": {
        "boss": {"type": "object", "properties": {"rank": {"type": "number", "minimum": 0}}, "required": ["rank"]}
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "schema": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    "object": {"type": "json_object"},
    "regex": {"type": "regex_schema", "regex_schema": r"[a-c]{2,4}-\d{2}( end)?"},
    "grammar": {
        "type": "grammar",
        "grammar": 'root ::= "<" item ("," item){0,2} ">"\nitem ::= [a-z]{1,3} | "(" item ")"',
    },
    "choice": {"type": "choice", "choice": ["yes", "no", "I see no picture. Please"]},
    "tag": {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [
                {"type": "const_string", "value": "A: "},
                {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
            ],
        },
    },
}  # fmt: skip


def check(name: str, text: str) -> None:
    if name == "schema":
        jsonschema.validate(json.loads(text), PERSON, format_checker=jsonschema.FormatChecker())
    elif name == "object":
        assert isinstance(json.loads(text), dict)
    elif name == "regex":
        assert re.fullmatch(r"[a-c]{2,4}-[0-9]{2}( end)?", text)
    elif name == "grammar":
        item = r"\(*[a-z]{1,3}\)*"
        assert re.fullmatch(f"<{item}(,{item}){{0,2}}>", text) and text.count("(") == text.count(")")
    elif name == "choice":
        assert text in FORMS["choice"]["choice"]
    else:
        assert text.startswith("A: ") and len(json.loads(text[3:])) <= 3


EXAMPLES = {
    "schema": '{"name": "Tom", "age": 31, "kind": "cat", "tags": ["ab", "cd"], "boss": {"rank": 2}}',
    "object": '{"a": 1, "b": [1, 2, 3], "c": {"d": "e"}}',
    "regex": "abc-12 end",
    "grammar": "<ab,((cd)),efg>",
    "choice": "I see no picture. Please",
    "tag": "A: [12, 13, 14]",
}
NARROW = {"top_k": 4, "max_new_tokens": 60}
"""Of thousands of tokens that are almost equally likely, the last bit of a logit would decide which is drawn."""


def drawn(form: dict[str, Any] | None, seed: int, **options: Any) -> GenerationConfig:
    options = {"top_k": 0, "max_new_tokens": 160, **options}
    return GenerationConfig(response_format=form, do_sample=True, temperature=1.0, random_seed=seed, **options)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    with pipeline("seesay-demo", EngineConfig(device_type="cpu", async_scheduling=True, session_len=1024)) as pipe:
        yield pipe


def answer(pipe: Pipeline, num: int, **options: Any) -> list[str]:
    """Texts of `num` answers to each form, and of a plain one beside each. All that ended are valid."""
    names = [name for name in FORMS for _ in range(num)]
    configs = [drawn(FORMS[name], seed, **options) for seed, name in enumerate(names)]
    plain = GenerationConfig(max_new_tokens=12)
    answers = pipe(["Say something"] * (len(names) + 2), gen_config=[*configs, plain, plain])
    num_ended = 0
    for name, one in zip(names, answers, strict=False):
        assert one.finish_reason in ("stop", "length"), one
        if one.finish_reason == "stop":
            num_ended += 1
            check(name, one.text)
    assert 2 * num_ended >= len(names)
    assert [one.text for one in answers[-2:]] == [pipe("Say something", gen_config=plain).text] * 2
    return [one.text for one in answers]


def test_all_answers_that_ended_are_valid(pipe: Pipeline) -> None:
    answer(pipe, num_examples(15))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_thousands_of_answers_with_proposals_are_valid(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that is forced comes at once, and tokens that stood in the prompt or the answer are proposed wherever any
    did, right or wrong. `--requests 10000` is a long run."""
    wanted = pytestconfig.getoption("requests") or 1000
    monkeypatch.setattr(text_follower, "LEAST_RATE", 0)
    options: dict[str, Any] = {"async_scheduling": True, "session_len": 1024, "max_batch_size": 32}
    with pipeline("seesay-demo", EngineConfig(device_type="cpu", speculative={"method": "ngram"}, **options)) as pipe:
        propose_always(pipe)
        num_ended = 0
        for first in range(0, 30 * wanted, 96):
            names = [name for name in FORMS for _ in range(16)]
            prompts = [f"Say this: {EXAMPLES[name]} {EXAMPLES[name]}" for name in names]
            configs = [drawn(FORMS[name], first + i, top_k=(0, 2, 4)[i % 3]) for i, name in enumerate(names)]
            for name, one in zip(names, pipe(prompts, gen_config=configs), strict=True):
                assert one.finish_reason in ("stop", "length"), one
                if one.finish_reason == "stop":
                    check(name, one.text)
                    num_ended += 1
            if num_ended >= wanted:
                break
        stats = pipe.engine.stats()
    print(
        f"{num_ended} answers, {stats.total_jumped_tokens} tokens at once, {stats.total_draft_tokens} proposed, "
        f"{stats.total_accepted_tokens} accepted"
    )
    assert num_ended >= wanted
    assert stats.total_jumped_tokens > wanted
    assert stats.total_draft_tokens > stats.total_accepted_tokens > wanted / 4


def propose_always(pipe: Pipeline) -> None:
    """Let texts propose tokens however few steps that saves."""
    core: Any = pipe.engine.core
    speculation = core.steps.speculation
    speculation._rule = replace(speculation._rule, least_saved=0)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"async_scheduling": False, "max_prefill_token_num": 7, "num_gpu_blocks": 10, "block_size": 16},
            marks=pytest.mark.slow,  # test_thoughts.py has it, too
        ),
        {"engine_process": True},
    ],
    ids=["preempted", "process"],
)
def test_answers_are_the_same_however_they_are_computed(pipe: Pipeline, options: dict[str, Any]) -> None:
    expected = answer(pipe, 2, **NARROW)
    options = {"session_len": 384, "eager_mode": True, **options}  # a graph's steps seldom give way to a jump
    with pipeline("seesay-demo", EngineConfig(device_type="cpu", **options)) as other:
        assert answer(other, 2, **NARROW) == expected
        assert other._engine.stats().total_jumped_tokens > 0
        if "num_gpu_blocks" in options:
            assert other._engine.stats().total_preemptions > 0


@pytest.mark.parametrize("num_rows", [1, 6])
def test_a_failed_step_changes_no_answer(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch, num_rows: int) -> None:
    """What was launched behind the failed step began with its tokens, and is computed again, too."""
    configs = [drawn(FORMS[name], 3, **NARROW) for name in list(FORMS)[:num_rows]]
    expected = [one.text for one in pipe(["Well?"] * num_rows, gen_config=configs)]
    collect, calls = LaunchedStep.collect, count(1)

    def fail(step: LaunchedStep) -> StepResult:
        if next(calls) % 5 == 0 and len(step.step.rows) == num_rows:
            raise RuntimeError("a bad moment")
        return collect(step)

    monkeypatch.setattr(LaunchedStep, "collect", fail)
    found = pipe(["Well?"] * num_rows, gen_config=configs)
    assert next(calls) > 5
    if num_rows > 1:
        assert [one.text for one in found] == expected
    else:  # one row that fails alone is at fault itself
        assert found[0].finish_reason == "error" and "a bad moment" in found[0].text


def test_pictures_and_streams(pipe: Pipeline) -> None:
    picture = Image.new("RGB", (64, 64), "red")
    for name, form in FORMS.items():
        pieces = list(pipe.stream_infer([("Describe it", picture)], gen_config=drawn(form, 5)))
        if pieces[-1].finish_reason == "stop":
            check(name, "".join(piece.text for piece in pieces))


def test_other_options_hold_within_the_grammar(pipe: Pipeline) -> None:
    form = {"type": "regex_schema", "regex_schema": "(yes|no)( indeed)*"}
    [no] = pipe._engine.tokenizer.encode("no")[:1]
    biased = pipe("?", gen_config=drawn(form, 1, logit_bias={no: 100.0}, stop_words=[" indeed"]))
    assert biased.text == "no" and biased.finish_reason == "stop"
    banned = [pipe("?", gen_config=drawn(form, seed, bad_token_ids=[no], logprobs=2)) for seed in range(4)]
    assert all(re.fullmatch("(yes|n)?.*", one.text) and one.logprobs for one in banned)
    finite: list[int] = []

    def process(token_ids: Any, logits: Any) -> Any:
        finite.append(int((logits > -1e30).sum()))
        return logits

    pipe("?", gen_config=drawn(form, 1, logits_processors=[process]))
    assert 0 < finite[0] < 20  # a processor sees what the grammar left
    long = pipe("?", gen_config=drawn({"type": "choice", "choice": ["yes"]}, 1, min_new_tokens=100))
    assert long.finish_reason == "error" and "min_new_tokens" in long.text


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.schema is required"),
        ({"type": "json_schema", "json_schema": {"schema": 3}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "schema": {"const": b"x"}}, "response_format.schema .*: bytes is not a JSON value"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, "strict"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "odd": 1}}, "odd"),
        ({"type": "regex_schema", "regex_schema": ""}, "regex_schema"),
        ({"type": "choice", "choice": "yes"}, "choice"),
        ({"type": "choice", "choice": []}, "choice"),
        ({"type": "structural_tag"}, "structural_tag"),
        ({"type": "grammar", "grammar": "x" * 300_000}, "characters"),
    ],
)
def test_a_form_that_is_not_known_is_refused(form: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        GenerationConfig(response_format=form)
    with pytest.raises(ConfigError, match="ignore_eos"):
        GenerationConfig(response_format=FORMS["object"], ignore_eos=True)


def test_a_grammar_that_cannot_be_tried_ends_its_request(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails: here there is no descriptor to read the tokens' file with."""

    def fail() -> list[bytes]:
        raise OSError(errno.EMFILE, "Too many open files")

    trials = GrammarTrials(fail, python_command("seesay.grammars.trial_child"))
    monkeypatch.setattr(pipe._engine._preparer.answers, "_grammars", trials)
    answered = threading.Event()
    found: list[Response] = []

    def ask() -> None:
        found.append(pipe("hi", GenerationConfig(response_format={"type": "regex_schema", "regex_schema": "[ab]"})))
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    assert answered.wait(60), "it has no final answer"
    assert found[0].finish_reason == "error" and "Too many open files" in str(found[0].error)


def test_a_grammar_that_was_tried_does_not_wait_for_others(pipe: Pipeline) -> None:
    """Trials of new grammars take turns in threads of their own."""
    known = GenerationConfig(response_format={"type": "regex_schema", "regex_schema": "[ab]{3}"}, max_new_tokens=8)
    assert pipe("hi", known).finish_reason == "stop"
    engine = pipe._engine
    is_over = threading.Event()
    trials = [engine._preparation._grammar_threads.submit(None, is_over.wait, 60) for _ in range(3)]
    try:
        answers: list[Response] = []
        asking = threading.Thread(target=lambda: answers.append(pipe("hi", known)), daemon=True)
        asking.start()
        asking.join(30)
        assert not any(trial.done() for trial in trials) and [each.finish_reason for each in answers] == ["stop"]
    finally:
        is_over.set()
