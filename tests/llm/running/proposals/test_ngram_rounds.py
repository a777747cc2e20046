"""Which rows texts propose for on the device, and what the host sends of these."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seesay.llm.plans.step_plan import MAX_DRAFTS
from seesay.llm.running.proposals import ngram_rounds
from seesay.llm.running.proposals.ngram_rounds import ExpectedRow, NgramProposer
from seesay.llm.running.proposals.round_state import VerifiedTokens
from seesay.llm.scheduling.text_follower import TextFollower, find_least_rates

REPEATED = [*range(10), 0, 1, 2]


def make_proposer(num_texts: int = 2) -> NgramProposer:
    return NgramProposer(torch.device("cpu"), num_texts=num_texts, width=100, most=4, most_tokens=32, vocab_size=50)


def follow(token_ids: list[int]) -> TextFollower:
    text = TextFollower(np.array(token_ids))
    text.rate = 1.0
    return text


def begin(proposer: NgramProposer, rows: dict[int, ExpectedRow], most: list[int]) -> list[int] | None:
    """Begin a step of rows, each of which may have so many tokens in a round."""
    proposer.expect(rows, find_least_rates(4))
    step: Any = SimpleNamespace(rows=[SimpleNamespace(seq_id=seq_id) for seq_id in rows])
    counts = proposer.begin(step, np.array(most))
    return None if counts is None else counts.tolist()


def go_on(proposer: NgramProposer, tokens: list[list[int]], num_right: list[int]) -> None:
    unused = torch.zeros(0)
    given = torch.tensor(tokens), torch.tensor(num_right)
    proposer.go_on(VerifiedTokens(*given, lasts=unused, places=unused, states=unused))


def test_rows_have_as_many_tokens_as_they_may() -> None:
    proposer = make_proposer()
    text = follow(REPEATED)
    rows = {5: ExpectedRow(4, text), 7: ExpectedRow(0), 6: ExpectedRow(2, text)}
    assert begin(proposer, rows, [3, 3, 3]) == [3, 0, 2]
    assert proposer.propose().tolist() == [[3, 4, 5], [-1] * 3, [3, 4, -1]]
    go_on(proposer, [[3, 4, 9, 9], [8] * 4, [3, 4, 5, 5]], [2, 0, 2])
    assert proposer.propose().tolist() == [[-1] * 3, [-1] * 3, [6, 7, -1]]
    assert [proposer.count_proposed(count) for count in (1, 6, 8, 16, 32, 40)] == [4, 4, 3, 1, 0, 0]


@pytest.mark.parametrize("most", [[0, 0], [0, 3]])
def test_rows_that_propose_nothing_take_no_rounds(most: list[int]) -> None:
    rows = {1: ExpectedRow(4, follow(REPEATED)), 2: ExpectedRow(0)}
    assert begin(make_proposer(), rows, most) is None


def test_other_rows_than_those_that_were_asked_take_no_rounds() -> None:
    proposer, row = make_proposer(), ExpectedRow(4, follow(REPEATED))
    proposer.expect({1: row, 2: row}, find_least_rates(4))
    for seq_ids in ([1], [1, 3], [1, 2, 3]):
        step: Any = SimpleNamespace(rows=[SimpleNamespace(seq_id=seq_id) for seq_id in seq_ids])
        assert proposer.begin(step, np.full(len(seq_ids), 4)) is None


def test_what_the_device_added_is_replaced_by_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host sends a text once, and then what is new."""
    proposer, text, sent = make_proposer(), follow(REPEATED), list[int]()
    upload: Any = vars(ngram_rounds)["upload"]

    def watch(arrays: Any, device: torch.device) -> Any:
        sent.append(len(arrays[0]))
        return upload(arrays, device)

    monkeypatch.setattr(ngram_rounds, "upload", watch)
    assert begin(proposer, {1: ExpectedRow(4, text)}, [4]) == [4]
    proposer.propose()
    go_on(proposer, [[3, 4, 5, 6, 7]], [4])
    assert proposer.propose().tolist() == [[8, 9, 0, 1]]
    text.follow([3, 4, 20, 1, 2])  # others came: a step failed, say
    assert begin(proposer, {1: ExpectedRow(4, text)}, [4]) is not None
    assert proposer.propose().tolist() == [[-1] * 4]
    go_on(proposer, [[0] * 5], [0])
    assert proposer.propose().tolist() == [[-1] * 4] and sent == [len(REPEATED), 5]


def test_a_text_takes_the_place_of_the_one_that_was_asked_longest_ago() -> None:
    proposer, texts = make_proposer(), {seq_id: follow([seq_id, *REPEATED]) for seq_id in (1, 2, 3)}
    for seq_id in (1, 2, 1, 3, 2, 1, 3):
        assert begin(proposer, {seq_id: ExpectedRow(4, texts[seq_id])}, [4]) == [4]
        assert proposer.propose().tolist() == [[3, 4, 5, 6]]
    assert list(proposer._texts) == [1, 3]
    proposer.drop(1)
    proposer.drop(2)
    assert list(proposer._texts) == [3] and len(proposer._free) == 1


def test_texts_without_room_for_a_step_are_not_taken() -> None:
    assert make_proposer().takes(follow([1] * (99 - MAX_DRAFTS)))
    assert not make_proposer().takes(follow([1] * (100 - MAX_DRAFTS)))
