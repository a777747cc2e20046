"""Texts on the device, which are followed there token by token, as `scheduling/text_follower.py` follows them on the
host: what a text is expected to go on with is what came behind the place where its last tokens stood before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from seesay.device.backends import has_kernels
from seesay.llm.plans.followed_text import NGRAM, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT, MOST, LENGTH, EXPECTED = range(4)
"""Fields of a row: its text, or -1; most tokens that are proposed for it; the tokens of its text; and where in this the
token stands that is expected next, or -1."""
NUM_FIELDS = 4


def follow_texts(
    ids: torch.Tensor,
    fields: torch.Tensor,
    rates: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
    least_rates: torch.Tensor,
    *,
    vocab_size: int,
) -> torch.Tensor:
    """Add new tokens to the texts of R rows, and return what is proposed behind these, int64 [R, D], -1 where nothing
    is.

    ids: int32 [N + 1, width], the tokens of N texts; the last row is nobody's. fields: int64 [R, NUM_FIELDS]. rates:
    float64 [R], the shares of right ones among the last predictions. tokens: int64 [R, W], of which the first `counts`
    int64 [R] of a row are new: none, or what was proposed and was right, and one token behind that. least_rates:
    float64 [D], the rates from which on 1, 2, … D tokens are proposed, ascending. ids, fields and rates are changed
    where they are. Tokens from `vocab_size` on have no logit: neither they nor those behind them are proposed.
    """
    compute: Callable[..., torch.Tensor] = _follow
    if has_kernels(ids.device):
        from seesay.kernels import ngrams

        compute = ngrams.follow_texts
    return compute(ids, fields, rates, tokens, counts, least_rates, weight=WEIGHT, vocab_size=vocab_size)


def _follow(
    ids: torch.Tensor,
    fields: torch.Tensor,
    rates: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
    least_rates: torch.Tensor,
    *,
    weight: float,
    vocab_size: int,
) -> torch.Tensor:
    """The same in torch."""
    has_text = fields[:, TEXT] >= 0
    at, index = fields[:, TEXT].where(has_text, len(ids) - 1), torch.arange(tokens.shape[1], device=ids.device)
    counts = torch.where(has_text, counts, 0)
    own, lengths, expected = ids[at], fields[:, LENGTH], fields[:, EXPECTED]
    new_places = (lengths[:, None] + index).where(index < counts[:, None], own.shape[1])  # beyond the end: dropped
    own = torch.cat((own, own[:, :1]), dim=1).scatter(1, new_places.clamp(max=own.shape[1]), tokens.int())[:, :-1]
    last = (expected + counts - 1).clamp(min=0)[:, None]
    new = tokens.gather(1, (counts - 1).clamp(min=0)[:, None])[:, 0]
    has_new, is_expecting = counts > 0, expected >= 0
    is_right = has_new & is_expecting & (own.gather(1, last)[:, 0] == new)
    for place in range(tokens.shape[1]):
        is_hit = (place < counts - 1) | is_right
        rates.copy_(torch.where((place < counts) & is_expecting, rates + (is_hit.to(rates) - rates) * weight, rates))
    lengths = lengths + counts
    found = torch.where(is_right, expected + counts, _find_last(own, lengths))
    expected = torch.where(has_new, found, expected)
    fields[:, LENGTH], fields[:, EXPECTED] = lengths, expected
    ids[at] = own
    return _propose(own, fields, rates, least_rates, vocab_size=vocab_size)


def _find_last(own: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the place behind the last earlier one of the last `NGRAM` tokens of texts [R, width], int64 [R]; -1 where
    they stand there once."""
    places = torch.arange(own.shape[1], device=own.device)
    is_found = (places >= NGRAM) & (places < lengths[:, None])
    for back in range(1, NGRAM + 1):
        wanted = own.gather(1, (lengths - back).clamp(min=0)[:, None])
        is_found &= own.roll(back, dims=1) == wanted
    return torch.where(is_found, places, -1).amax(dim=1)


def _propose(
    own: torch.Tensor, fields: torch.Tensor, rates: torch.Tensor, least_rates: torch.Tensor, *, vocab_size: int
) -> torch.Tensor:
    lengths, expected = fields[:, LENGTH, None], fields[:, EXPECTED, None]
    index = torch.arange(len(least_rates), device=own.device)
    is_wanted = (index < fields[:, MOST, None]) & (least_rates <= rates[:, None])
    is_wanted &= (expected >= 0) & (fields[:, TEXT, None] >= 0)
    # A text that is repeated up to its end goes on from its beginning.
    places = expected + index % (lengths - expected).clamp(min=1)
    found = own.gather(1, places.clamp(min=0, max=own.shape[1] - 1)).long()
    is_good = (is_wanted & (found < vocab_size)).long().cumprod(dim=1).bool()
    return torch.where(is_good, found, -1)
