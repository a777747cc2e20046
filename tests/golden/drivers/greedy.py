"""Greedy answers of published models that take and return the keys of earlier tokens."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from golden.cases import NUM_TOKENS


def answer(model: Any, ids: list[int], ends: Collection[int], **first: Any) -> list[int]:
    """Return the likeliest tokens, each computed with the keys of those before it, without one of `ends`. first:
    further arguments of the prompt's forward."""
    tokens: list[int] = []
    given, past = torch.tensor([ids]), None
    for _ in range(NUM_TOKENS):
        mask = torch.ones(1, len(ids) + len(tokens), dtype=torch.long)
        output = model(given, past_key_values=past, attention_mask=mask, use_cache=True, **first)
        token = int(output.logits[0, -1].argmax())
        if token in ends:
            break
        tokens.append(token)
        given, past, first = torch.tensor([[token]]), output.past_key_values, {}
    return tokens
