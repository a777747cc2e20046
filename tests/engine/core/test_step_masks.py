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
    found = []
    for token in ("", "x", "a", "b", "c", "d", "e"):
        if token:
            add_token(rules, 0, token)
        begun = step_masks.begin(make_plan(rules))
        assert begun is not None
        masks, errors = step_masks.finish(begun, can_jump=begun.may_jump)
        assert masks is not None and not errors
        found.append("".join(map(chr, masks.jumps.get(0, ()))))
    # With graphs a step has to save four others, without them one.
    assert found == (["", "", "bcdefgh", "cdefgh", "defgh", "", ""] if has_graphs else
                     ["", "", "bcdefgh", "cdefgh", "defgh", "efgh", "fgh"])  # fmt: skip
    step_masks.close()
