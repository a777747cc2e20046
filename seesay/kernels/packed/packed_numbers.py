"""Matrices of 4-bit or 8-bit integers as kernels read them, and the kernel that multiplies them out.

A word of 16 bits holds one number of each *plane*, so a tile of words becomes as many tiles of numbers by shifts and
masks, without moving anything between threads. `seesay.device.linear.packed_weight.PackedWeight` says where each number
lies.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, assignment"
# ruff: noqa: SIM300

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

NVIDIA_ALONE = True
"""It unpacks numbers by PTX."""

_OUTPUTS_OF_PROGRAM = 32

_UNPACK_BFLOAT16 = tl.constexpr("""{
    .reg .b32 shifted;
    lop3.b32 $0, $4, 0x000f000f, 0x43004300, 0xea;
    shr.u32 shifted, $4, 4;
    lop3.b32 $1, shifted, 0x000f000f, 0x43004300, 0xea;
    shr.u32 shifted, $4, 8;
    lop3.b32 $2, shifted, 0x000f000f, 0x43004300, 0xea;
    shr.u32 shifted, $4, 12;
    lop3.b32 $3, shifted, 0x000f000f, 0x43004300, 0xea;
}""")
_UNPACK_FLOAT16 = tl.constexpr(_UNPACK_BFLOAT16.value.replace("0x43004300", "0x64006400"))
"""Two words at once: (word & mask) | exponent, in one instruction."""


class PackedTensors(NamedTuple):
    """A packed matrix [outputs, num_inputs] for rows of one 16-bit type: the fields of
    `seesay.device.linear.packed_weight.PackedWeight`, but factors int32 [groups, outputs] have the scale, rounded to
    that type, in their lower half, and in the upper one the zero point with the offset of `unpack_planes`.
    group_size: of a matrix with one group, any size that is at least num_inputs."""

    words: torch.Tensor
    factors: torch.Tensor
    order: torch.Tensor | None
    num_inputs: int
    group_size: int
    width: int
    bits: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        kept = (self.words, self.factors)
        return kept if self.order is None else (*kept, self.order)

    @property
    def options(self) -> dict[str, int]:
        return {
            "SIZE": self.num_inputs,
            "WIDTH": self.width,
            "GROUP": self.group_size,
            "BITS": self.bits,
            "HAS_ORDER": self.order is not None,
            "IS_COMPILED": self.words.get_device() >= 0,
        }

    @property
    def num_joined(self) -> int:
        """How many planes of a block, one after another, always are of one group."""
        planes = 16 // self.bits
        if self.group_size >= self.num_inputs or self.group_size % (planes * self.width) == 0:
            return planes
        return self.group_size // self.width if planes * self.width % self.group_size == 0 else 1


def join_factors(scales: torch.Tensor, zeros: torch.Tensor, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the factors of `PackedTensors` for scales and zero points [groups, outputs]."""
    offset = 0 if bits == 8 else 128 if dtype == torch.bfloat16 else 1024
    return torch.stack([scales.to(dtype), (zeros.short() + offset).to(dtype)], dim=-1).view(torch.int32).squeeze(-1)


@triton.jit
def unpack_planes(words, KIND: tl.constexpr, BITS: tl.constexpr, IS_COMPILED: tl.constexpr):
    """Return the numbers of all planes, each in KIND and more by the offset of their zero points.

    Four bits become the lowest ones of a number whose last bit counts 1: 128 (bfloat16) or 1024 (float16).
    """
    exponent: tl.constexpr = 0x4300 if KIND == tl.bfloat16 else 0x6400
    if BITS == 8:
        planes = ((words & 0xFF).to(tl.float32).to(KIND), ((words >> 8) & 0xFF).to(tl.float32).to(KIND))
    else:
        if IS_COMPILED:
            code: tl.constexpr = _UNPACK_BFLOAT16 if KIND == tl.bfloat16 else _UNPACK_FLOAT16
            fields = tl.inline_asm_elementwise(
                code,
                "=&r,=&r,=&r,=&r,r",
                [words],
                dtype=(tl.int16, tl.int16, tl.int16, tl.int16),
                is_pure=True,
                pack=2,
            )
        else:
            fields = (
                (words & 0xF) | exponent,
                ((words >> 4) & 0xF) | exponent,
                ((words >> 8) & 0xF) | exponent,
                ((words >> 12) & 0xF) | exponent,
            )
        planes = (
            fields[0].to(KIND, bitcast=True),
            fields[1].to(KIND, bitcast=True),
            fields[2].to(KIND, bitcast=True),
            fields[3].to(KIND, bitcast=True),
        )
    return planes


@triton.jit
def split_factors(factors, KIND: tl.constexpr):
    """Return the scales and the zero points that `join_factors` has joined for KIND, in float32."""
    if KIND == tl.bfloat16:  # the upper half of a float32
        scales, zeros = (factors << 16).to(tl.float32, bitcast=True), (factors & -65536).to(tl.float32, bitcast=True)
    else:
        scales = (factors & 0xFFFF).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
        zeros = (factors >> 16).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
    return scales, zeros


@triton.jit
def find_group(block, PLANE: tl.constexpr, PLANES: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr, LAST):
    """Return the group of inputs of a plane. Written so that planes of one group have the same one for the compiler."""
    if (PLANES * WIDTH) % GROUP == 0:
        group = block * (PLANES * WIDTH // GROUP) + PLANE * WIDTH // GROUP
    else:
        group = (block * PLANES + PLANE) * WIDTH // GROUP
    return tl.minimum(group, LAST)


@triton.jit
def multiply_out_kernel(
    words_ptr,
    factor_ptr,
    order_ptr,
    out_ptr,
    start,
    stop,
    num_outputs,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    IS_COMPILED: tl.constexpr,
):
    """Program (i, j) writes block j of matrix rows start + i · OUTPUTS … to out [stop - start, SIZE]."""
    planes: tl.constexpr = 16 // BITS
    num_blocks: tl.constexpr = (SIZE + WIDTH * planes - 1) // (WIDTH * planes)
    outputs = start + tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    block, columns, is_output = tl.program_id(1), tl.arange(0, WIDTH), outputs < stop
    own = words_ptr + outputs.to(tl.int64)[:, None] * (num_blocks * WIDTH) + columns[None, :]
    words = tl.load(own + block * WIDTH, mask=is_output[:, None], other=0, eviction_policy="evict_first")
    kind: tl.constexpr = out_ptr.dtype.element_ty
    numbers = unpack_planes(words, kind, BITS, IS_COMPILED)
    for plane in tl.static_range(planes):
        inputs = (block * planes + plane) * WIDTH + columns
        is_input = inputs < SIZE
        places = find_group(block, plane, planes, WIDTH, GROUP, (SIZE - 1) // GROUP) * num_outputs + outputs
        scales, zeros = split_factors(tl.load(factor_ptr + places, mask=is_output, other=0), kind)
        exact = (numbers[plane] - zeros.to(kind)[:, None]) * scales.to(kind)[:, None]
        if HAS_ORDER:
            inputs = tl.load(order_ptr + inputs, mask=is_input, other=0)
        target = out_ptr + (outputs - start).to(tl.int64)[:, None] * SIZE + inputs[None, :]
        tl.store(target, exact, mask=is_output[:, None] & is_input[None, :])


def multiply_out(packed: PackedTensors, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the outputs start to stop of the matrix, [stop - start, in], in a 16-bit type."""
    assert dtype.itemsize == 2 and 0 <= start < stop <= len(packed.words)
    out = torch.empty(stop - start, packed.num_inputs, dtype=dtype, device=packed.words.device)
    num_blocks = packed.words.shape[1] // packed.width
    multiply_out_kernel[(-(-(stop - start) // _OUTPUTS_OF_PROGRAM), num_blocks)](
        packed.words,
        packed.factors,
        packed.words if packed.order is None else packed.order,
        out,
        start,
        stop,
        len(packed.words),
        OUTPUTS=_OUTPUTS_OF_PROGRAM,
        **packed.options,
    )
    return out
