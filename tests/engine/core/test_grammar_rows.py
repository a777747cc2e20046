"""The rules of rows: for which requests there are any, and what is waited for before."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seesay.config.grammar import Grammar
from seesay.engine.core.grammars.grammar_rows import GrammarRows
from seesay.engine.core.grammars.jumps import JumpRule
from seesay.engine.core.grammars.row_matcher import RowMatcher
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.token_messages import TokenRequest
from seesay.errors import RequestError
from seesay.grammars.row_rule import RowRule
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import Row, StepPlan
from seesay.values import MultimodalInput
from seesay.values.requests import ThoughtRule

GRAMMAR = Grammar(kind="regex", source="[ab]+")
THOUGHT = ThoughtRule(begin="<think>", end="</think>", begin_ids=(60,), end_ids=(61,), is_open=True, max_tokens=4)
EOS, SPECIAL, IN_TEXTS = 9, 10, 97
TOKENS = [{EOS: b"", SPECIAL: b"\xff<end>"}.get(number, bytes([number])) for number in range(256)]


class Compiling:
    """Compiles nothing: a test says when each part is there."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.grammar: Future[Any] = Future()
        self.words: Future[Any] = Future()
        self.overshoots: Future[Any] = Future()
        self.num_closed = 0

    def finish(self, *names: str) -> None:
        for name in names:
            endings: list[Any] = []
            table = SimpleNamespace(tokens=TOKENS)
            made = SimpleNamespace(table=table, endings=endings, make_matcher=partial(_make_matcher, endings))
            getattr(self, name).set_result(made)

    def find(self, what: Any, **options: Any) -> Future[Any]:
        self.asked.append((what, options))
        return self.words if isinstance(what, tuple) else self.grammar

    def find_overshoots(self, end: str) -> Future[Any]:
        self.asked.append((end,))
        return self.overshoots

    def close(self) -> None:
        self.num_closed += 1


def _make_matcher(endings: list[Any], found: Any) -> str:
    endings.append(found)
    return "matcher"


@pytest.fixture
def compiling() -> Any:
    return Compiling()


@pytest.fixture
def rows(compiling: Any) -> GrammarRows:
    return GrammarRows(
        compiling,
        vocab_size=256,
        spell=lambda token_id: TOKENS[token_id],
        bad_words=compiling,
        jumps=JumpRule(session_len=99, has_graphs=False),
    )


def make_live(grammar: Grammar | None = None, thought: ThoughtRule | None = None, **options: Any) -> LiveRequest:
    prompt = MultimodalInput(token_ids=np.arange(3), positions=np.arange(3), next_position=3)
    params = SamplingParams(**{"eos_token_ids": (EOS,), **options})
    return LiveRequest.make(
        TokenRequest(request_id=4, prompt=prompt, params=params, owner="me", grammar=grammar, thought=thought)
    )


def test_a_request_without_rules_has_none(rows: GrammarRows, compiling: Any) -> None:
    assert rows.take(make_live(no_repeat_ngram_size=3, logit_bias={1: 1.0})) is None
    assert not rows._rules and not compiling.asked


def test_a_grammar_is_waited_for_and_then_the_rule(rows: GrammarRows, compiling: Any) -> None:
    live = make_live(GRAMMAR)
    assert rows.take(live) is compiling.grammar and not rows._rules
    assert compiling.asked == [(GRAMMAR, {"owner": "me", "forces": True})]
    compiling.finish("grammar")
    assert rows.take(live) is None
    made: Any = rows._rules[4]
    assert made.rule == "matcher" and made.sequence is live.sequence
    rows.drop(4)
    rows.drop(4)
    assert not rows._rules


@pytest.mark.parametrize("finished", [("grammar",), ("overshoots",), ("words",), ("grammar", "words")])
def test_all_that_a_rule_is_made_of_is_waited_for(rows: GrammarRows, compiling: Any, finished: tuple[str, ...]) -> None:
    compiling.finish(*finished)
    live = make_live(GRAMMAR, THOUGHT, bad_words=("no",))
    waited = rows.take(live)
    assert waited is not None and not waited.done() and not rows._rules
    assert ("</think>",) in compiling.asked


@pytest.mark.parametrize("options", [{"allowed_token_ids": (5,)}, {"no_repeat_ngram_size": 1}])
def test_masks_that_are_no_grammars_need_nothing_compiled(rows: GrammarRows, options: dict[str, Any]) -> None:
    assert rows.take(make_live(**options)) is None
    assert isinstance(rows._rules[4].rule, RowMatcher)


@pytest.mark.parametrize(
    "options",
    [{"bad_token_ids": (3,)}, {"min_new_tokens": 2}, {"no_repeat_ngram_size": 3}, {"allowed_token_ids": (97,)}],
)
def test_beside_other_restrictions_what_is_left_is_counted(
    rows: GrammarRows, compiling: Any, options: dict[str, Any]
) -> None:
    compiling.finish("grammar")
    assert rows.take(make_live(GRAMMAR, **options)) is None
    assert isinstance(rows._rules[4].rule, RowMatcher)


def test_a_thought_alone_is_a_rule(rows: GrammarRows, compiling: Any) -> None:
    assert rows.take(make_live(thought=THOUGHT)) is None
    assert isinstance(rows._rules[4].rule, RowRule) and not compiling.asked


@pytest.mark.parametrize(("grammar", "named"), [(None, "max_thinking_tokens"), (GRAMMAR, "response_format")])
def test_what_leaves_no_token_is_named(rows: GrammarRows, compiling: Any, grammar: Grammar | None, named: str) -> None:
    """A thought of four tokens has to end now, with a token that is not allowed."""
    compiling.finish("grammar", "overshoots")
    assert rows.take(make_live(grammar, THOUGHT, allowed_token_ids=(97,))) is None
    matcher: Any = rows._rules[4].rule
    matcher.follow(np.full(4, 97))
    with pytest.raises(RequestError, match=named):
        matcher.finish(np.zeros(9, np.int32))


def test_a_thought_before_a_grammar(rows: GrammarRows, compiling: Any) -> None:
    live = make_live(GRAMMAR, THOUGHT)
    compiling.finish("grammar")
    assert rows.take(live) is compiling.overshoots
    overshoots: Any = compiling.overshoots
    overshoots.set_result({b"": [IN_TEXTS]})
    assert rows.take(live) is None
    rule: Any = rows._rules[4].rule
    assert isinstance(rule, RowRule) and compiling.grammar.result().endings == [(EOS,)]
    words = np.zeros(9, np.int32)
    rule.follow(np.empty(0, np.int64))
    assert rule.finish(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:256]
    assert np.flatnonzero(bits == 0).tolist() == [EOS, IN_TEXTS], "no end, and nothing behind the marker"


def test_a_stop_token_that_stands_in_texts_is_no_end_of_the_grammar(rows: GrammarRows, compiling: Any) -> None:
    compiling.finish("grammar")
    rows.take(make_live(GRAMMAR, stop_token_ids=(IN_TEXTS,)))
    rows.take(make_live(GRAMMAR, eos_token_ids=(IN_TEXTS, EOS)))
    rows.take(make_live(GRAMMAR, eos_token_ids=(), stop_token_ids=(IN_TEXTS,)))
    rows.take(make_live(GRAMMAR, stop_token_ids=(256, 300)))
    rows.take(make_live(GRAMMAR, stop_token_ids=(SPECIAL,)))
    assert [set(found) for found in compiling.grammar.result().endings] == [
        {EOS}, {IN_TEXTS, EOS}, {IN_TEXTS}, {EOS, 256, 300}, {EOS, SPECIAL},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"logit_bias": {1: 2.0}}, {"bad_token_ids": (3,)}, {"stop_token_ids": (8,)}, {"bad_words": ("no",)}]
)
def test_text_is_not_forced_where_single_tokens_are_weighed(
    rows: GrammarRows, compiling: Any, options: dict[str, Any]
) -> None:
    rows.take(make_live(GRAMMAR, **options))
    assert compiling.asked[0] == (GRAMMAR, {"owner": "me", "forces": False})


def test_text_is_not_forced_where_steps_bring_one_token_of_a_row(compiling: Any) -> None:
    GrammarRows(compiling, vocab_size=256).take(make_live(GRAMMAR))
    assert compiling.asked == [(GRAMMAR, {"owner": "me", "forces": False})]


def test_an_engine_without_the_parts_says_which() -> None:
    rows = GrammarRows(None, vocab_size=256)
    for live, named in ((make_live(GRAMMAR), "grammars"), (make_live(bad_words=("no",)), "bad_words")):
        with pytest.raises(RequestError, match=f"made without {named}"):
            rows.take(live)


def test_close_frees_rules_and_what_compiles(rows: GrammarRows, compiling: Any) -> None:
    rows.take(make_live(thought=THOUGHT))
    rows.forget()
    assert not rows._rules
    rows.take(make_live(thought=THOUGHT))
    rows.masks.few_rows, before = 0, set(threading.enumerate())
    begun = rows.masks.begin(StepPlan(rows=(Row(4, 6, 1, True),)))
    rows.close()
    assert not rows._rules and compiling.num_closed == 2
    assert begun is not None and begun.bits.done() and set(threading.enumerate()) <= before
