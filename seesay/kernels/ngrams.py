"""A Triton kernel that follows texts on the device and proposes how they go on (see
`seesay/llm/running/proposals/followed_texts.py`)."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

TEXT, MOST, LENGTH, EXPECTED = (tl.constexpr(place) for place in range(4))
NUM_FIELDS = tl.constexpr(4)
MOST_TOKENS = 16
"""Of a row, new or proposed ones: one kernel is compiled for all."""
BLOCK = 2048
"""Places that are looked at together."""


@triton.jit(do_not_specialize=["width", "num_tokens", "num_proposed", "vocab_size"])
def follow_texts_kernel(
    ids_ptr,
    fields_ptr,
    rates_ptr,
    tokens_ptr,
    counts_ptr,
    least_rates_ptr,
    proposed_ptr,
    width,
    num_tokens,
    num_proposed,
    vocab_size,
    WEIGHT: tl.constexpr,
    NUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add one row's new tokens to its text, look where its last three stood before unless all tokens were expected, and
    propose what came behind them."""
    row = tl.program_id(0)
    fields = fields_ptr + row * NUM_FIELDS
    text = tl.load(fields + TEXT)
    index = tl.arange(0, NUM)
    own_proposed = proposed_ptr + row * num_proposed + index
    if text < 0:
        tl.store(own_proposed, tl.full([NUM], -1, tl.int64), mask=index < num_proposed)
    else:
        own_ptr = ids_ptr + text * width
        length = tl.load(fields + LENGTH)
        expected = tl.load(fields + EXPECTED)
        rate = tl.load(rates_ptr + row)
        count = tl.load(counts_ptr + row)
        new_ptr = tokens_ptr + row * num_tokens
        if count > 0:
            # All but the last were proposed, and are what was expected.
            is_expecting = expected >= 0
            for _ in range(1, count):
                rate = tl.where(is_expecting, rate + (1.0 - rate) * WEIGHT, rate)
            place = expected + count - 1
            is_known = place < length
            known = tl.load(own_ptr + place, mask=is_expecting & is_known, other=0).to(tl.int64)
            new = tl.load(new_ptr + place - length, mask=is_expecting & (place >= length), other=0)
            is_right = is_expecting & (tl.where(is_known, known, new) == tl.load(new_ptr + count - 1))
            rate = tl.where(is_expecting, rate + (is_right.to(tl.float64) - rate) * WEIGHT, rate)
            added = tl.load(new_ptr + index, mask=index < count, other=0)
            tl.store(own_ptr + length + index, added.to(tl.int32), mask=index < count)
            tl.debug_barrier()  # threads read what others have written
            length += count
            expected = tl.where(is_right, expected + count, -1)
            last = tl.where(is_right, 0, length - 1)
            if last >= 3:
                first = tl.load(own_ptr + last - 2)
                second = tl.load(own_ptr + last - 1)
                third = tl.load(own_ptr + last)
                while (expected < 0) & (last >= 3):
                    places = last - tl.arange(0, BLOCK)
                    is_inside = places >= 3
                    is_found = is_inside & (tl.load(own_ptr + places - 1, mask=is_inside, other=-1) == third)
                    is_found &= tl.load(own_ptr + places - 2, mask=is_inside, other=-1) == second
                    is_found &= tl.load(own_ptr + places - 3, mask=is_inside, other=-1) == first
                    expected = tl.max(tl.where(is_found, places, -1), axis=0)
                    last -= BLOCK
            tl.store(fields + LENGTH, length)
            tl.store(fields + EXPECTED, expected)
            tl.store(rates_ptr + row, rate)
        most = tl.minimum(tl.load(fields + MOST), num_proposed)
        least = tl.load(least_rates_ptr + index, mask=index < most, other=float("inf"))
        num = tl.where(expected < 0, 0, tl.sum((least <= rate).to(tl.int32), axis=0))
        # A text that is repeated up to its end goes on from its beginning.
        places = expected + index % tl.maximum(length - expected, 1)
        found = tl.load(own_ptr + places, mask=index < num, other=0).to(tl.int64)
        stop = tl.min(tl.where((found < vocab_size) & (index < num), NUM, index), axis=0)
        tl.store(own_proposed, tl.where(index < stop, found, -1), mask=index < num_proposed)


def follow_texts(
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
    """See `seesay.llm.running.proposals.followed_texts.follow_texts`."""
    num_rows, num_tokens = tokens.shape
    num_proposed = len(least_rates)
    assert max(num_tokens, num_proposed) <= MOST_TOKENS
    assert ids.is_contiguous() and fields.is_contiguous() and tokens.is_contiguous() and counts.is_contiguous()
    proposed = torch.empty(num_rows, num_proposed, dtype=torch.int64, device=ids.device)
    follow_texts_kernel[(num_rows,)](
        ids,
        fields,
        rates,
        tokens,
        counts,
        least_rates,
        proposed,
        ids.shape[1],
        num_tokens,
        num_proposed,
        vocab_size,
        WEIGHT=weight,
        NUM=MOST_TOKENS,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return proposed
