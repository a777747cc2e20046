"""Models in PEFT: random adapters, and greedy answers."""

from __future__ import annotations

from typing import Any

import torch


def randomize(model: Any, scale: float, *, seed: int) -> None:
    """Give the adapter of a model random numbers, also where it begins with zeros."""
    torch.manual_seed(seed)
    for own, parameter in model.named_parameters():
        if "lora_B" in own or "lora_embedding_A" in own:
            torch.nn.init.normal_(parameter, std=scale)
        elif "magnitude" in own:
            parameter.data.mul_(0.3 + 2 * torch.rand_like(parameter))
        elif "modules_to_save" in own:
            parameter.data.add_(0.1 * torch.randn_like(parameter))


@torch.no_grad()
def answer(model: Any, token_ids: torch.Tensor, num_tokens: int) -> list[int]:
    """Return the likeliest tokens, also those that end answers."""
    num_given = token_ids.shape[1]
    for _ in range(num_tokens):
        token_ids = torch.cat((token_ids, model(token_ids).logits[:, -1:].argmax(-1)), 1)
    answered: list[int] = token_ids[0, num_given:].tolist()
    return answered
