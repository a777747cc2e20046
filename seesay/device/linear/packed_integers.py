"""The formats of weights of 4 or 8 bits, packed into int32: how AWQ, GPTQ and compressed-tensors store them. All become
a `PackedWeight` when they are loaded, some outputs at a time.

AWQ: arXiv 2306.00978, layout of AutoAWQ's `WQLinear_GEMM`. GPTQ: arXiv 2210.17323, layout of AutoGPTQ's `QuantLinear`.
compressed-tensors: its `pack_to_int32`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from seesay.checkpoint.parts import INPUTS, NEITHER, OUTPUTS, Part, TensorError, TensorLayout, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.linear.linear_method import Product, Sizes
from seesay.device.linear.packed_product import join_products, make_packed_product
from seesay.device.linear.packed_weight import Packer

_WORD_BITS = 32
_LARGEST = 256.0
"""The largest difference of a number and a zero point."""
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ has output 0, 1, … of each eight in a word, in fields of 4 bits from the lowest."""


class _Stored(NamedTuple):
    """The tensors that a checkpoint stores for one source of a layer.

    unpack(start, stop): the numbers of some outputs, uint8 [stop - start, in]; start is a multiple of 8. scales, zeros:
    [groups, out]. order int64 [in]: the inputs by their groups; None if they are in order.
    """

    num_outputs: int
    unpack: Callable[[int, int], torch.Tensor]
    scales: torch.Tensor
    zeros: torch.Tensor
    order: torch.Tensor | None = None


class _PackedMethod:
    """The settings of a format. dtype: of the model. scale_dtype: of scales in memory."""

    makes_matrix = True

    def __init__(
        self, quantization: Quantization, dtype: torch.dtype, scale_dtype: torch.dtype = torch.float32
    ) -> None:
        self.name = f"{quantization.format} {quantization.bits}"
        self._quantization, self._dtype, self._scale_dtype = quantization, dtype, scale_dtype


class Awq(_PackedMethod):
    """`qweight` [in, out / 8], `qzeros` [in / group, out / 8], `scales` [in / group, out]."""

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        group = _group_axis(self._quantization.group_size, num_inputs)
        return {
            "qweight": _integers("qweight", (INPUTS, 1), (OUTPUTS, 8)),
            "qzeros": _integers("qzeros", group, (OUTPUTS, 8)),
            "scales": TensorLayout(name="scales", axes=(group, (OUTPUTS, 1)), dtype=self._scale_dtype),
        }

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        _check_scales(weights["scales"], self._dtype)
        orders = _find_output_orders(weights["qweight"])
        stored = [
            _Stored(
                scales.shape[1],
                _in_order(_make_awq_unpacker(words), order),
                scales,
                _reorder(_unpack_awq(zeros), order),
            )
            for (words, zeros, scales), order in zip(
                _zip_places(weights, "qweight", "qzeros", "scales"), orders, strict=True
            )
        ]
        return _make_product(stored, bias, sizes, self._quantization, self._dtype)


class Gptq(_PackedMethod):
    """`qweight` [in · bits / 32, out], `qzeros` [in / group, out · bits / 32], `scales` [in / group, out], and `g_idx`
    [in]: the group of each input, in any order where the most important ones were quantized first."""

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        group = _group_axis(self._quantization.group_size, num_inputs)
        per_word = _WORD_BITS // self._quantization.bits
        return {
            "qweight": _integers("qweight", (INPUTS, per_word), (OUTPUTS, 1)),
            "qzeros": _integers("qzeros", group, (OUTPUTS, per_word)),
            "scales": TensorLayout(name="scales", axes=(group, (OUTPUTS, 1)), dtype=self._scale_dtype),
            "g_idx": _integers("g_idx", (INPUTS, 1)),
        }

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        _check_scales(weights["scales"], self._dtype)
        orders = _find_orders(weights["g_idx"], weights["scales"], self._quantization)
        bits = self._quantization.bits
        zeros_of = self._unpack_zeros(weights["qzeros"])
        stored = [
            _Stored(scales.shape[1], _make_gptq_unpacker(words, bits, sizes.inputs), scales, zeros, order)
            for (words, scales), zeros, order in zip(
                _zip_places(weights, "qweight", "scales"), zeros_of, orders, strict=True
            )
        ]
        return _make_product(stored, bias, sizes, self._quantization, self._dtype)

    def _unpack_zeros(self, weight: Weight) -> list[torch.Tensor]:
        """Return the zero points [groups, out] of each source. Version 1 stores them less by one: the word
        that would be one more than the largest number means 0 to some kernels, and is refused."""
        bits, offset = self._quantization.bits, self._quantization.zero_offset
        found, most = [], (1 << bits) - 1
        for (part, words), order in zip(weight.places(), _find_output_orders(weight), strict=True):
            zeros = _reorder(_unpack(words, bits), order).to(torch.int16) + offset
            if not (zeros <= most).all():
                raise TensorError(part.tensor, f"has zero points outside of {offset} to {most}")
            if self._quantization.is_symmetric:
                _check_version(part.tensor, zeros, bits, offset)
            found.append(zeros)
        return found


def _check_version(name: str, zeros: torch.Tensor, bits: int, offset: int) -> None:
    """Raise `TensorError` if the zero points of symmetric weights are those of the other version of GPTQ. One folder is
    easily taken for the other, and all answers would be noise."""
    middle = 1 << (bits - 1)
    if (zeros == middle + (1 if offset else -1)).all():
        claimed, other = ("gptq", "gptq_v2") if offset else ("gptq_v2", "gptq")
        raise TensorError(
            name,
            f"has zero points of {int(zeros.flatten()[0])}; sym=true means {middle}. checkpoint_format is {claimed!r}, "
            f"but the tensors are those of {other!r}: correct it in quantization_config",
        )


class PackQuantized(_PackedMethod):
    """compressed-tensors of format pack-quantized: `weight_packed` [out, in · bits / 32], `weight_scale`
    [out, in / group], `weight_shape` [2]; `weight_zero_point` [out · bits / 32, in / group] where weights are not
    symmetric, and `weight_g_idx` [in] where inputs were sorted."""

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:
        quantization = self._quantization
        group = _group_axis(quantization.group_size, num_inputs)
        per_word = _WORD_BITS // quantization.bits
        layouts = {
            "weight_packed": _integers("weight_packed", (OUTPUTS, 1), (INPUTS, per_word)),
            "weight_scale": TensorLayout(name="weight_scale", axes=((OUTPUTS, 1), group), dtype=self._scale_dtype),
            "weight_shape": TensorLayout(
                name="weight_shape", axes=(), own_shape=(2,), dtypes=("I64", "I32"), dtype=torch.int64
            ),
        }
        if not quantization.is_symmetric:
            layouts["weight_zero_point"] = _integers("weight_zero_point", (OUTPUTS, per_word), group)
        if quantization.has_order:
            layouts["weight_g_idx"] = _integers("weight_g_idx", (INPUTS, 1))
        return layouts

    def prepare(self, weights: Mapping[str, Weight], bias: torch.Tensor | None, sizes: Sizes) -> Product:
        quantization, scale = self._quantization, weights["weight_scale"]
        bits, middle = quantization.bits, 1 << (quantization.bits - 1)
        _check_scales(scale, self._dtype)
        _check_shapes(weights["weight_shape"], weights["weight_packed"])
        orders: Sequence[torch.Tensor | None] = [None] * len(scale.parts)
        if quantization.has_order:
            orders = _find_orders(weights["weight_g_idx"], scale, quantization)
        stored = []
        for index, (words, scales) in enumerate(_zip_places(weights, "weight_packed", "weight_scale")):
            if quantization.is_symmetric:
                zeros = torch.full_like(scales.t(), middle, dtype=torch.int16)
            else:
                _, zero_words = weights["weight_zero_point"].places()[index]
                order = _find_output_orders(weights["weight_zero_point"])[index]
                zeros = _reorder(_unpack(zero_words.t().contiguous(), bits)[:, : len(scales)], order)
            unpack = _make_row_unpacker(words, bits, sizes.inputs)
            stored.append(_Stored(len(scales), unpack, scales.t(), zeros, orders[index]))
        return _make_product(stored, bias, sizes, quantization, self._dtype)


def _make_product(
    stored: Sequence[_Stored],
    bias: torch.Tensor | None,
    sizes: Sizes,
    quantization: Quantization,
    dtype: torch.dtype,
) -> Product:
    """Return the product with all sources of a layer. Sources whose inputs are in different orders have products of
    their own."""
    first = stored[0].order
    if all(_are_equal(first, source.order) for source in stored[1:]):
        return _pack(stored, bias, sizes, quantization, dtype)
    products = [_pack([source], None, sizes, quantization, dtype) for source in stored]
    return join_products(products, bias, dtype)


def _pack(
    stored: Sequence[_Stored],
    bias: torch.Tensor | None,
    sizes: Sizes,
    quantization: Quantization,
    dtype: torch.dtype,
) -> Product:
    """Return the product with sources whose inputs are in one order. Outputs that are padded have scales of zero."""
    device, order = stored[0].scales.device, stored[0].order
    paddings = [-source.num_outputs % sizes.output_multiple for source in stored]
    packer = Packer(
        num_outputs=sum(source.num_outputs for source in stored) + sum(paddings),
        num_inputs=sizes.inputs,
        group_size=quantization.group_size,
        bits=quantization.bits,
        device=device,
    )
    first = 0
    for source, padding in zip(stored, paddings, strict=True):
        packer.fill(first, source.num_outputs, source.unpack, order)
        first += source.num_outputs + padding
    scales, zeros = (
        torch.cat([torch.nn.functional.pad(t, (0, n)) for t, n in zip(tensors, paddings, strict=True)], dim=1)
        for tensors in ([source.scales for source in stored], [source.zeros for source in stored])
    )
    return make_packed_product(
        packer.finish(scales, zeros, order), bias, dtype, has_plain_copy=quantization.has_plain_copy
    )


def _are_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool((one == other).all())


def _zip_places(weights: Mapping[str, Weight], *names: str) -> list[tuple[torch.Tensor, ...]]:
    """Return the tensors of these names, source by source."""
    return [
        tuple(place for _, place in places) for places in zip(*(weights[name].places() for name in names), strict=True)
    ]


def _find_output_orders(weight: Weight) -> list[torch.Tensor | None]:
    """Return, for each source, its unpacked outputs in the order in which the layer has them, int64 [out] on the CPU;
    None where they are in that order."""
    orders = [part.output_order() for part in weight.parts]
    return [None if order is None else torch.cat([torch.arange(*_ends(run)) for run in order]) for order in orders]


def _ends(run: range) -> tuple[int, int, int]:
    return run.start, run.stop, run.step


def _reorder(outputs: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """Return the columns of outputs [groups, out] in this order."""
    return outputs if order is None else outputs.index_select(1, order.to(outputs.device))


def _in_order(
    unpack: Callable[[int, int], torch.Tensor], order: torch.Tensor | None
) -> Callable[[int, int], torch.Tensor]:
    """Return what unpacks outputs in this order, by what unpacks some in their own."""
    if order is None:
        return unpack

    def unpack_in_order(start: int, stop: int) -> torch.Tensor:
        wanted = order[start:stop]
        first, last = int(wanted.min()) // 8 * 8, int(wanted.max())
        numbers = unpack(first, last + 1)
        return numbers.index_select(0, (wanted - first).to(numbers.device))

    return unpack_in_order


def _integers(name: str, *axes: tuple[int, int]) -> TensorLayout:
    return TensorLayout(name=name, axes=axes, dtypes=("I32",), dtype=torch.int32, is_reordered_later=True)


def _group_axis(group_size: int | None, num_inputs: int) -> tuple[int, int]:
    """Return the axis of groups of inputs; one group of all has no shards."""
    return (NEITHER, 1) if group_size is None or group_size >= num_inputs else (INPUTS, group_size)


def _unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the fields of int32 words [N, K] from the lowest on: uint8 [N, K · 32 / bits]."""
    fields = words.flatten().view(torch.uint8).view(len(words), 4 * words.shape[1])  # one column may have any stride
    return fields if bits == 8 else torch.stack([fields & 15, fields >> 4], dim=-1).flatten(1)


def _unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """Return the fields of int32 words [N, K] in the order of outputs: uint8 [N, K · 8]."""
    places = torch.tensor(_AWQ_PLACES, device=words.device)
    return _unpack(words, 4).view(*words.shape, 8).index_select(2, places).flatten(1)


def _make_awq_unpacker(words: torch.Tensor) -> Callable[[int, int], torch.Tensor]:
    """Of words [in, out / 8]."""
    return lambda start, stop: _unpack_awq(words[:, start // 8 : -(-stop // 8)]).t()


def _make_gptq_unpacker(words: torch.Tensor, bits: int, num_inputs: int) -> Callable[[int, int], torch.Tensor]:
    """Of words [in · bits / 32, out]."""
    return lambda start, stop: _unpack(words[:, start:stop].t(), bits)[:, :num_inputs]


def _make_row_unpacker(words: torch.Tensor, bits: int, num_inputs: int) -> Callable[[int, int], torch.Tensor]:
    """Of words [out, in · bits / 32]."""
    return lambda start, stop: _unpack(words[start:stop], bits)[:, :num_inputs]


def _find_orders(group_ids: Weight, scales: Weight, quantization: Quantization) -> list[torch.Tensor | None]:
    """Return, for each source, its inputs sorted by their groups, as its tensor of groups says; without values, on the
    meta device, as the settings say."""
    if group_ids.data.is_meta:
        return [groups.long() if quantization.has_order else None for _, groups in group_ids.places()]
    return [
        _find_order(part, groups, _first_group(scale_part), quantization.group_size)
        for (part, groups), scale_part in zip(group_ids.places(), scales.parts, strict=True)
    ]


def _first_group(part: Part) -> int:
    """Return the first group that a part of the scales has: not 0 in a shard of the inputs."""
    return next((axis.stored_picks()[0].start for axis in part.axes if axis.dim == INPUTS), 0)


def _find_order(part: Part, groups: torch.Tensor, first: int, group_size: int | None) -> torch.Tensor | None:
    num_inputs = len(groups)
    size = num_inputs if group_size is None else min(group_size, num_inputs)
    num_groups = -(-num_inputs // size)
    groups = groups.long() - first
    [inputs] = part.axes
    if inputs.num_picked < inputs.size and not ((groups >= 0) & (groups < num_groups)).all():
        raise TensorError(
            part.tensor,
            "has groups whose inputs are far apart (desc_act): they cannot be divided among ranks; use tp=1 or pp=2",
        )
    if not ((groups >= 0) & (groups < num_groups)).all():
        raise TensorError(part.tensor, f"has groups outside of {first} to {first + num_groups - 1}")
    expected = torch.arange(num_inputs, device=groups.device) // size
    if (groups == expected).all():
        return None
    in_order, order = torch.sort(groups, stable=True)
    if not (in_order == expected).all():
        raise TensorError(part.tensor, f"has groups that are not of {size} inputs each")
    return order


def _check_shapes(shapes: Weight, numbers: Weight) -> None:
    """Check what a tensor of the checkpoint says about the whole matrix of its module."""
    for (part, shape), packed in zip(shapes.places(), numbers.parts, strict=True):
        expected = [axis.size for axis in packed.axes]
        if not (shape == torch.tensor(expected, device=shape.device)).all():
            raise TensorError(part.tensor, f"is {shape.tolist()}, the config says {expected}")


def _check_scales(weight: Weight, dtype: torch.dtype) -> None:
    """Raise `TensorError` for scales with which weights may not be finite in `dtype`, that of the model."""
    for part, place in weight.places():
        if not (place.float() * _LARGEST).to(dtype).isfinite().all():
            raise TensorError(part.tensor, "has scales that are not finite, or too large")
