"""The linear layers and the weights beside them of a decoder or a tower: loaded, replaced and dropped this one way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.loading import WeightGroup, find_names, load_weights
from seesay.checkpoint.parts import FLOATS, Part, Weight
from seesay.checkpoint.quantization import Quantization
from seesay.checkpoint.source import TensorSource
from seesay.device.linear.block_fp8 import BlockFp8
from seesay.device.linear.fp8 import FP8_NUMBERS
from seesay.device.linear.int8 import INT8_NUMBERS
from seesay.device.linear.linear import UNQUANTIZED, Linear
from seesay.device.linear.linear_method import LinearMethod
from seesay.device.linear.matrix_linear import MatrixLinear, MultipliedOut
from seesay.device.linear.mxfp4 import Mxfp4
from seesay.device.linear.one_byte import OneByte, OneByteInFlight
from seesay.device.linear.packed_integers import Awq, Gptq, PackQuantized
from seesay.errors import CheckpointError

_MOST_OUTPUTS = 1 << 20
_EXPERTS = ".experts."
_HEAD = "lm_head"
"""The name of the head in exclusion lists, whatever its name in the folder."""


class LoadedLayers:
    """`linears` at the given paths in a model, and the weights `plain`, which belong to none of them.

    on_change: called when weights were loaded, replaced or dropped, to renew what was made of them. A plain weight has
    no `data` then if it was dropped. Other parameters: see `load_weights`. num_changes: how often that happened.
    """

    def __init__(
        self,
        linears: Mapping[str, Linear],
        plain: Sequence[Weight],
        *,
        name_of: Callable[[str], str | None],
        device: torch.device,
        dtype: torch.dtype,
        ignored: frozenset[str] = frozenset(),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.name_of = name_of
        self.device, self.dtype = device, dtype
        self._linears, self._plain = linears, plain
        elsewhere = (name for path, linear in linears.items() for name in linear.unread_at(path))
        self._ignored = ignored.union(elsewhere)
        self._unread_endings: frozenset[str] = frozenset()
        self._stored_as: dict[str, str] = {}  # the names in the checkpoint, by the model's
        self._on_change = on_change
        self.num_changes = 0

    def load(self, checkpoint: Checkpoint, *, may_quantize: bool = False) -> None:
        """Load all weights. A layer is finished as soon as its tensors are loaded. Raises `CheckpointError` as
        `load_weights`.

        Each layer gets its method by the names that its modules have in the checkpoint. `may_quantize`: plain weights
        may be quantized while they are loaded, if that is asked for.
        """
        choose = _MethodChoice(checkpoint, self.name_of, self.dtype, may_quantize=may_quantize)
        for path, linear in self._linears.items():
            method = choose(linear.modules_in(path), is_quantizable=linear.is_quantizable)
            linear.method = MultipliedOut(method, self.dtype) if isinstance(linear, MatrixLinear) else method
            if reason := linear.why_not(self.device):
                raise CheckpointError(f"{checkpoint.path}: {path}: {reason}")
        if checkpoint.quantization is not None:
            self._unread_endings = frozenset(checkpoint.quantization.ignored)
        self._stored_as = find_names(checkpoint, self.name_of)
        groups = [WeightGroup(weights=(weight,)) for weight in self._plain]
        groups += [linear.make_group(path) for path, linear in self._linears.items()]
        self._load(groups, checkpoint)
        self._note_change()

    def is_unread(self, name: str) -> bool:
        """Return whether a tensor of the model's name `name` may be there and is not read, such as those that a format
        has beside layers, and those that another rank reads."""
        is_known = name in self._ignored or _module(name) in self._ignored
        return is_known or name.rpartition(".")[2] in self._unread_endings

    def check(self, source: TensorSource, *, is_partial: bool) -> None:
        """Raise what `replace` would raise: `CheckpointError` that names a tensor that does not fit, or an error of the
        device that has no memory for a layer. Nothing is replaced."""
        groups = [_make_trial(weight) for weight in self._plain]
        groups += [linear.make_group(path, is_trial=True) for path, linear in self._linears.items()]
        self._load(groups, source, is_partial=is_partial, checks_finite=True)

    def replace(self, source: TensorSource, *, is_partial: bool) -> None:
        """Load new weights in place of those that are there or were dropped; with `is_partial`, those that `source`
        has: of a linear layer all of its tensors. Layers keep their methods. Tensors keep their addresses where the new
        ones have the same layout."""
        groups = [_make_replacing(weight) for weight in self._plain]
        groups += [linear.make_group(path) for path, linear in self._linears.items()]
        self._load(groups, source, is_partial=is_partial)
        self._note_change()

    def drop(self) -> None:
        """Free all weights."""
        for weight in self._plain:
            if hasattr(weight, "data"):
                del weight.data
        for linear in self._linears.values():
            linear.drop()
        self._note_change()

    def _note_change(self) -> None:
        self.num_changes += 1
        self._on_change()

    @property
    def linears(self) -> Mapping[str, Linear]:
        """The linear layers by their paths in the model."""
        return self._linears

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors that are there."""
        plain = [weight.data for weight in self._plain if hasattr(weight, "data")]
        return plain + [tensor for linear in self._linears.values() for tensor in linear.tensors]

    def parts(self) -> dict[str, Part]:
        """Return what is taken of each tensor, by the model's name; of one that several layers share, one part."""
        weights = [*self._plain]
        for path, linear in self._linears.items():
            weights += linear.make_group(path).weights
        return {part.tensor: part for weight in weights for part in weight.parts}

    def _load(
        self,
        groups: Iterable[WeightGroup],
        source: TensorSource,
        *,
        is_partial: bool = False,
        checks_finite: bool = False,
    ) -> None:
        names = find_names(source, self.name_of)
        load_weights(
            groups,
            source,
            name_of=self.name_of,
            device=self.device,
            dtype=self.dtype,
            ignored=frozenset(filter(self.is_unread, names)) | self._find_empty_biases(source, names),
            is_partial=is_partial,
            checks_finite=checks_finite,
            known=self._stored_as,
        )

    def _find_empty_biases(self, source: TensorSource, names: Mapping[str, str]) -> frozenset[str]:
        """Return the biases of packed layers that have none in the model: AutoGPTQ writes zeros beside each. Raises
        `CheckpointError` for other numbers. `names` are those of the source, by the model's."""
        modules = [m for path, linear in self._linears.items() if linear.bias is None for m in linear.modules_in(path)]
        biases = [f"{module}.bias" for module in modules if f"{module}.qweight" in names]
        empty = {names[bias]: bias for bias in biases if bias in names and bias not in self._ignored}
        for stored, tensor in source.slices(empty, "cpu") if self.device.type != "meta" else ():
            shape = source.find(stored).shape
            if math.prod(shape) > _MOST_OUTPUTS or tensor.read(tuple(map(range, shape))).any():
                raise CheckpointError(
                    f"{source.path}: tensor {stored!r} must be zeros: this layer has no bias in the model"
                )
        return frozenset(empty.values())


def pick_method(checkpoint: Checkpoint, dtype: torch.dtype) -> LinearMethod:
    """Return the method of a checkpoint's quantized layers."""
    return _MethodChoice(checkpoint, lambda _: None, dtype, may_quantize=True)._method


def _make_trial(weight: Weight) -> WeightGroup:
    """Return a group that loads a weight, and drops it."""
    new = weight.without_data()
    return WeightGroup(weights=(new,), finish=partial(delattr, new, "data"))


def _make_replacing(weight: Weight) -> WeightGroup:
    """Return a group that loads a weight beside the data that it has, and copies it there."""
    new = weight.without_data()

    def finish() -> None:
        if hasattr(weight, "data"):
            weight.data.copy_(new.data)
        else:
            weight.data = new.data
        del new.data

    return WeightGroup(weights=(new,), finish=finish)


class _MethodChoice:
    """Chooses the method of a layer by the names of its modules in the checkpoint, and its list of exclusions."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        name_of: Callable[[str], str | None],
        dtype: torch.dtype,
        *,
        may_quantize: bool,
    ) -> None:
        quantization = checkpoint.quantization
        if quantization is not None and not quantization.is_stored and not may_quantize:
            quantization = None
        self._checkpoint, self._quantization = checkpoint, quantization
        self._method: LinearMethod = UNQUANTIZED
        self._names: Mapping[str, str] = {}
        self._stored_modules: dict[str, str] = {}
        if quantization is not None:
            self._method = _make_method(checkpoint, quantization, dtype)
            self._names = find_names(checkpoint, name_of)
            # A weight decides: the biases of a router's choice may be stored in another module.
            names = sorted(self._names.items(), key=lambda item: item[0].endswith(".weight"))
            self._stored_modules = {_module(own): _module(stored) for own, stored in names}

    def __call__(self, modules: tuple[str, ...], *, is_quantizable: bool) -> LinearMethod:
        """Return the method of a layer of these modules, named as in the model. Raises `CheckpointError` where only
        some of them are quantized."""
        if self._quantization is None:
            return UNQUANTIZED
        # DeepSeek-V3 leaves its routers and the first product of its predicting layer plain without saying so.
        if all(map(self._is_plain, modules)) if self._quantization.is_stored else not is_quantizable:
            return UNQUANTIZED
        quantized = [module for module in modules if self._is_quantized(module)]
        if not quantized:
            return UNQUANTIZED
        if rest := [module for module in modules if module not in quantized]:
            one, other = (self._stored_modules.get(module, module) for module in (quantized[0], rest[0]))
            raise CheckpointError(
                f"{self._checkpoint.path}: {one!r} is quantized and {other!r} is not, "
                "but they are computed as one layer"
            )
        return self._method

    def _is_plain(self, module: str) -> bool:
        """Return whether a module has a plain weight, and no scale beside it."""
        if self._quantization is not None and f"{module}.{self._quantization.scale_name}" in self._names:
            return False
        weight = self._checkpoint.stored.get(self._names.get(f"{module}.weight", ""))
        return weight is not None and weight.dtype in FLOATS

    def _is_quantized(self, module: str) -> bool:
        stored = self._stored_modules.get(module)
        if stored is None or self._quantization is None or not self._quantization.covers(stored):
            return False
        if module == _HEAD and not self._quantization.covers(module):
            return False
        if self._quantization.marker is not None:
            return f"{stored}.{self._quantization.marker}" in self._checkpoint.stored
        return self._may_have_numbers(module, self._quantization)

    def _may_have_numbers(self, module: str, quantization: Quantization) -> bool:
        """Return whether the weight of a module that is not excluded may be one of the format. Of what has more than
        two axes, formats quantize experts and no convolutions, and some tools leave experts alone without saying so."""
        weight = self._checkpoint.stored.get(self._names.get(f"{module}.weight", ""))
        if weight is None or len(weight.shape) == 2:
            return True
        return _EXPERTS in module and (weight.dtype not in FLOATS or not quantization.is_stored)


def _make_method(checkpoint: Checkpoint, quantization: Quantization, dtype: torch.dtype) -> LinearMethod:
    if quantization.format in ("fp8", "int8"):
        if quantization.strategy == "block":
            return BlockFp8(quantization, dtype)
        kind = FP8_NUMBERS if quantization.format == "fp8" else INT8_NUMBERS
        return OneByte(kind, quantization, dtype) if quantization.is_stored else OneByteInFlight(kind)
    if quantization.format == "mxfp4":
        return Mxfp4(dtype)
    if quantization.format == "pack-quantized":
        return PackQuantized(quantization, dtype, _find_dtype(checkpoint, ".weight_scale"))
    method = Awq if quantization.format == "awq" else Gptq
    return method(quantization, dtype, _find_dtype(checkpoint, ".scales"))


def _find_dtype(checkpoint: Checkpoint, suffix: str) -> torch.dtype:
    """Return the 16-bit type of all tensors whose names end so, or float32."""
    dtypes = {tensor.dtype for name, tensor in checkpoint.stored.items() if name.endswith(suffix)}
    return {frozenset({"F16"}): torch.float16, frozenset({"BF16"}): torch.bfloat16}.get(
        frozenset(dtypes), torch.float32
    )


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
