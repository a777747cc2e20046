"""A matrix of 4-bit or 8-bit integers in memory: the one layout for all formats that store such weights in groups of
inputs, whatever order these have in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

_WORD_BITS = 16
_WIDEST = 64
_SMALLEST = 16
_ELEMENTS_AT_ONCE = 1 << 23
"""Numbers that are unpacked or multiplied out at a time, so that temporary memory does not grow with the matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """W [outputs, num_inputs], with W[o, order[k]] = (q[o, k] - zeros[g, o]) · scales[g, o], g = k // group_size.

    words: int16 [outputs, blocks · width]. A word has 16 / bits numbers, from the lowest bits on. Inputs k are cut into
        blocks of width · 16 / bits. Number p of word c in a block is that of the block's input p · width + c, so the
        numbers of one place, a plane, are `width` neighbors of one group.
    scales: [groups, outputs] in a floating-point type. zeros: [groups, outputs], uint8 for 4 bits, else int16.
    order: int32 [num_inputs]; None where inputs are in order. Then every group has group_size inputs, but for the last.
    group_size: at least num_inputs where all inputs are one group.
    """

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    order: torch.Tensor | None
    num_inputs: int
    group_size: int
    width: int
    bits: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        kept = (self.words, self.scales, self.zeros)
        return kept if self.order is None else (*kept, self.order)

    def multiply_out(self, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Return outputs start to stop of W: [stop - start, num_inputs]. Computed by torch, in float32."""
        exact = self.differences(start, stop).float().mul_(self._spread(self.scales, start, stop).float()).to(dtype)
        return exact if self.order is None else torch.empty_like(exact).index_copy_(1, self.order.long(), exact)

    def differences(self, start: int, stop: int) -> torch.Tensor:
        """Return the numbers of outputs start to stop less their zero points, in the order of k: int16
        [stop - start, num_inputs]."""
        return self._unpack(start, stop).short().sub_(self._spread(self.zeros, start, stop).short())

    def _spread(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return for each of some outputs and each input what a tensor [groups, outputs] has of its group."""
        return tensor[:, start:stop].t().repeat_interleave(self._inputs_per_group, dim=1)[:, : self.num_inputs]

    @property
    def _inputs_per_group(self) -> int:
        return min(self.group_size, self.num_inputs)

    def _unpack(self, start: int, stop: int) -> torch.Tensor:
        """Return the numbers of outputs start to stop in the order of k: uint8 [stop - start, num_inputs]."""
        halves = self.words[start:stop].view(torch.uint8).view(stop - start, -1, self.width, 2).unbind(-1)
        planes = halves if self.bits == 8 else [plane for half in halves for plane in (half & 15, half >> 4)]
        return torch.stack(list(planes), dim=2).flatten(1)[:, : self.num_inputs]


class Packer:
    """Fills the words of a matrix, some outputs at a time."""

    def __init__(
        self, *, num_outputs: int, num_inputs: int, group_size: int | None, bits: int, device: torch.device
    ) -> None:
        assert bits in (4, 8)
        self._num_inputs, self._bits = num_inputs, bits
        self._group_size = num_inputs if group_size is None else min(group_size, num_inputs)
        self._width = _choose_width(self._group_size if self._group_size < num_inputs else _WIDEST)
        block = self._width * _WORD_BITS // bits
        num_words = -(-num_inputs // block) * self._width
        self._words = torch.zeros(num_outputs, num_words, dtype=torch.int16, device=device)

    def fill(
        self,
        first: int,
        num_outputs: int,
        unpack: Callable[[int, int], torch.Tensor],
        order: torch.Tensor | None,
    ) -> None:
        """Fill `num_outputs` outputs from `first` on. unpack(start, stop) returns the numbers of some of them, uint8
        [stop - start, num_inputs], in the checkpoint's order of inputs."""
        for start, stop in cut_outputs(num_outputs, self._num_inputs):
            numbers = unpack(start, stop)
            if order is not None:
                numbers = numbers.index_select(1, order)
            self._words[first + start : first + stop] = self._pack(numbers)

    def finish(self, scales: torch.Tensor, zeros: torch.Tensor, order: torch.Tensor | None) -> PackedWeight:
        """Return the matrix with scales and zero points [groups, outputs]."""
        return PackedWeight(
            words=self._words,
            scales=scales.contiguous(),
            zeros=zeros.to(torch.uint8 if self._bits == 4 else torch.int16).contiguous(),
            order=None if order is None else order.to(torch.int32),
            num_inputs=self._num_inputs,
            group_size=self._group_size,
            width=self._width,
            bits=self._bits,
        )

    def _pack(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the words of numbers uint8 [N, num_inputs]: int16 [N, blocks · width]."""
        num_planes = _WORD_BITS // self._bits
        padded = F.pad(numbers, (0, -self._num_inputs % (num_planes * self._width)))
        planes = padded.view(len(numbers), -1, num_planes, self._width).unbind(2)
        halves = planes if self._bits == 8 else (planes[0] | (planes[1] << 4), planes[2] | (planes[3] << 4))
        return torch.stack(list(halves), dim=-1).view(torch.int16).flatten(1)


def cut_outputs(num_outputs: int, num_inputs: int, num_elements: int = _ELEMENTS_AT_ONCE) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of runs of outputs with about `num_elements` elements; all starts are multiples of 8."""
    step = max(8, num_elements // num_inputs // 8 * 8)
    for start in range(0, num_outputs, step):
        yield start, min(start + step, num_outputs)


def _choose_width(group_size: int) -> int:
    """Return the largest power of two that divides the groups, and suits the kernels."""
    width = min(group_size & -group_size, _WIDEST)
    assert width >= _SMALLEST
    return width
