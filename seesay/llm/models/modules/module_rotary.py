"""Rotary embeddings of Transformers' modules, left to the kernel that writes keys and values to the cache.

An attention module calls a function of its source file, `apply_rotary_pos_emb`, and hands what it returns to the
function that attends. Ours returns queries and keys as they are and notes by what they are to be turned. It is used
where the function's own numbers are those of `Ops.rotate_and_write`, and only for these very tensors.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from seesay.llm.models.modules.module_attention import StepHolder

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = "apply_rotary_pos_emb"


@dataclass(frozen=True, slots=True)
class _Turn:
    """Takes the place of `original` in the source of an attention module."""

    original: Callable[..., Any]
    holder: StepHolder
    is_partial: bool

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **options: Any
    ) -> Any:
        step = self.holder.step
        is_usual = not args and not options and (cos.shape[-1] == query.shape[-1] or self.is_partial)
        if step is None or not is_usual or query.dim() != 4 or cos.shape[:2] != (1, query.shape[2]):
            return self.original(query, key, cos, sin, *args, **options)
        step.turn_later(query, key, cos, sin)
        return query, key


def fuse_rotary(modules: Sequence[torch.nn.Module], holder: StepHolder) -> None:
    """Leave turning to `holder` where these attention modules turn queries and keys as our kernel does."""
    for module in modules:
        forward = inspect.unwrap(type(module).forward)
        original = getattr(forward, "__globals__", {}).get(_NAME)
        if original is None or _NAME not in forward.__code__.co_names or not _turns(original, is_partial=False):
            continue
        turn = _Turn(original, holder, is_partial=_turns(original, is_partial=True))
        copied = types.FunctionType(
            forward.__code__,
            {**forward.__globals__, _NAME: turn},
            forward.__name__,
            forward.__defaults__,
            forward.__closure__,
        )
        copied.__kwdefaults__ = forward.__kwdefaults__
        object.__setattr__(module, "forward", types.MethodType(copied, module))


def part_rotary(modules: Sequence[torch.nn.Module]) -> None:
    """Let these modules turn queries and keys by themselves."""
    for module in modules:
        vars(module).pop("forward", None)


def _turns(original: Callable[..., Any], *, is_partial: bool) -> bool:
    """Whether `original` turns pairs of halves, with the same angles in both; the first half of all components, if
    `is_partial`."""
    numbers = torch.Generator().manual_seed(0)
    query, key = (torch.randn((1, heads, 3, 16), generator=numbers) for heads in (4, 2))
    size = 8 if is_partial else 16
    angles = torch.randn((1, 3, size // 2), generator=numbers).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()
    try:
        found = original(query.clone(), key.clone(), cos, sin)
    except Exception:  # it takes other arguments or sizes
        return False
    if not isinstance(found, tuple) or len(found) != 2:
        return False
    return all(
        isinstance(one, torch.Tensor) and one.shape == x.shape and torch.allclose(one, _turn(x, cos, sin), atol=1e-6)
        for one, x in zip(found, (query, key), strict=True)
    )


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    turned, rest = torch.split(x, [cos.shape[-1], x.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = turned.chunk(2, dim=-1)
    return torch.cat((turned * cos + torch.cat((-second, first), dim=-1) * sin, rest), dim=-1)
