"""Makes the masks of steps. Used by the engine loop's thread.

They are begun when the tokens before a step are known, and finished before it is sampled. Those of many rows take
milliseconds: a thread makes them, while the next step is planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from seesay.device.transfers import empty_words
from seesay.engine.core.grammars.draft_masks import make_mask_rows
from seesay.engine.core.grammars.jumps import JumpRule, can_jump
from seesay.errors import RequestError
from seesay.grammars.masks import MaskRow, MaskThreads
from seesay.llm.plans.step_plan import Row, StepPlan, TokenMasks

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from seesay.engine.core.grammars.row_matcher import RowMatcher
    from seesay.grammars.matcher import Matcher
    from seesay.grammars.row_rule import RowRule
    from seesay.llm.scheduling.sequence import Sequence

_FEW_ROWS = 16
"""Masks of so few rows are there (some 20 µs each) before a thread would begin."""


class RuledSequence(NamedTuple):
    """A sequence, and the rule that its tokens follow."""

    rule: RowRule | Matcher | RowMatcher
    sequence: Sequence


Rules = dict[int, RuledSequence]
"""By sequence id."""


_MaskedRow = tuple[Row, "RowRule | Matcher | RowMatcher", "Sequence"]
"""A row of a plan that has masks: one, and one more for each of its drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunMasks:
    """The masks of a plan, which are being made.

    num_rows: those of the plan. may_jump: whether some may get several tokens, which the next plan has to know of.
    """

    num_rows: int
    masked: list[_MaskedRow]
    rows: list[MaskRow]
    bits: Future[npt.NDArray[np.int32]]
    may_jump: bool


class MaskMemory:
    """Memory of masks from which `device` copies while the host goes on. It is that of two steps, in turns: when the
    masks of a third one begin, the tokens of the first one are there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._halves = [np.empty((0, 0), np.int32) for _ in range(2)]

    def __call__(self, num_rows: int, num_words: int) -> npt.NDArray[np.int32]:
        """Return int32 [num_rows, num_words]. Allocating it for every step would take half a millisecond."""
        self._halves.reverse()
        half = self._halves[0]
        if len(half) < num_rows or half.shape[1] != num_words:
            half = self._halves[0] = empty_words(1 << (num_rows - 1).bit_length(), num_words, self._device)
        return half[:num_rows]


def _count_saved(masked: list[_MaskedRow]) -> int:
    """Return how many steps rows can jump over: the newest token was forced, and the next one is sampled."""
    return sum(len(forced) - 2 for _, rule, _ in masked if len(forced := rule.forced) > 2)


class StepMasks:
    """Makes the masks of the rows whose sequences have one of `rules`, and takes those away that are over. few_rows:
    masks of so few rows are made at once."""

    def __init__(
        self, rules: Rules, *, vocab_size: int, jumps: JumpRule | None = None, device: torch.device | None = None
    ) -> None:
        """`jumps`: without it each step brings one token of a row. `device`: masks go there."""
        self.few_rows = _FEW_ROWS
        self._rules = rules
        self._vocab_size = vocab_size
        self._jumps = jumps
        self._threads = MaskThreads() if device is None else MaskThreads(MaskMemory(device))

    def concerns(self, plan: StepPlan) -> bool:
        """Whether a row of a plan may need a mask."""
        return bool(self._rules) and any(map(self._may_forbid, plan.rows))

    def _may_forbid(self, row: Row) -> bool:
        if not row.samples or (own := self._rules.get(row.seq_id)) is None:
            return False
        first = row.start + row.num_known - own.sequence.num_prompt_tokens
        if not row.drafts:
            return own.rule.may_forbid(first)
        return any(own.rule.may_forbid(first + num_drafts) for num_drafts in range(1 + len(row.drafts)))

    def take(self, plan: StepPlan, token_ids: Mapping[int, tuple[int, ...]]) -> None:
        """Take what the rows of a plan have sampled, by sequence id, just before it is committed: grammars consume it
        meanwhile. With few rules that is left to `begin`. Raises what went wrong with the tokens before, which no rule
        survives."""
        self._threads.settle()
        if len(self._rules) > self.few_rows:
            self._threads.consume(
                [
                    token
                    for row in plan.rows
                    if (own := self._rules.get(row.seq_id)) is not None
                    and len(sampled := token_ids.get(row.seq_id, ())) == 1
                    and (token := own.rule.take(sampled[0], own.sequence.num_generated + 1)) is not None
                ]
            )

    def begin(self, plan: StepPlan) -> BegunMasks | None:
        """Begin to make the masks of a plan's rows, if any has one. All plans before are committed."""
        masked, rows = list[_MaskedRow](), list[MaskRow]()
        rules = self._rules
        for row in plan.rows:
            if not row.samples or (own := rules.get(row.seq_id)) is None:
                continue
            rule, sequence = own
            if row.drafts:
                if not self._may_forbid(row):
                    continue
                self._threads.wait()  # their rules are copied
                rows += make_mask_rows(rule, sequence, row.drafts)
            elif rule.may_forbid(row.start + row.num_tokens - sequence.num_prompt_tokens):
                rows.append(MaskRow(rule, sequence.generated_ids))
            else:
                continue
            masked.append((row, rule, sequence))
        if not masked:
            return None
        is_small = len(rows) <= self.few_rows
        return BegunMasks(
            num_rows=len(plan.rows),
            masked=masked,
            rows=rows,
            bits=self._threads.start(rows, self._vocab_size, at_once=is_small),
            may_jump=self._jumps is not None and (is_small or self._jumps.pays(len(plan.rows), _count_saved(masked))),
        )

    def finish(self, begun: BegunMasks, *, can_jump: bool) -> tuple[TokenMasks | None, Mapping[int, RequestError]]:
        """Return the masks of a plan's rows, and the errors of those that have none. can_jump: whether rows may get
        several tokens: no plan was made behind this one."""
        bits, rows = begun.bits.result(), begun.rows
        if len(begun.masked) == len(rows):
            seq_ids = [row.seq_id for row, _, _ in begun.masked]
        else:
            seq_ids = [row.seq_id for row, _, _ in begun.masked for _ in range(1 + len(row.drafts))]
        errors = {seq_id: made.error for seq_id, made in zip(seq_ids, rows, strict=True) if made.error is not None}
        is_all = all(made.is_masked for made in rows)
        jumps = self._find_jumps(begun, errors) if can_jump and self._jumps is not None else {}
        if is_all:
            return TokenMasks(seq_ids=tuple(seq_ids), bits=bits, jumps=jumps), errors
        for row, rule, _ in begun.masked:
            if rule.is_over:
                self._rules.pop(row.seq_id, None)
        restricted = {seq_id for seq_id, row in zip(seq_ids, rows, strict=True) if row.is_masked}
        kept = [index for index, seq_id in enumerate(seq_ids) if seq_id in restricted]
        if not kept:
            return None, errors
        for index in kept:
            if not rows[index].is_masked:
                bits[index] = -1
        masks = TokenMasks(
            seq_ids=tuple(seq_ids[index] for index in kept),
            bits=bits if len(kept) == len(seq_ids) else bits[kept],
            jumps=jumps,
        )
        return masks, errors

    def _find_jumps(self, begun: BegunMasks, errors: Mapping[int, RequestError]) -> Mapping[int, tuple[int, ...]]:
        """Return the `TokenMasks.jumps` of rows that have their masks now, and whose sequences have not ended since."""
        assert self._jumps is not None
        found: dict[int, tuple[int, ...]] = {}
        for row, rule, sequence in begun.masked:
            forced = rule.forced
            if len(forced) < 2 or row.drafts or row.seq_id not in self._rules:
                continue
            if row.seq_id not in errors and can_jump(sequence.params):
                token_ids = self._jumps.find(row, sequence, forced)
                if token_ids:
                    found[row.seq_id] = token_ids
        return self._jumps.choose(begun.num_rows, found) if found else {}

    def close(self) -> None:
        """End the threads."""
        self._threads.close()
