"""Masks of steps: made at once or by a thread they are the same, and rows jump where the next plan can know of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seesay.config.grammar import Grammar
from seesay.engine.core.grammars.jumps import JumpRule
from seesay.engine.core.grammars.step_masks import MaskMemory, RuledSequence, Rules, StepMasks
from seesay.grammars.masks import CompiledGrammars
from seesay.grammars.program import make_program
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import Row, StepPlan

PROMPT = 3
END = 256
TOKENS = [bytes([value]) for value in range(256)]


@pytest.fixture(scope="module")
def grammars() -> Iterator[CompiledGrammars]:
    made = CompiledGrammars(lambda: TOKENS, encode=lambda text: list(text.encode()))
    yield made
    made.close()


def make_rules(grammars: CompiledGrammars, regexes: list[str], *, forces: bool = False) -> Rules:
    rules: Rules = {}
    for seq_id, regex in enumerate(regexes):
        found = grammars.find(make_program(Grammar(kind="regex", source=regex)), forces=forces).result(60)
        sequence: Any = SimpleNamespace(
            num_prompt_tokens=PROMPT,
            generated_ids=np.empty(0, np.int64),
            num_generated=0,
            params=SamplingParams(max_new_tokens=50),
        )
        rules[seq_id] = RuledSequence(found.make_matcher((END - 1,)), sequence)
    return rules


def add_token(rules: Rules, seq_id: int, text: str) -> None:
    sequence: Any = rules[seq_id].sequence
    sequence.generated_ids = np.array([*sequence.generated_ids.tolist(), *text.encode()], np.int64)
    sequence.num_generated = len(sequence.generated_ids)


def make_plan(rules: Rules) -> StepPlan:
    return StepPlan(
        rows=tuple(
            Row(seq_id, PROMPT + len(sequence.generated_ids) - 1, 1, True) for seq_id, (_, sequence) in rules.items()
        )
    )


def list_allowed(masks: Any) -> list[str]:
    bits = np.unpackbits(masks.bits.view(np.uint8), axis=1, bitorder="little")[:, :END]
    return ["".join(map(chr, np.flatnonzero(row).tolist())) for row in bits]


@pytest.mark.parametrize("few_rows", [0, 100])
def test_the_masks_of_a_thread_are_those_made_at_once(grammars: CompiledGrammars, few_rows: int) -> None:
    rules = make_rules(grammars, [f"[ab]{chr(ord('c') + number)}[xy]" for number in range(20)])
    step_masks = StepMasks(rules, vocab_size=END)
    step_masks.few_rows = few_rows
    for text, allowed in [("", ["ab"] * 20), ("a", [chr(ord("c") + number) for number in range(20)])]:
        for seq_id in rules if text else ():
            add_token(rules, seq_id, text)
        begun = step_masks.begin(make_plan(rules))
        assert begun is not None and not begun.may_jump
        masks, errors = step_masks.finish(begun, can_jump=False)
        assert masks is not None and masks.seq_ids == tuple(range(20)) and not errors and not masks.jumps
        assert list_allowed(masks) == allowed
    step_masks.close()


def test_rows_that_sample_nothing_have_no_masks(grammars: CompiledGrammars) -> None:
    """As those of the first chunks of a prompt."""
    rules = make_rules(grammars, ["ab", "cd"])
    step_masks = StepMasks(rules, vocab_size=END)
    chunk, last = make_plan(rules).rows
    plan = StepPlan(rows=(chunk._replace(samples=False),))
    assert not step_masks.concerns(plan) and step_masks.begin(plan) is None
    plan = StepPlan(rows=(*plan.rows, last))
    begun = step_masks.begin(plan)
    assert step_masks.concerns(plan) and begun is not None
    masks, _ = step_masks.finish(begun, can_jump=False)
    assert masks is not None and masks.seq_ids == (1,) and list_allowed(masks) == ["c"]
    step_masks.close()


def sample(step_masks: StepMasks, rules: Rules, texts: dict[int, str]) -> Any:
    """Take what rows sampled, commit it, and return the masks behind it with the errors of rows."""
    step_masks.take(make_plan(rules), {seq_id: tuple(text.encode()) for seq_id, text in texts.items()})
    for seq_id, text in texts.items():
        add_token(rules, seq_id, text)
    begun = step_masks.begin(make_plan(rules))
    assert begun is not None
    return step_masks.finish(begun, can_jump=False)


def test_tokens_are_consumed_while_they_are_committed(grammars: CompiledGrammars) -> None:
    """One that is not allowed ends its own row; several at once, or none, are taken later."""
    rules = make_rules(grammars, ["[ab]c[xy]", "[ab]d[xy]", "efg", "h[ij]"])
    step_masks = StepMasks(rules, vocab_size=END)
    step_masks.few_rows = 2
    masks, errors = sample(step_masks, rules, {0: "a", 1: "z", 2: "ef"})
    assert list(errors) == [1] and "does not allow token 122 after 0 tokens" in str(errors[1])
    assert masks.seq_ids == (0, 2, 3) and list_allowed(masks) == ["c", "g", "h"]
    del rules[1]
    masks, errors = sample(step_masks, rules, {0: "c", 2: "g", 3: "h"})
    assert not errors and list_allowed(masks)[::2] == ["xy", "ij"]
    del rules[2]  # so few are taken when masks begin
    masks, errors = sample(step_masks, rules, {0: "x", 3: "j"})
    assert not errors and len(masks.seq_ids) == 2
    step_masks.close()


def test_rules_are_copied_behind_the_tokens_that_they_take(grammars: CompiledGrammars) -> None:
    """For drafts: a copy that was made while a thread changes its rule would be of nothing."""
    rules = make_rules(grammars, ["[ab]cd[xy]"])
    step_masks = StepMasks(rules, vocab_size=END)
    step_masks.few_rows = 0
    busy = threading.Event()
    step_masks.take(make_plan(rules), {0: (ord("a"),)})
    step_masks._threads._newest = step_masks._threads._find_thread().submit(busy.wait, 60)
    add_token(rules, 0, "a")
    [row] = make_plan(rules).rows
    plan = StepPlan(rows=(row._replace(num_tokens=3, drafts=tuple(b"cd")),))
    begun: list[Any] = []
    beginning = threading.Thread(target=lambda: begun.append(step_masks.begin(plan)))
    beginning.start()
    beginning.join(0.2)
    assert not begun, "it copies rules that are in use"
    busy.set()
    beginning.join(60)
    masks, errors = step_masks.finish(begun[0], can_jump=False)
    assert masks is not None and not errors and list_allowed(masks) == ["c", "d", "xy"]
    step_masks.close()


def test_a_step_that_is_computed_again_takes_its_token_once(grammars: CompiledGrammars) -> None:
    rules = make_rules(grammars, ["abc", "abd"])
    step_masks = StepMasks(rules, vocab_size=END)
    step_masks.few_rows = 0
    for _ in range(2):
        step_masks.take(make_plan(rules), {0: (ord("a"),), 1: (ord("a"),)})
    masks, errors = sample(step_masks, rules, {0: "a", 1: "a"})
    assert not errors and list_allowed(masks) == ["b", "b"]
    step_masks.close()


def test_rules_do_not_survive_tokens_that_were_not_consumed(grammars: CompiledGrammars) -> None:
    rules = make_rules(grammars, ["abc", "abd"])
    step_masks = StepMasks(rules, vocab_size=END)
    step_masks.few_rows = 0
    step_masks._threads.consume([(None, 3)])  # no matcher
    assert step_masks.begin(make_plan(rules)) is not None, "a step that is launched is not the place to say so"
    with pytest.raises(TypeError):
        step_masks.take(make_plan(rules), {})
    rules.clear()  # all requests have ended
    rules |= make_rules(grammars, ["abc"])
    masks, errors = sample(step_masks, rules, {0: "a"})
    assert not errors and list_allowed(masks) == ["b"], "the next ones are answered"
    step_masks.close()


def test_memory_of_masks_is_that_of_two_steps() -> None:
    memory = MaskMemory(torch.device("cpu"))
    first, second = memory(3, 5), memory(4, 5)
    first[:], second[:] = 1, 2
    assert first.shape == (3, 5) and (first == 1).all() and second.shape == (4, 5)
    again = memory(4, 5)
    assert np.shares_memory(first, again) and (again[:3] == 1).all() and (second == 2).all()
    assert memory(40, 5).shape == (40, 5) and memory(2, 7).shape == (2, 7), "more rows, and another vocabulary"


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 8, 9])
def test_memory_of_masks_has_room_for_all_rows_and_not_for_twice_as_many(num_rows: int) -> None:
    bits = MaskMemory(torch.device("cpu"))(num_rows, 3)
    assert bits.shape == (num_rows, 3) and bits.base is not None
    assert num_rows <= bits.base.size // 3 < 2 * num_rows


class Recorded:
    """A rule that notes what it takes. `forbids`: the numbers of generated tokens behind which it forbids tokens; there
    its mask is that number."""

    def __init__(self, *forbids: int, is_over: bool = False) -> None:
        self.forbids, self.is_over = set(forbids), is_over
        self.taken: list[tuple[int, int]] = []
        self.forced: tuple[int, ...] = ()
        self._num_generated = 0

    def may_forbid(self, num_generated: int) -> bool:
        return num_generated in self.forbids

    def take(self, token_id: int, num_generated: int) -> None:
        self.taken.append((token_id, num_generated))

    def follow(self, generated_ids: Any) -> None:
        self._num_generated = len(generated_ids)

    def finish(self, words: np.ndarray) -> bool:
        words[:] = self._num_generated
        return self._num_generated in self.forbids

    def fork(self) -> Recorded:
        return Recorded(*self.forbids)


def rule_with(*rules: Recorded, num_generated: int = 4) -> Any:
    """Rules of sequences that have generated so many tokens."""
    generated = np.arange(num_generated, dtype=np.int64)
    sequence = SimpleNamespace(
        num_prompt_tokens=PROMPT, generated_ids=generated, num_generated=num_generated, params=SamplingParams()
    )
    return {seq_id: RuledSequence(rule, sequence) for seq_id, rule in enumerate(rules)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forbids", "num_drafts", "expected"),
    [({4}, 0, True), ({3}, 0, False), ({5}, 0, False), ({5}, 1, True), ({4}, 2, True), ({6}, 2, True), ({7}, 2, False),
     ({3}, 2, False), ((), 2, False)],
)  # fmt: skip
def test_a_row_needs_masks_where_its_rule_may_forbid_a_token_of_it(
    forbids: Any, num_drafts: int, expected: bool
) -> None:
    """Its next token, or one behind those that it proposes; a row may also compute tokens before."""
    rules = rule_with(Recorded(*forbids))
    step_masks = StepMasks(rules, vocab_size=END)
    for num_before in (0, 2):
        row = Row(0, PROMPT + 3 - num_before, 1 + num_before + num_drafts, True, tuple(range(num_drafts)))
        assert step_masks.concerns(StepPlan(rows=(row,))) == expected
        assert (step_masks.begin(StepPlan(rows=(row,))) is not None) == expected
    step_masks.close()


def test_what_many_rows_sampled_is_taken_at_once_and_that_of_few_later() -> None:
    rows = [Recorded(4) for _ in range(3)]
    rules = rule_with(*rows)
    step_masks = StepMasks(rules, vocab_size=END)
    plan = StepPlan(rows=tuple(Row(seq_id, PROMPT + 3, 1, True) for seq_id in (7, 2, 1, 0)))
    sampled = {7: (10,), 0: (11,), 1: (12, 13)}
    step_masks.few_rows = 3
    step_masks.take(plan, sampled)
    assert not any(rule.taken for rule in rows)
    step_masks.few_rows = 2
    step_masks.take(plan, sampled)
    assert [rule.taken for rule in rows] == [[(11, 5)], [], []], "one token of a row that has a rule"
    step_masks.close()


def test_only_rows_in_which_something_is_forbidden_have_masks() -> None:
    """Rules that are over are not asked again. Where a row proposes tokens, it has a mask for each of its places."""
    rules = rule_with(
        Recorded(is_over=True), Recorded(4), Recorded(is_over=True), Recorded(5), Recorded(), num_generated=4
    )
    for seq_id in (0, 2, 4):  # they may forbid something, and do not
        rules[seq_id].rule.may_forbid = lambda _: True
    step_masks = StepMasks(rules, vocab_size=END)
    rows = [Row(seq_id, PROMPT + 3, 1, True) for seq_id in range(5)]
    rows[3] = Row(3, PROMPT + 3, 4, True, (20, 21, 22))
    begun = step_masks.begin(StepPlan(rows=tuple(rows)))
    assert begun is not None
    masks, errors = step_masks.finish(begun, can_jump=False)
    assert masks is not None and not errors and masks.seq_ids == (1, 3, 3, 3, 3)
    assert [set(row) for row in masks.bits.tolist()] == [{4}, {-1}, {5}, {-1}, {-1}]
    assert sorted(rules) == [1, 3, 4]
    begun = step_masks.begin(StepPlan(rows=(rows[4],)))
    assert begun is not None and step_masks.finish(begun, can_jump=False) == (None, {})
    step_masks.close()


def test_a_rule_is_over_at_once_in_every_row_of_a_step() -> None:
    rules = rule_with(Recorded(is_over=True), Recorded(is_over=True))
    for seq_id in rules:
        rules[seq_id].rule.may_forbid = lambda _: True
    step_masks = StepMasks(rules, vocab_size=END)
    begun = step_masks.begin(StepPlan(rows=tuple(Row(seq_id, PROMPT + 3, 1, True) for seq_id in rules)))
    assert begun is not None and step_masks.finish(begun, can_jump=True) == (None, {}) and not rules
    step_masks.close()


@pytest.mark.parametrize(("few_rows", "may_jump"), [(1, False), (2, True), (3, True)])
def test_rows_whose_masks_are_made_at_once_may_always_jump(
    grammars: CompiledGrammars, few_rows: int, may_jump: bool
) -> None:
    """The next plan is made when these masks are there."""
    rules = make_rules(grammars, ["[ab]cdef", "[ab]cdef"], forces=True)
    step_masks = StepMasks(rules, vocab_size=END, jumps=JumpRule(session_len=100, has_graphs=True))
    step_masks.few_rows = few_rows
    begun = step_masks.begin(make_plan(rules))
    assert begun is not None and begun.may_jump == may_jump
    step_masks.finish(begun, can_jump=False)
    step_masks.close()


def test_a_sequence_that_ends_meanwhile_harms_no_other(grammars: CompiledGrammars) -> None:
    rules = make_rules(grammars, ["a[bc]", "d[ef]"])
    step_masks = StepMasks(rules, vocab_size=END)
    step_masks.few_rows = 0
    add_token(rules, 0, "z")
    begun = step_masks.begin(make_plan(rules))
    assert begun is not None
    del rules[0]
    masks, errors = step_masks.finish(begun, can_jump=False)
    assert masks is not None and masks.seq_ids == (1,) and list_allowed(masks) == ["d"]
    assert list(errors) == [0] and "does not allow" in str(errors[0])
    step_masks.close()


def test_a_sequence_that_ends_meanwhile_does_not_jump(grammars: CompiledGrammars) -> None:
    rules = make_rules(grammars, ["abcdef", "abcdef"], forces=True)
    step_masks = StepMasks(rules, vocab_size=END, jumps=JumpRule(session_len=100, has_graphs=False))
    begun = step_masks.begin(make_plan(rules))
    assert begun is not None and begun.may_jump
    del rules[0]
    masks, errors = step_masks.finish(begun, can_jump=True)
    assert masks is not None and not errors and list(masks.jumps) == [1]


def test_only_rows_that_may_have_several_tokens_jump(grammars: CompiledGrammars) -> None:
    """Not those that propose tokens, whose options need the output of each step, or whose token was not allowed."""
    rules = make_rules(grammars, ["[xy]abcdef"] * 4, forces=True)
    step_masks = StepMasks(rules, vocab_size=END, jumps=JumpRule(session_len=100, has_graphs=False))
    rules[2].sequence.params = SamplingParams(max_new_tokens=50, logprobs=1)
    jumps = []
    for texts in ("xxxx", "azaa"):
        for seq_id, text in enumerate(texts):
            add_token(rules, seq_id, text)
        rows = list(make_plan(rules).rows)
        rows[3] = rows[3]._replace(num_tokens=3, drafts=tuple(b"bc"))
        begun = step_masks.begin(StepPlan(rows=tuple(rows)))
        assert begun is not None
        masks, errors = step_masks.finish(begun, can_jump=True)
        assert masks is not None and list(errors) == ([1] if texts == "azaa" else [])
        jumps.append({seq_id: bytes(token_ids).decode() for seq_id, token_ids in masks.jumps.items()})
    assert jumps == [{0: "abcdef", 1: "abcdef"}, {0: "bcdef"}]
    step_masks.close()


def test_close_ends_the_thread_of_masks(grammars: CompiledGrammars) -> None:
    before = set(threading.enumerate())
    step_masks = StepMasks(rules := make_rules(grammars, ["ab"]), vocab_size=END)
    step_masks.few_rows = 0
    begun = step_masks.begin(make_plan(rules))
    assert begun is not None and begun.bits.result() is not None
    assert "seesay-masks" in str(set(threading.enumerate()) - before)
    step_masks.close()
    assert "seesay-masks" not in str(set(threading.enumerate()) - before)


def test_the_masks_of_a_lost_plan_are_over_before_the_next_ones(grammars: CompiledGrammars) -> None:
    rules = make_rules(grammars, ["[ab][cd]"])
    step_masks = StepMasks(rules, vocab_size=END)
    step_masks.few_rows = 0
    lost = step_masks.begin(make_plan(rules))
    again = step_masks.begin(make_plan(rules))
    assert lost is not None and again is not None
    masks, _ = step_masks.finish(again, can_jump=True)
    assert masks is not None and list_allowed(masks) == ["ab"] and lost.bits.done()
    step_masks.close()


@pytest.mark.parametrize("has_graphs", [False, True])
def test_rows_jump_when_it_pays_and_no_plan_is_made_behind_them(grammars: CompiledGrammars, has_graphs: bool) -> None:
    """Forced text that is found while the next step is planned is jumped over from the step after that."""
    rules = make_rules(grammars, ["[xy]abcdefgh[ij]"], forces=True)
    step_masks = StepMasks(rules, vocab_size=END, jumps=JumpRule(session_len=100, has_graphs=has_graphs))
    step_masks.few_rows = 0
    found, announced = [], []
    for token in ("", "x", "a", "b", "c", "d", "e", "f", "g"):
        if token:
            add_token(rules, 0, token)
        begun = step_masks.begin(make_plan(rules))
        assert begun is not None
        announced.append(begun.may_jump)
        masks, errors = step_masks.finish(begun, can_jump=begun.may_jump)
        assert masks is not None and not errors
        found.append("".join(map(chr, masks.jumps.get(0, ()))))
    # With graphs a step has to save four others, without them one.
    assert found == (["", "", "bcdefgh", "cdefgh", "defgh", "", "", "", ""] if has_graphs else
                     ["", "", "bcdefgh", "cdefgh", "defgh", "efgh", "fgh", "gh", ""])  # fmt: skip
    assert announced == [False, False, True, True, True, *[not has_graphs] * 3, False]
    step_masks.close()
