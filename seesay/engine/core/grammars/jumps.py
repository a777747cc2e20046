"""Decides which rows go on with several tokens at a time, where what comes next is no choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seesay.llm.plans.sampling_params import SamplingParams
    from seesay.llm.plans.step_plan import Row
    from seesay.llm.scheduling.sequence import Sequence


def can_force(params: SamplingParams) -> bool:
    """Return whether tokens may be forced upon an answer: not where its options weigh single tokens, so that it may
    matter how text is cut into them."""
    return not (params.logits_processors or params.logit_bias or params.bad_token_ids or params.has_restrictions)


def can_jump(params: SamplingParams) -> bool:
    """Return whether forced tokens may be computed together: not if the request needs the output of each token's
    step."""
    asks_each = params.logprobs is not None or params.output_logits or params.output_last_hidden_state
    return not asks_each and can_force(params)


_STEPS_WITHOUT_GRAPH = 4
"""Steps of CUDA graphs that take as long as one in which rows jump: 5.7 and 22 ms with 64 rows of a 7B model (H200)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JumpRule:
    """Decides whether forced tokens are computed together. It changes no token.

    session_len: most tokens of a sequence. has_graphs: whether steps of one token per row are CUDA graphs. A step in
    which a row has several tokens is none, so the rows that jump must save all rows together some steps.
    """

    session_len: int
    has_graphs: bool

    def choose(self, num_rows: int, found: Mapping[int, tuple[int, ...]]) -> Mapping[int, tuple[int, ...]]:
        """Return the rows of a step of `num_rows` that jump, of those that could: by sequence id, the token that is
        sampled, and those behind it."""
        return found if self.pays(num_rows, sum(len(token_ids) - 1 for token_ids in found.values())) else {}

    def pays(self, num_rows: int, num_saved: int) -> bool:
        """Whether a step of `num_rows` in which rows jump over so many tokens takes less time than the steps of
        these."""
        return num_saved >= (_STEPS_WITHOUT_GRAPH * num_rows if self.has_graphs else 1)

    def find(self, row: Row, sequence: Sequence, forced: tuple[int, ...]) -> tuple[int, ...]:
        """Return the forced tokens that `row` can bring, if these are several. All plans before are committed."""
        stop = row.start + row.num_tokens
        most = min(self.session_len - stop, sequence.num_prompt_tokens + sequence.params.max_new_tokens - stop)
        return forced[:most] if min(len(forced), most) > 1 else ()
