"""The linear layer of decoder, head and towers: it knows where its tensors come from, owns them, and computes with the
method that its checkpoint or the user chose for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seesay.checkpoint.loading import WeightGroup
from seesay.checkpoint.parts import OUTPUTS, Source, TensorLayout, Weight
from seesay.device.determinism import deterministic_dtype
from seesay.device.linear.adapted import Adaptation, adapt_fused
from seesay.device.linear.fixed_rows import fix_rows
from seesay.device.linear.linear_method import (
    FusedKernel,
    LinearKernel,
    LinearMethod,
    Product,
    RowKernel,
    Sizes,
    pad_matrix,
    pad_outputs,
)
from seesay.device.linear.matmul import make_product
from seesay.device.linear.row_quantization import RowFormat
from seesay.errors import CheckpointError

_BIAS = TensorLayout(name="bias", axes=((OUTPUTS, 1),))


class Unquantized:
    """The weight as it is, in the model's own type."""

    name = "unquantized"
    makes_matrix = True

    def layouts(self, num_inputs: int) -> Mapping[str, TensorLayout]:  # noqa: ARG002
        return {"weight": TensorLayout(name="weight", axes=((OUTPUTS, 1), (1, 1)))}

    def prepare(self, weights: Mapping[str, Weight], bias: Tensor | None, sizes: Sizes) -> Product:
        return make_product(pad_matrix(weights["weight"].data, sizes), bias)


UNQUANTIZED = Unquantized()


class Linear(nn.Module):
    """y = x Wᵀ + b over the last axis.

    `sources` are the modules of the checkpoint that its outputs come from, one after another, named beside the layer
    itself; by default it is one module of its own name. `inputs` are those of the stored `in_features` that it takes;
    all by default. So a layer may be a rank's slice: nothing else of the checkpoint is read. Not `has_own_bias`: the
    stored bias is added by another rank, and is not read. `bias_sources` are those of the bias, where they differ: one
    for each source, None for one without a bias. Inputs, and the outputs of each source, may be padded with zeros to
    multiples in memory, when `finish` is called. has_unit_rows: each row of the stored weight is divided by its length;
    only the plain format has that. is_quantizable: whether it may be quantized while it is loaded. is_transposed: the
    stored plain weight has its axes in the opposite order: see `Part`.

    stored_inputs: the number of inputs of the stored layer.

    A layer is made with parameters `weight` and `bias`, usually on the meta device, and computes with them as they are.
    When it is finished, `method` makes a product of the loaded tensors; the `weight` parameter then is empty. Finished
    once more, it copies the new tensors to the addresses of the old ones where it can, so that CUDA graphs stay valid.

    fused: computes the layer for up to `max_fused_rows` rows with what comes before and behind (see `Product`); None
    where there is no such kernel. quantized: a format of rows, and what computes the layer with rows in it; None where
    rows stay as they are. gated(x, activation): compute the activation of the first half of the outputs times the
    second half; None where it is no faster than to do so with the outputs. adaptation: what `extend` adds.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int | None = None,
        *,
        bias: bool = True,
        has_own_bias: bool = True,
        sources: Sequence[Source] | None = None,
        inputs: range | None = None,
        bias_sources: Sequence[Source | None] | None = None,
        input_multiple: int = 1,
        output_multiple: int = 1,
        has_unit_rows: bool = False,
        is_quantizable: bool = True,
        is_transposed: bool | None = False,
    ) -> None:
        super().__init__()
        self._is_transposed = is_transposed
        self.is_quantizable = is_quantizable
        self._fixed_dtype = deterministic_dtype()
        self._has_unit_rows = has_unit_rows
        self.stored_inputs, self.inputs = in_features, inputs
        in_features = in_features if inputs is None else len(inputs)
        assert in_features
        self._has_foreign_bias = bias and not has_own_bias
        self._sources = None if sources is None else tuple(sources)
        self._bias_sources = None if bias_sources is None else tuple(bias_sources)
        outputs = (out_features,) if sources is None else tuple(source.num_picked for source in sources)
        assert all(outputs) and (sources is None or out_features is None)
        self.sizes = Sizes(
            outputs=tuple(n for n in outputs if n),
            inputs=in_features,
            output_multiple=output_multiple,
            input_multiple=input_multiple,
        )
        self.in_features, self.out_features = in_features, sum(self.sizes.outputs)
        self.method: LinearMethod = UNQUANTIZED
        self.weight = nn.Parameter(torch.empty(self.out_features, in_features), requires_grad=False)
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(self.out_features), requires_grad=False) if bias and has_own_bias else None
        )
        self.fused: FusedKernel | None = None
        self.max_fused_rows = 0
        self.quantized: tuple[RowFormat, RowKernel] | None = None
        self._product: Product | None = None
        self._run: LinearKernel = self._run_unfinished
        self.gated: Callable[[Tensor, str], Tensor] | None = None
        self.adaptation: Adaptation | None = None
        self._observe: Callable[[Tensor], None] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x)

    def add(self, target: Tensor, x: Tensor) -> None:
        """Add x Wᵀ to target [N, out] in place, for x [N, in], without the bias."""
        if self._observe is not None:
            self._observe(x)
        if self._product is None:
            target.addmm_(x, self.weight.t())
        else:
            self._product.add(target, x)
        if self.adaptation is not None:
            self.adaptation.add(x, target)

    def multiply(self, x: Tensor) -> Tensor:
        """Return x Wᵀ [N, out] for x [N, in], without the bias, and without what functions of `extend` add."""
        if self._product is None:
            return x @ self.weight.t()
        multiple = self.sizes.output_multiple
        product = x.new_zeros(len(x), sum(-(-size // multiple) * multiple for size in self.sizes.outputs))
        self._product.add(product, x)
        return product

    @property
    def is_observed(self) -> bool:
        return self._observe is not None

    def why_not(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Return why this layer cannot be computed on the device with its method; None if it can."""
        return None

    def modules_in(self, path: str) -> tuple[str, ...]:
        """Return the names of the checkpoint's modules, in the model's spelling, if the layer is at `path`."""
        return tuple(source.module for source in self.sources_at(path))

    def unread_at(self, path: str) -> tuple[str, ...]:
        """Return the tensors, or modules, in the model's spelling that the checkpoint has for the layer at `path` and
        that another rank reads."""
        return tuple(f"{module}.bias" for module in self.modules_in(path)) if self._has_foreign_bias else ()

    def find_layouts(self) -> Mapping[str, TensorLayout]:
        """Return how the checkpoint stores the layer's tensors, but for its bias."""
        found = self.method.layouts(self.stored_inputs)
        return {
            name: replace(each, is_transposed=self._is_transposed) if each.is_of_weight else each
            for name, each in found.items()
        }

    def list_weights(self, path: str) -> tuple[dict[str, Weight], Weight | None]:
        """Return the weights of the layer, which is at `path` in the model, for its method, and its bias."""
        sources = self.sources_at(path)
        bias_sources = sources
        if self._bias_sources is not None:
            bias_sources = _name_at(path, [source for source in self._bias_sources if source is not None])
        sources, bias_sources = _join_whole(sources), _join_whole(bias_sources)
        layouts = self.find_layouts()
        weights = {name: layout.weight(sources, self.stored_inputs, self.inputs) for name, layout in layouts.items()}
        if self._has_unit_rows:
            if self.method is not UNQUANTIZED:
                raise CheckpointError(f"{path} must not be quantized: its weight is normalized")
            assert self.inputs is None, "a part of a row does not know its length"
            weights["weight"].has_unit_rows = True
        return weights, None if self.bias is None else _BIAS.weight(bias_sources, self.stored_inputs)

    def make_group(self, path: str, *, is_trial: bool = False) -> WeightGroup:
        """Return the weights of the layer, which is at `path` in the model. It is finished with them when they are
        loaded; in a trial, it makes a product of them, which raises what finishing would raise, and drops it."""
        weights, bias = self.list_weights(path)

        def finish() -> None:
            product, padded = self._prepare(weights, None if bias is None else self._fill_bias(bias.data))
            if not is_trial:
                self._take(product, padded)

        return WeightGroup(weights=(*weights.values(), *(() if bias is None else (bias,))), finish=finish)

    def use(self, weight: Tensor) -> None:
        """Get ready to compute with this weight, which belongs to another layer, too."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._product = None  # never copied into: the tensor is the other layer's
        self.finish()

    def finish(self) -> None:
        """Get ready to compute with the parameters as they are."""
        weights, _ = self.list_weights("")
        weights["weight"].data = self.weight.data
        self._take(*self._prepare(weights, None if self.bias is None else self.bias.data))

    def drop(self) -> None:
        """Drop all tensors. The layer computes nothing until it is finished again."""
        self._product = None
        self.weight = nn.Parameter(self.weight.data.new_empty(0), requires_grad=False)
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.data.new_empty(0), requires_grad=False)
        self._compose()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of a finished layer; none before it is finished, or once they are dropped."""
        return () if self._product is None else self._product.tensors

    def extend(
        self,
        *,
        adaptation: Adaptation | None = None,
        observe: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Call functions around the product, in place of those of an earlier call. None of them costs anything where
        it is not given. An observed layer has no fused kernel.

        observe(x) sees every input. The adaptation adds to the output; where the product has been added to the
        residual, to that. CUDA graphs do what they were recorded with.
        """
        self._observe, self.adaptation = observe, adaptation
        self._compose()

    def sources_at(self, path: str) -> tuple[Source, ...]:
        """Return what its outputs come from, named as in the model, if the layer is at `path`."""
        if self._sources is None:
            return (Source(module=path, num_outputs=self.out_features),)
        return _name_at(path, self._sources)

    def _fill_bias(self, stored: Tensor) -> Tensor:
        """Return the bias of all outputs: that of the checkpoint, and zeros where it has none."""
        if self._bias_sources is None:
            return stored
        pieces, first = [], 0
        for source, size in zip(self._bias_sources, self.sizes.outputs, strict=True):
            pieces.append(stored.new_zeros(size) if source is None else stored[first : first + size])
            first += 0 if source is None else size
        return torch.cat(pieces)

    def _prepare(self, weights: Mapping[str, Weight], bias: Tensor | None) -> tuple[Product, Tensor | None]:
        """Return the product and its bias. The loaded weights are freed."""
        padded = None if bias is None else pad_outputs(bias, self.sizes)
        self.weight = nn.Parameter(next(iter(weights.values())).data.new_empty(0), requires_grad=False)
        product = self.method.prepare(weights, padded, self.sizes)
        if self._fixed_dtype is not None:
            product = fix_rows(product, padded, self.sizes, dtype=self._fixed_dtype, name=self.method.name)
        for weight in weights.values():
            del weight.data  # the product has what it needs
        return product, padded

    def _take(self, product: Product, bias: Tensor | None) -> None:
        """Compute with a product from now on."""
        if self._product is not None and self._product.try_copy(product):
            return
        self._product = product
        if bias is not None:
            self.bias = nn.Parameter(bias, requires_grad=False)
        self._compose()

    def _compose(self) -> None:
        product = self._product
        run = self._run_unfinished if product is None else product.run
        adaptation = self.adaptation
        is_plain = self._observe is None and adaptation is None
        self._run = run if is_plain else self._make_extended(run)
        self.fused, self.max_fused_rows, self.quantized, self.gated = None, 0, None, None
        if product is None or self._observe is not None:
            return
        if product.fused is not None:
            self.fused = product.fused if adaptation is None else adapt_fused(product, adaptation)
            self.max_fused_rows = product.max_fused_rows
        if is_plain and product.rows is not None and product.run_rows is not None:
            self.quantized = product.rows, product.run_rows
        if adaptation is not None and adaptation.gate is not None:
            self.gated = partial(_gate, run, adaptation.gate)

    def _run_unfinished(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def _make_extended(self, run: LinearKernel) -> LinearKernel:
        observe, adaptation = self._observe, self.adaptation

        def extended(x: Tensor) -> Tensor:
            if observe is not None:
                observe(x)
            y = run(x)
            if adaptation is not None:
                adaptation.add(x, y)
            return y

        return extended


def _gate(run: LinearKernel, gate: Callable[[Tensor, Tensor, str], Tensor], x: Tensor, activation: str) -> Tensor:
    return gate(x, run(x), activation)


def _name_at(path: str, sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return sources that are named beside the layer at `path` with their names in the model."""
    parent = path.rpartition(".")[0]
    front = f"{parent}." if parent else ""
    return tuple(replace(source, module=front + source.module) for source in sources)


def _join_whole(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Join neighbours that together are one stored module, so that it is read at once and what is stored for groups of
    its outputs may lie across them."""
    joined: list[Source] = []
    for whole, group in groupby(sources, key=lambda source: replace(source, picks=())):
        pieces = list(group)
        picks = [pick for piece in pieces for pick in piece.picks]
        stops = [0, *(pick.stop for pick in picks)]
        is_run = all(pick.start == stop and pick.step == 1 for pick, stop in zip(picks, stops, strict=False))
        is_whole = is_run and stops[-1] == whole.num_outputs
        joined += [whole] if is_whole else pieces
    return tuple(joined)
