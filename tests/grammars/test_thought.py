"""Thoughts are found in tokens however their markers are cut, and a row's rule goes from the thought to the grammar."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from grammars.byte_grammar import END

from seesay.config.grammar import Grammar
from seesay.errors import RequestError
from seesay.grammars.masks import CompiledGrammars, MaskRow, MaskThreads
from seesay.grammars.program import make_program
from seesay.grammars.row_rule import RowRule
from seesay.grammars.thought import Phase, ThoughtTracker
from seesay.values import ThoughtRule

BEGIN, FINISH = 257, 258
PIECES = [b"</", b"think>", b"k>\n", b">{", b"  <th", b"<", b"b>", b""]
TOKENS = [*(bytes([i]) for i in range(256)), b"", b"", b"", *PIECES]
"""Tokens: bytes, the end of an answer, the markers as special tokens, and pieces of them."""


def make_rule(**options: object) -> ThoughtRule:
    fields = {"begin": "<think>", "end": "</think>", "begin_ids": (BEGIN,), "end_ids": (FINISH,), **options}
    return ThoughtRule(**fields)  # type: ignore[arg-type]


def spelled(text: str) -> list[int]:
    return list(text.encode())


def track(token_ids: Sequence[int], **options: object) -> ThoughtTracker:
    tracker = ThoughtTracker(make_rule(**options), TOKENS.__getitem__)
    tracker.follow(token_ids)
    return tracker


@pytest.mark.parametrize(
    ("token_ids", "phase", "num_tokens", "stop"),
    [
        ([], Phase.BEFORE, 0, 0),
        (spelled(" \n"), Phase.BEFORE, 0, 0),
        (spelled("<thin"), Phase.BEFORE, 0, 0),
        (spelled("<thing>"), Phase.BEHIND, 0, 0),
        (spelled("no <think>"), Phase.BEHIND, 0, 0),
        ([BEGIN, *spelled("abc")], Phase.INSIDE, 3, 0),
        ([*spelled("\n"), BEGIN, *spelled("abc"), FINISH, *spelled("<think>x")], Phase.BEHIND, 3, 6),
        ([*spelled("<think>abc</think>"), BEGIN], Phase.BEHIND, 3, 18),
        ([BEGIN, FINISH], Phase.BEHIND, 0, 2),
        ([BEGIN, *spelled("a</</think>b")], Phase.BEHIND, 3, 12),
        ([TOKENS.index(b"  <th"), *spelled("ink>a"), TOKENS.index(b"</"), TOKENS.index(b"think>")], Phase.BEHIND, 1, 8),
        ([BEGIN, *spelled("a</thin"), TOKENS.index(b"k>\n"), *spelled("b")], Phase.BEHIND, 1, 9),
    ],
)
def test_where_a_thought_ends(token_ids: list[int], phase: Phase, num_tokens: int, stop: int) -> None:
    tracker = track(token_ids)
    assert (tracker.phase, tracker.num_tokens, tracker.stop) == (phase, num_tokens, stop)
    # However many tokens come at a time.
    again = track([])
    for token_id in token_ids:
        again.follow([token_id])
    assert (again.phase, again.num_tokens, again.stop) == (phase, num_tokens, stop)


@pytest.mark.parametrize(
    ("token_ids", "phase", "num_tokens"),
    [
        ([BEGIN], Phase.BEFORE, 0),
        ([BEGIN, *spelled("a")], Phase.BEFORE, 0),
        ([BEGIN, *spelled("ab"), FINISH], Phase.BEHIND, 0),
        ([BEGIN, *spelled("ax")], Phase.BEHIND, 0),
        ([*spelled("\n"), BEGIN, *spelled("a"), BEGIN, *spelled("thought")], Phase.INSIDE, 7),
        ([BEGIN, *spelled("a"), BEGIN, *spelled("b"), FINISH], Phase.BEHIND, 1),
    ],
)
def test_a_marker_may_have_special_tokens_and_others(token_ids: list[int], phase: Phase, num_tokens: int) -> None:
    tracker = track(token_ids, begin="<think>a<think>", begin_ids=(BEGIN, ord("a"), BEGIN))
    assert (tracker.phase, tracker.num_tokens) == (phase, num_tokens)


def test_random_cuts_of_a_marker_are_found() -> None:
    rng, table = random.Random(1), list[bytes]()
    for _ in range(300):
        text = b"".join(rng.choice([b"<", b"/", b"</th", b"</think", b"ink>", b"x"]) for _ in range(rng.randrange(12)))
        answer, token_ids, at = b"<think>" + text + b"</think>tail", list[int](), 0
        while at < len(answer):
            size = rng.randrange(1, 6)
            piece = answer[at : at + size]
            if piece not in table:
                table.append(piece)
            token_ids.append(table.index(piece))
            at += size
        tracker = ThoughtTracker(make_rule(begin_ids=(), end_ids=()), table.__getitem__)
        tracker.follow(token_ids)
        assert tracker.phase is Phase.BEHIND
        ends = list(itertools.accumulate(len(table[token_id]) for token_id in token_ids))
        finish = answer.index(b"</think>", len("<think>")) + len("</think>")
        assert tracker.stop == next(index for index, end in enumerate(ends, start=1) if end >= finish)


def allowed(rule: RowRule, token_ids: Sequence[int]) -> set[int] | None:
    """The tokens that may come next; None for all."""
    row = MaskRow(rule, np.array(token_ids, dtype=np.int64))
    bits = MaskThreads().fill([row], len(TOKENS))
    if row.error is not None:
        raise row.error
    if not row.is_masked:
        return None
    return {i for i in range(len(TOKENS)) if bits[0, i // 32] >> (i % 32) & 1}


def limit(max_tokens: int, **options: object) -> RowRule:
    return RowRule(thought=ThoughtTracker(make_rule(max_tokens=max_tokens, **options), TOKENS.__getitem__))


def test_the_end_is_forced_at_the_limit() -> None:
    rule = limit(2)
    assert not rule.may_forbid(1) and rule.may_forbid(2)
    assert allowed(rule, [BEGIN]) is None and allowed(rule, [BEGIN, 65]) is None
    assert allowed(rule, [BEGIN, 65, 66]) == {FINISH}
    assert allowed(rule, [BEGIN, 65, 66, FINISH]) is None and rule.is_over and not rule.may_forbid(9)
    assert allowed(limit(0, is_open=True), []) == {FINISH}
    assert allowed(limit(0), []) is None and allowed(limit(0), [65]) is None


def test_the_end_is_forced_token_by_token_also_behind_a_half_marker() -> None:
    rule, ids = limit(3, is_open=True, end_ids=tuple(spelled("</think>"))), [65, *spelled("</")]
    for token_id in spelled("</think>"):
        assert allowed(rule, ids) == {token_id}
        ids.append(token_id)
    assert allowed(rule, ids) is None and rule.is_over


def test_the_tokens_of_the_end_are_known_unless_a_part_of_it_is_there() -> None:
    ids = spelled("</think>")
    for begun, forced in (([65], tuple(ids)), (spelled("x</"), tuple(ids[:1]))):
        rule = limit(len(begun), is_open=True, end_ids=tuple(ids))
        assert allowed(rule, begun[:-1]) is None and not rule.forced
        assert allowed(rule, begun) == {ids[0]} and rule.forced == forced
        assert allowed(rule, [*begun, *ids[:3]]) == {ids[3]} and rule.forced == (ids[3],)
    assert allowed(rule, [*begun, *ids]) is None and not rule.forced


def test_a_thought_that_ended_long_ago_is_seen_at_the_limit() -> None:
    rule = limit(5, is_open=True)
    assert rule.may_forbid(5)
    assert allowed(rule, [65, FINISH, *spelled("abcdef")]) is None and rule.is_over


def with_grammar(regex: str, **options: object) -> RowRule:
    grammars = CompiledGrammars(lambda: TOKENS)
    compiled = grammars.find(make_program(Grammar(kind="regex", source=regex))).result(timeout=60)
    return RowRule(
        thought=ThoughtTracker(make_rule(**options), TOKENS.__getitem__),
        make_matcher=lambda: compiled.make_matcher([END]),
        ending_token_ids=[END],
        overshoots=grammars.find_overshoots("</think>").result(timeout=60),
    )


def test_a_grammar_begins_behind_the_thought() -> None:
    rule = with_grammar("ab?", is_open=True)
    everything = set(range(len(TOKENS))) - {END}
    assert allowed(rule, []) == everything
    assert allowed(rule, spelled("{}")) == everything
    # A token that ends the marker and goes on would hide the beginning of the grammar's text.
    assert allowed(rule, spelled("{}</think")) == everything - {TOKENS.index(b">{")}
    assert allowed(rule, spelled("{}</think>")) == {ord("a")}
    assert allowed(rule, spelled("{}</think>a")) == {ord("b"), END}
    assert allowed(rule, spelled("{}</think>ab")) == {END}


def test_a_thought_may_begin_where_the_text_of_a_grammar_may() -> None:
    assert allowed(with_grammar("ab?"), []) == {ord("a"), BEGIN}
    assert allowed(with_grammar("ab?"), [ord("a")]) == {ord("b"), END}
    rule = with_grammar("ab?", max_tokens=1)
    assert allowed(rule, [BEGIN]) == set(range(len(TOKENS))) - {END}
    assert allowed(rule, [BEGIN, 65]) == {FINISH} and allowed(rule, [BEGIN, 65, FINISH]) == {ord("a")}
    assert allowed(rule, [BEGIN, 65, FINISH, ord("a")]) == {ord("b"), END}


def test_a_begun_marker_that_the_grammar_allows_too_stays_open() -> None:
    begin_ids = tuple(spelled("<think>"))
    rule, less = with_grammar("<(b>)?", begin_ids=begin_ids), len(TOKENS) - 3
    assert allowed(rule, []) == {ord("<"), less}
    assert allowed(rule, [ord("<")]) == {ord("b"), TOKENS.index(b"b>"), ord("t"), END}
    assert allowed(rule, spelled("<t")) == {ord("h")}
    assert allowed(rule, [*begin_ids, *spelled("x</think>")]) == {ord("<"), less}
    other = with_grammar("<(b>)?", begin_ids=begin_ids)
    assert allowed(other, spelled("<b")) == {ord(">")} and allowed(other, spelled("<b>")) == {END}


def test_a_token_that_the_grammar_forbids_raises() -> None:
    with pytest.raises(RequestError, match="does not allow"):
        allowed(with_grammar("ab?"), spelled("x"))
