"""Loads linear layers and the weights beside them from a checkpoint: decoder and towers go this one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.loading import WeightGroup, find_names, load_weights
from seesay.checkpoint.parts import Weight
from seesay.checkpoint.quantization import Quantization
from seesay.device.fp8 import Fp8, Fp8InFlight
from seesay.device.linear import UNQUANTIZED, Linear
from seesay.device.linear_method import LinearMethod
from seesay.device.packed_integers import Awq, Gptq
from seesay.errors import CheckpointError


def load_layers(
    linears: Mapping[str, Linear],
    plain: Iterable[Weight],
    checkpoint: Checkpoint,
    *,
    name_of: Callable[[str], str | None],
    device: torch.device,
    dtype: torch.dtype,
    ignored: frozenset[str] = frozenset(),
    may_quantize: bool = False,
) -> None:
    """Load `linears`, which are at the given paths in the model, and the weights `plain`, which belong to none of them.
    A layer is finished as soon as its tensors are loaded. Parameters and errors: see `load_weights`.

    Each layer gets its method by the names that its modules have in the checkpoint. `may_quantize`: plain weights may
    be quantized while they are loaded, if that is asked for.
    """
    choose = _MethodChoice(checkpoint, name_of, dtype, may_quantize=may_quantize)
    for path, linear in linears.items():
        linear.method = choose(linear.modules_in(path))
    groups = [WeightGroup(weights=(weight,)) for weight in plain]
    groups += [linear.make_group(path) for path, linear in linears.items()]
    load_weights(groups, checkpoint, name_of=name_of, device=device, dtype=dtype, ignored=ignored)


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
        self._stored_modules: dict[str, str] = {}
        if quantization is not None:
            self._method = _make_method(quantization, dtype)
            names = find_names(checkpoint, name_of)
            self._stored_modules = {_module(own): _module(stored) for own, stored in names.items()}

    def __call__(self, modules: tuple[str, ...]) -> LinearMethod:
        """Return the method of a layer of these modules, named as in the model. Raises `CheckpointError` where only
        some of them are quantized."""
        quantized = [module for module in modules if self._is_quantized(module)]
        if not quantized:
            return UNQUANTIZED
        if rest := [module for module in modules if module not in quantized]:
            raise CheckpointError(
                f"{self._checkpoint.path}: {quantized[0]!r} is quantized and {rest[0]!r} is not, "
                "but they are computed as one layer"
            )
        return self._method

    def _is_quantized(self, module: str) -> bool:
        stored = self._stored_modules.get(module)
        if stored is None or self._quantization is None or not self._quantization.covers(stored):
            return False
        if self._quantization.format != "fp8":  # their tensors have names of their own
            return f"{stored}.qweight" in self._checkpoint.stored
        weight = self._checkpoint.stored.get(f"{stored}.weight")
        return weight is None or len(weight.shape) == 2  # formats quantize linear layers, not convolutions


def _make_method(quantization: Quantization, dtype: torch.dtype) -> LinearMethod:
    if quantization.format == "fp8":
        return Fp8(quantization, dtype) if quantization.is_stored else Fp8InFlight()
    return Awq(quantization, dtype) if quantization.format == "awq" else Gptq(quantization, dtype)


def _module(tensor: str) -> str:
    return tensor.rpartition(".")[0]
