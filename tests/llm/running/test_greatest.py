"""The greatest logits of rows: of equal ones the lowest ids, whatever is asked for beside them."""

from __future__ import annotations

import torch

from seesay.llm.running.greatest import compute_logprobs, find_greatest


def test_of_equal_logits_the_lowest_ids_are_found_in_their_order() -> None:
    logits = torch.randint(0, 6, (40, 300), generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = logits.float().sort(dim=-1, descending=True, stable=True).indices
    for count in (0, 1, 2, 7, 80, 300):
        assert torch.equal(find_greatest(logits, count), exact[:, :count])


def test_logprobs_of_a_row_have_the_same_bits_beside_any_rows() -> None:
    logits = torch.randn(33, 101, generator=torch.Generator().manual_seed(0)) * 5
    whole = compute_logprobs(logits)
    torch.testing.assert_close(whole, logits.double().log_softmax(dim=-1).float())
    for row in range(len(logits)):
        assert torch.equal(compute_logprobs(logits[row : row + 1])[0], whole[row])
