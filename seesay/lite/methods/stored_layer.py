"""A decoder layer as it is stored: what a method makes of its matrices becomes tensors by the checkpoint's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from seesay.checkpoint.parts import OUTPUTS, Weight
from seesay.device.linear.linear import UNQUANTIZED, Linear
from seesay.device.linear.linear_method import LinearMethod
from seesay.lite.methods.plain_layer import PlainLayer

Pieces = Sequence[Mapping[str, Tensor]]
"""The tensors of each piece of a linear layer, by the names of its method's layouts."""


class StoredLayer:
    """A layer whose matrices, biases and norms are those of `layer`, as the quantized model stores it."""

    def __init__(self, layer: PlainLayer) -> None:
        self._layer, self._source = layer, layer.source
        linears = layer.source.make_quantized_decoder().linears
        self._linears = {name: linears[layer.prefix + name] for name in layer.linears}

    def export(self, quantized: Mapping[str, tuple[LinearMethod, Pieces]]) -> dict[str, Tensor]:
        """Return all tensors of the layer by the checkpoint's names: of linear layers those of their method, of others
        the weight, and biases and norms, in the types in which the checkpoint has them."""
        found: dict[str, Tensor] = {}
        for name, linear in self._linears.items():
            path = self._layer.prefix + name
            method, pieces = quantized.get(name) or (UNQUANTIZED, self._round(name))
            tensors = _join_pieces(linear, path, method, pieces)
            found |= split_tensors(linear, path, method, tensors, self._source.stored_module)
            _, bias = linear.list_weights(path)
            if bias is not None:
                bias.data = self._layer.biases[name]
                found |= self._name(bias)
        for tensor, weight in self._layer.norm_weights.items():
            stored = weight.without_data()
            norm = self._layer.norms[tensor.removeprefix(self._layer.prefix).removesuffix(".weight")]
            stored.data = norm - weight.offset
            found |= self._name(stored)
        return {name: tensor.contiguous().cpu() for name, tensor in found.items()}

    def pieces(self, name: str) -> Sequence[Tensor]:
        """Return the matrices [out, in] of the pieces of a linear layer, with rows in the order of the checkpoint."""
        matrix, order = self._layer.matrices[name], _find_row_order(self._layer.weights[name][0]["weight"])
        if order is not None:
            matrix = torch.empty_like(matrix).index_copy_(0, order.to(matrix.device), matrix)
        return matrix.chunk(len(self._layer.name_pieces(name)))

    def modules(self, name: str) -> dict[str, list[str]]:
        """Return the checkpoint's names of the modules that each piece of a linear layer is made of."""
        parts = self._linears[name].list_weights(self._layer.prefix + name)[0]["weight"].parts
        pieces = self._layer.name_pieces(name)
        count = len(parts) // len(pieces)
        found = {}
        for number, piece in enumerate(pieces):
            own = dict.fromkeys(part.tensor.removesuffix(".weight") for part in parts[number * count :][:count])
            found[piece] = [self._source.stored_module(module) for module in own]
        return found

    def weight_type(self, name: str) -> torch.dtype:
        """Return the type in which the plain checkpoint has the weight of a linear layer."""
        return self._source.stored_type(self._layer.weights[name][0]["weight"].parts[0].tensor)

    def _round(self, name: str) -> Pieces:
        return [{"weight": piece.to(self.weight_type(name))} for piece in self.pieces(name)]

    def _name(self, weight: Weight) -> dict[str, Tensor]:
        source = self._source
        return {source.stored_as[own]: source.as_stored(own, data) for own, data in _join_parts(weight).items()}


def _join_pieces(
    linear: Linear, path: str, method: LinearMethod, pieces: Sequence[Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Return the tensors of a whole linear layer by those of its pieces; the layer has this method from now on."""
    if len(pieces) == 1:
        return pieces[0]
    linear.method = method
    found = {}
    for key, weight in linear.list_weights(path)[0].items():
        axis, count = weight.joined_axis, len(weight.parts) // len(pieces)
        if axis is None:  # each module of a piece has all of it
            found[key] = torch.stack([piece[key] for piece in pieces for _ in range(count)])
        else:
            found[key] = torch.cat([piece[key] for piece in pieces], dim=axis)
    return found


def split_tensors(
    linear: Linear,
    path: str,
    method: LinearMethod,
    tensors: Mapping[str, Tensor],
    stored_module: Callable[[str], str],
) -> dict[str, Tensor]:
    """Return the tensors of a linear layer for each module that it is made of, by the checkpoint's names. `tensors` are
    those of the whole layer with its outputs in the order in which they are stored, by the names of the method's
    layouts; the layer has this method from now on. stored_module(name): the checkpoint's name of a module."""
    linear.method = method
    found = {}
    for key, weight in linear.list_weights(path)[0].items():
        if weight.joined_axis is None:  # each module has all of it
            weight.data = tensors[key].expand(weight.shape)
        else:
            order = _find_row_order(weight)
            weight.data = tensors[key] if order is None else tensors[key].index_select(weight.joined_axis, order)
        for own, data in _join_parts(weight).items():
            module, _, suffix = own.rpartition(".")
            found[f"{stored_module(module)}.{suffix}"] = data
    return found


def _find_row_order(weight: Weight) -> Tensor | None:
    """Return, for each output of a layer, its place among those that are stored, int64 [out]; None where they are in
    the same order, and where what unpacks a weight brings them into the layer's."""
    first, found, is_changed = 0, [], False
    for part in weight.parts:
        [axis] = [axis for axis in part.axes if axis.dim == OUTPUTS]
        places = None if axis.per > 1 else axis.places()
        is_changed |= places is not None
        for run in places or (range(axis.num_picked),):
            found.append(first + torch.arange(run.start, run.stop, run.step))
        first += axis.num_picked
    return torch.cat(found) if is_changed else None


def _join_parts(weight: Weight) -> dict[str, Tensor]:
    """Return the tensors that the parts of a weight were cut from, by the model's names."""
    found: dict[str, Tensor] = {}
    for part, place in weight.places():
        whole = found.setdefault(part.tensor, place.new_zeros(part.stored_shape))
        for picks, taken in part.regions():
            whole[tuple(slice(pick.start, pick.stop, pick.step) for pick in picks)] = place[taken]
    return found
