"""The masks of a row that proposes tokens: one for its next token, and one for that behind each proposed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seesay.errors import RequestError
from seesay.grammars.masks import MaskRow

if TYPE_CHECKING:
    from seesay.grammars.masks import MaskMaker
    from seesay.llm.scheduling.sequence import Sequence as TokenSequence


def make_mask_rows(rule: MaskMaker, sequence: TokenSequence, drafts: Sequence[int]) -> list[MaskRow]:
    """Return what makes the masks of a row. Only the rule itself follows the sequence: copies of it follow what may be
    refused."""
    generated = sequence.generated_ids
    rows = [MaskRow(rule, generated)]
    for stop in range(1, len(drafts) + 1):
        rows.append(MaskRow(_AfterDrafts(rule.fork()), np.concatenate([generated, drafts[:stop]])))
    return rows


@dataclass(slots=True)
class _AfterDrafts:
    """Makes the mask behind proposed tokens. If these are not allowed, or nothing may follow them, no token is: nothing
    is sampled there, or it is found out again when the tokens before are those of the answer."""

    rule: MaskMaker
    is_possible: bool = True

    def follow(self, generated_ids: npt.NDArray[np.int64]) -> Any:
        try:
            return self.rule.follow(generated_ids)
        except (ValueError, RequestError):
            self.is_possible = False
            return None

    def finish(self, words: npt.NDArray[np.int32]) -> bool:
        if self.is_possible:
            try:
                return self.rule.finish(words)
            except RequestError:
                pass
        words[:] = 0
        return True

    def fork(self) -> MaskMaker:
        return _AfterDrafts(self.rule.fork(), self.is_possible)

    @property
    def forced(self) -> tuple[int, ...]:
        return ()
