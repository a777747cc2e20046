"""What a round writes: the torch form against plain Python, and the kernels against it. On a GPU these run as they are,
elsewhere in Triton's interpreter: `test_interpreter.py` runs this file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from triton_cases import DEVICE, MARKS, runs_here

from seesay.llm.running.device_rows import LENGTH, NUM_COLUMNS, TOKEN
from seesay.llm.running.proposals import round_state
from seesay.llm.running.proposals.round_state import CountedRound, LentSlots, VerifiedTokens

pytestmark = MARKS
SCRATCH_SLOT = 60
COUNTS = [[1], [3], [2, 2, 2, 2], [4, 0, 1, 3, 0], [15, 15]]
"""Tokens that are proposed for each row, beside its last known one."""


class Case:
    """Rows in the last slots before the scratch slot, whose proposed tokens are in the first ones. Lengths have grown
    by one, as behind a graph."""

    def __init__(self, counts: list[int]) -> None:
        rng = np.random.default_rng(len(counts))
        num_rows, total, width = len(counts), len(counts) + sum(counts), 1 + max(counts)
        self.counts, self.width = counts, width
        self.state = torch.from_numpy(rng.integers(1, 500, (SCRATCH_SLOT + 1, NUM_COLUMNS)))
        self.own = torch.from_numpy(rng.permutation(np.arange(40, SCRATCH_SLOT))[:num_rows])
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        offsets = [offset for count in counts for offset in range(1, count + 1)]
        slots = torch.arange(len(rows))
        self.lent = LentSlots(slots, self.own[rows], torch.tensor(rows), torch.tensor(offsets))
        firsts = np.cumsum([1 + count for count in counts]) - [1 + count for count in counts]
        self.at = torch.tensor([[firsts[r] + min(i, n) for i in range(width)] for r, n in enumerate(counts)])
        self.token_ids = torch.from_numpy(rng.integers(0, 9, total))
        self.best = torch.from_numpy(rng.standard_normal(total)).float()
        self.best[:: max(2, total // 2)] = torch.tensor(float("nan"))
        self.best[-1] = float("inf")
        chosen = self.token_ids[self.at]
        self.proposed = torch.full((num_rows, width - 1), -1)
        for row, count in enumerate(counts):
            self.proposed[row, :count] = chosen[row, :count]
            if count and row % 3 != 1:  # the others are all right
                self.proposed[row, rng.integers(count)] = 77
                self.proposed[row, max(0, count - 1)] = -1 if row % 2 else 5

    def on_device(self) -> Case:
        case = Case(self.counts)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(case, name, value.to(DEVICE, copy=True))
        case.lent = LentSlots(*(part.to(DEVICE) for part in self.lent))
        return case


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_proposed_tokens_stand_behind_their_rows(counts: list[int]) -> None:
    case = Case(counts)
    before = case.state.clone()
    round_state.put_proposed(case.state, case.lent, case.proposed)
    for slot, owner, row, offset in zip(*map(torch.Tensor.tolist, case.lent), strict=True):
        assert case.state[slot, TOKEN] == max(0, int(case.proposed[row, offset - 1]))
        assert case.state[slot, LENGTH] == before[owner, LENGTH] + offset
        before[slot, [TOKEN, LENGTH]] = case.state[slot, [TOKEN, LENGTH]]
    assert torch.equal(case.state, before), "and nothing else is written"


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_a_row_goes_on_behind_what_was_right(counts: list[int]) -> None:
    case = Case(counts)
    before = case.state.clone()
    counted = count(case)
    chosen, proposed = case.token_ids[case.at].tolist(), case.proposed.tolist()
    found = counted.read(counted.for_host.numpy())
    verified = counted.verified(torch.zeros(1))
    assert found.tokens.tolist() == verified.tokens.tolist() == chosen
    assert np.array_equal(found.is_finite, np.isfinite(case.best.numpy())[case.at])
    for row, slot in enumerate(case.own.tolist()):
        num_right = next(
            (i for i, pair in enumerate(zip(proposed[row], chosen[row], strict=False)) if pair[0] != pair[1]),
            case.width - 1,
        )
        assert found.num_right[row] == verified.num_right[row] == num_right
        assert found.num_proposed[row] == sum(token >= 0 for token in proposed[row])
        assert case.state[slot, TOKEN] == verified.lasts[row] == chosen[row][num_right]
        assert verified.places[row] == before[slot, LENGTH] - 1
        assert case.state[slot, LENGTH] == before[slot, LENGTH] + num_right
        before[slot, [TOKEN, LENGTH]] = case.state[slot, [TOKEN, LENGTH]]
    assert torch.equal(case.state, before), "and nothing else is written"


def count(case: Case) -> CountedRound:
    return round_state.count_round(case.state, case.own, case.at, case.proposed, case.token_ids, case.best)


def make_verified(num_rows: int, width: int) -> VerifiedTokens:
    rng = np.random.default_rng(width)
    tokens, num_right = rng.integers(0, 900, (num_rows, width)), rng.integers(0, width, num_rows)
    places, lasts = rng.integers(5, 90, num_rows), tokens[np.arange(num_rows), num_right]
    found = [torch.from_numpy(part) for part in (tokens, num_right, lasts, places)]
    return VerifiedTokens(found[0], found[1], found[2], found[3], torch.zeros(1))


@pytest.mark.parametrize(("num_rows", "width", "num_tokens"), [(1, 2, 2), (1, 5, 8), (3, 4, 12), (7, 6, 64)])
def test_what_a_layer_lacks_is_what_was_right_and_one_more(num_rows: int, width: int, num_tokens: int) -> None:
    verified = make_verified(num_rows, width)
    owners, lent = torch.arange(10, 10 + num_rows), 20 + torch.arange(num_rows * (width - 1)).view(num_rows, -1)
    state = torch.zeros(80, NUM_COLUMNS, dtype=torch.int64)
    slots, lasts = torch.full((num_tokens,), -5), torch.full((9,), -5)
    round_state.put_missing(state, slots, lasts, owners, lent, verified)
    for row in range(num_rows):
        num_right, place = int(verified.num_right[row]), int(verified.places[row])
        own = slots[row * width : (row + 1) * width].tolist()
        unused = [79] * (width - 1 - num_right)
        assert own == [*lent[row, :num_right].tolist(), int(owners[row]), *unused]
        known = [*verified.tokens[row, :num_right].tolist(), int(verified.lasts[row])]
        assert [int(state[slot, TOKEN]) for slot in own[: num_right + 1]] == known
        assert [int(state[slot, LENGTH]) for slot in own[: num_right + 1]] == list(range(place, place + num_right + 1))
        assert lasts[row] == row * width + num_right
    assert slots[num_rows * width :].tolist() == [79] * (num_tokens - num_rows * width)
    assert lasts[num_rows:].tolist() == [-5] * (9 - num_rows)


@pytest.mark.parametrize("has_ids", [False, True])
def test_the_token_of_the_greatest_logit_is_chosen(has_ids: bool) -> None:
    logits, known_ids, owners, state, found = make_choice(has_ids)
    round_state.choose(logits, known_ids, owners, state, found)
    chosen = logits.argmax(dim=1)
    assert found.tolist() == (chosen if known_ids is None else known_ids[chosen]).tolist()
    assert state[owners, TOKEN].tolist() == found.tolist() and int((state != 0).sum()) == len(found)


def make_choice(has_ids: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the arguments of `choose`: rows that are part of a wider tensor."""
    logits = torch.randn(5, 9000, generator=torch.Generator().manual_seed(0))[:, :8999]
    logits[0, 8998], logits[1, 6], logits[2, 8500] = 9.0, 9.0, 9.0
    logits[3, [17, 8200]] = 9.0  # the first of equal ones
    known_ids = torch.arange(8999) * 2 + 1 if has_ids else None
    return logits, known_ids, torch.tensor([3, 0, 9, 4, 1]), torch.zeros(12, NUM_COLUMNS).long(), torch.zeros(5).long()


# --- kernels ---------------------------------------------------------------------------------------------------------


@runs_here
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("is_turned", [False, True])
def test_kernels_write_and_count_the_same(counts: list[int], is_turned: bool) -> None:
    """Chains propose token by token, so that what is proposed for a row does not lie together."""
    from seesay.kernels import rounds

    case = Case(counts)
    ours = case.on_device()
    if is_turned:
        ours.proposed = ours.proposed.T.contiguous().T
    round_state.put_proposed(case.state, case.lent, case.proposed)
    rounds.put_proposed(ours.state, *ours.lent, ours.proposed)
    assert torch.equal(ours.state.cpu(), case.state)
    packed = rounds.count_round(ours.state, ours.own, ours.at, ours.proposed, ours.token_ids, ours.best)
    assert torch.equal(packed.cpu(), count(case).packed) and torch.equal(ours.state.cpu(), case.state)


@runs_here
@pytest.mark.parametrize(("num_rows", "width", "num_tokens"), [(1, 5, 8), (7, 6, 64), (32, 4, 192)])
def test_the_kernel_writes_the_same_missing_tokens(num_rows: int, width: int, num_tokens: int) -> None:
    from seesay.kernels import rounds

    verified = make_verified(num_rows, width)
    owners, lent = torch.arange(10, 10 + num_rows), 50 + torch.arange(num_rows * (width - 1)).view(num_rows, -1)
    found = []
    for device, form in ((torch.device("cpu"), None), (DEVICE, rounds)):
        state = torch.zeros(200, NUM_COLUMNS, dtype=torch.int64, device=device)
        slots, lasts = torch.full((num_tokens,), -5, device=device), torch.full((40,), -5, device=device)
        owned, there = (part.to(device) for part in (owners, lent))
        if form is None:
            round_state.put_missing(state, slots, lasts, owned, there, verified)
        else:
            form.put_missing(state, slots, lasts, owned, there, *(part.to(device) for part in verified[:-1]))
        found.append([part.cpu() for part in (state, slots, lasts)])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


@runs_here
@pytest.mark.parametrize("has_ids", [False, True])
def test_the_kernel_chooses_the_same_tokens(has_ids: bool) -> None:
    from seesay.kernels import rounds

    arguments = make_choice(has_ids)
    round_state.choose(*arguments)
    logits, known_ids, owners, state, found = (
        None if part is None else part.to(DEVICE, copy=True) for part in make_choice(has_ids)
    )
    assert logits is not None and owners is not None and state is not None and found is not None
    rounds.choose(logits, known_ids, owners, state, found)
    assert found.tolist() == arguments[4].tolist() and torch.equal(state.cpu(), arguments[3])
    logits.fill_(float("nan"))
    rounds.choose(logits, known_ids, owners, state, found)
    assert all(0 <= token < 2 * logits.shape[1] for token in found.tolist())
