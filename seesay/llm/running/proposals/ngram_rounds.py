"""Proposes from texts in the rounds of a step (see `ProposalRounds`): what came behind the place in a text where its
last tokens stood before. Texts are on the device, and grow there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.transfers import upload
from seesay.llm.plans.step_plan import MAX_DRAFTS
from seesay.llm.running.proposals.followed_texts import NUM_FIELDS, follow_texts
from seesay.llm.running.proposals.rounds import RoundProposer

if TYPE_CHECKING:
    from seesay.llm.plans.followed_text import FollowedText
    from seesay.llm.running.proposals.round_state import VerifiedTokens
    from seesay.llm.running.proposals.rounds import Counts
    from seesay.llm.running.step_input import StepRows


class ExpectedRow(NamedTuple):
    """A row of the step that comes, of which up to `most` tokens may be proposed in a round. text: that of its
    sequence, as far as that is known; None where nothing is proposed."""

    most: int
    text: FollowedText | None = None


@dataclass(slots=True)
class _StoredText:
    """A text on the device, in the place `at`, which has its first `num_sent` tokens from the host."""

    at: int
    num_sent: int = 0


class NgramProposer(RoundProposer):
    """A `RoundProposer`. Keeps up to `num_texts` texts of up to `width` tokens on `device`, as many as a step has rows.
    Up to `most` tokens are proposed for a row, and a step has up to `most_tokens`."""

    def __init__(
        self, device: torch.device, *, num_texts: int, width: int, most: int, most_tokens: int, vocab_size: int
    ) -> None:
        self._ids = torch.empty(num_texts + 1, width, dtype=torch.int32, device=device)
        self._most, self._most_tokens, self._vocab_size = most, most_tokens, vocab_size
        self._texts = OrderedDict[int, _StoredText]()  # by sequence id, the one that was asked longest ago first
        self._free = list(range(num_texts))
        self._expected: Mapping[int, ExpectedRow] = {}
        self._least_rates: Sequence[float] = ()
        self._following: _Following | None = None
        self._counts: Mapping[int, int] = {}  # of tokens in a round, by sequence id
        self._warm_up()

    def takes(self, text: FollowedText) -> bool:
        """Whether there is room for a text and for what it gets in a step."""
        return len(text.token_ids) + 1 + MAX_DRAFTS <= self._ids.shape[1]

    def expect(self, rows: Mapping[int, ExpectedRow], least_rates: Sequence[float]) -> None:
        """Propose for a step of these rows, by sequence id, and for no other. It `takes` their texts. least_rates: see
        `follow_texts`."""
        self._expected, self._least_rates = rows, least_rates

    def drop(self, seq_id: int) -> None:
        """Forget the text of a sequence, if there is one."""
        if (text := self._texts.pop(seq_id, None)) is not None:
            self._free.append(text.at)

    def count_proposed(self, num_rows: int) -> int:
        """See `RoundProposer`."""
        return max(0, min(self._most, self._most_tokens // max(1, num_rows) - 1))

    def begin(self, step: StepRows, most: Counts) -> Counts | None:
        """See `RoundProposer`."""
        seq_ids = [row.seq_id for row in step.rows]
        if self._expected.keys() != set(seq_ids):
            return None
        fields, rates = np.full((len(seq_ids), NUM_FIELDS), -1, np.int64), np.zeros(len(seq_ids))
        counts = np.zeros(len(seq_ids), np.int64)
        places, ids = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int32]]()
        for index, seq_id in enumerate(seq_ids):
            row = self._expected[seq_id]
            if row.text is None or not (count := min(row.most, int(most[index]))):
                continue
            num_tokens, stored = len(row.text.token_ids), self._store(seq_id)
            expected = -1 if row.text.expected is None else row.text.expected
            counts[index], rates[index] = count, row.text.rate
            fields[index] = stored.at, count, num_tokens, expected
            first = stored.at * self._ids.shape[1]
            places.append(np.arange(first + stored.num_sent, first + num_tokens))
            ids.append(np.array(row.text.token_ids[stored.num_sent :], dtype=np.int32))
            stored.num_sent = num_tokens
        if not counts.any():
            return None
        least_rates = np.array(self._least_rates[: counts.max()], dtype=np.float64)
        arrays: list[npt.NDArray[Any]] = [np.concatenate(places), np.concatenate(ids), fields, rates, least_rates]
        there = upload(arrays, self._ids.device)
        self._ids.view(-1).index_copy_(0, there[0], there[1])
        self._following = _Following(self._ids, *there[2:], vocab_size=self._vocab_size)
        self._counts = dict(zip(seq_ids, counts.tolist(), strict=True))
        return counts

    def resume(self, step: StepRows) -> bool:
        """See `RoundProposer`. Texts of further rows stay as they are on the device."""
        seq_ids = {row.seq_id for row in step.rows}
        most = {seq_id: row.most for seq_id, row in self._expected.items()}
        return most.keys() == seq_ids and all(most[seq_id] >= self._counts[seq_id] for seq_id in seq_ids)

    def propose(self) -> torch.Tensor:
        """See `RoundProposer`."""
        assert self._following is not None
        return self._following.propose()

    def go_on(self, verified: VerifiedTokens) -> None:
        """See `RoundProposer`."""
        assert self._following is not None
        self._following.new = verified.tokens, verified.num_right + 1

    def settle(self, seq_id: int, start: int, states: torch.Tensor) -> None:
        """See `RoundProposer`: nothing is kept."""

    def _store(self, seq_id: int) -> _StoredText:
        """Return the place of a text, which is that of another one where all are taken."""
        if (text := self._texts.get(seq_id)) is None:
            if not self._free:
                self.drop(next(iter(self._texts)))
            text = self._texts[seq_id] = _StoredText(self._free.pop())
        self._texts.move_to_end(seq_id)
        return text

    def _warm_up(self) -> None:
        """Compile or load the kernel, so that no request waits for that."""
        device = self._ids.device
        fields = torch.full((1, NUM_FIELDS), -1, dtype=torch.int64, device=device)
        least_rates = torch.ones(self._most, dtype=torch.float64, device=device)
        following = _Following(self._ids, fields, least_rates[:1], least_rates, vocab_size=self._vocab_size)
        following.propose()


class _Following:
    """The texts of the rows of a step: see `follow_texts`. new: tokens of rows, and how many of them their texts do not
    have."""

    def __init__(
        self,
        ids: torch.Tensor,
        fields: torch.Tensor,
        rates: torch.Tensor,
        least_rates: torch.Tensor,
        *,
        vocab_size: int,
    ) -> None:
        self._ids, self._fields, self._rates, self._least_rates = ids, fields, rates, least_rates
        self._vocab_size = vocab_size
        width = 1 + len(least_rates)
        self.new = fields.new_zeros(len(fields), width), fields.new_zeros(len(fields))

    def propose(self) -> torch.Tensor:
        """Add the new tokens to the texts, and return what is proposed behind them."""
        return follow_texts(
            self._ids, self._fields, self._rates, *self.new, self._least_rates, vocab_size=self._vocab_size
        )
