"""Masks of a row that proposes tokens: its own, and one behind each proposed token, of which none changes the rule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seesay.engine.core.grammars.draft_masks import make_mask_rows
from seesay.errors import ErrorCode, RequestError


class Rule:
    """Allows one token, the number of those that it followed; it cannot follow token 9, and nothing may follow 8."""

    def __init__(self, seen: tuple[int, ...] = (), forks: list[Rule] | None = None) -> None:
        self.seen, self.forks = seen, [] if forks is None else forks
        self.forced = (5, 6)

    def follow(self, generated_ids: Any) -> None:
        if 9 in generated_ids:
            raise ValueError("token 9 is not allowed")
        self.seen = tuple(generated_ids.tolist())

    def finish(self, words: Any) -> bool:
        if 8 in self.seen:
            raise RequestError(ErrorCode.INTERNAL, "nothing may follow")
        words[:] = 1 << len(self.seen)
        return True

    def fork(self) -> Rule:
        self.forks.append(Rule(self.seen, self.forks))
        return self.forks[-1]


def make_masks(drafts: list[int], rule: Rule | None = None) -> list[int]:
    """Return the words of the masks of a row that has generated 1 and 2."""
    maker: Any = Rule() if rule is None else rule
    sequence: Any = SimpleNamespace(generated_ids=np.array([1, 2]))
    found = []
    for row in make_mask_rows(maker, sequence, drafts):
        words = np.full(1, -1, np.int32)
        row.rule.follow(row.generated_ids)
        assert row.rule.finish(words)
        found.append(int(words[0]))
    return found


def test_each_proposed_token_has_the_mask_behind_it() -> None:
    assert make_masks([]) == [4]
    assert make_masks([3, 4, 5]) == [4, 8, 16, 32]


def test_the_rule_itself_follows_what_was_generated_alone() -> None:
    rule = Rule()
    assert make_masks([3, 4], rule) == [4, 8, 16]
    assert rule.seen == (1, 2) and [fork.seen for fork in rule.forks] == [(1, 2, 3), (1, 2, 3, 4)]


@pytest.mark.parametrize(("drafts", "expected"), [([9, 3], [4, 0, 0]), ([3, 8, 3], [4, 8, 0, 0])])
def test_behind_what_is_not_allowed_no_token_is(drafts: list[int], expected: list[int]) -> None:
    assert make_masks(drafts) == expected


def test_copies_of_copies_know_what_was_not_allowed() -> None:
    """A thread makes masks of copies, while the rule goes on."""
    rule: Any = Rule()
    sequence: Any = SimpleNamespace(generated_ids=np.array([1, 2]))
    _, wrong, *_ = make_mask_rows(rule, sequence, [9])
    wrong.rule.follow(wrong.generated_ids)
    words = np.full(1, -1, np.int32)
    copied = wrong.rule.fork()
    assert copied.finish(words) and words[0] == 0
    assert copied.forced == () == wrong.rule.forced, "nothing is forced behind what may be refused"
    _, right = make_mask_rows(rule, sequence, [3])
    right.rule.follow(right.generated_ids)
    assert right.rule.fork().finish(words) and words[0] == 8
