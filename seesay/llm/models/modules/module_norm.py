"""RMS norms of Transformers' modules, recognised by what they compute, in one kernel each."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from seesay.device.linear.norm import rms_norm

if TYPE_CHECKING:
    from seesay.llm.ops import Ops

_NORM, _CLASS = "_seesay_norm", "_seesay_class"
_TRIAL_ROWS = 4
_MOST_EPS = 1e-2
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""The largest difference of one number from that of the module, relative to it: its own rounding, of which modules do
one more than we."""


class _Norm:
    """x / sqrt(mean(x²) + eps) · (weight + offset), for the weight of `module` as it is. weight: that of the module, or
    with an offset, the sum in float32."""

    def __init__(self, module: torch.nn.Module, ops: Ops, eps: float, offset: int) -> None:
        self._module, self._ops, self._eps, self._offset = module, ops, eps, offset
        self.weight = self._add()

    def _add(self) -> torch.Tensor:
        weight = _weight_of(self._module)
        return weight.float() + self._offset if self._offset else weight

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, self.weight, self._eps)

    def renew(self) -> None:
        """Take the weight of the module, which has changed."""
        new = self._add()
        if self._offset and self.weight.shape == new.shape:
            self.weight.copy_(new)
        else:
            self.weight = new


class ModuleNorm(torch.nn.Module):
    """A module's own norm, computed in one kernel."""

    def forward(self, *args: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        [x] = [*args, *options.values()]
        return self.norm.compute(x)

    @property
    def norm(self) -> _Norm:
        norm: _Norm = self.__dict__[_NORM]
        return norm


def fuse_norms(model: torch.nn.Module, ops: Ops) -> None:
    """Compute those modules of `model` that are RMS norms with `ops`. They stay the same objects."""
    for module in list(model.modules()):
        norm = _recognise(module, ops)
        if norm is not None:
            module.__dict__ |= {_NORM: norm, _CLASS: type(module)}
            module.__class__ = ModuleNorm


def part_norms(model: torch.nn.Module) -> None:
    """Make the norms of `model` what they were before `fuse_norms`."""
    for module in _fused(model):
        del module.__dict__[_NORM]
        module.__class__ = module.__dict__.pop(_CLASS)


def renew_norms(model: torch.nn.Module) -> None:
    """Take the weights of all norms, which have changed."""
    for module in _fused(model):
        module.norm.renew()


def _fused(model: torch.nn.Module) -> Iterator[ModuleNorm]:
    return (module for module in list(model.modules()) if isinstance(module, ModuleNorm))


def _recognise(module: torch.nn.Module, ops: Ops) -> _Norm | None:
    """Return the norm that `module` computes, found by trying it; None if it is no RMS norm."""
    if not _looks_like_norm(module):
        return None
    module_with_values = module if not _weight_of(module).is_meta else _with_values(module)
    weight = _weight_of(module_with_values)
    limit = _TOLERANCES.get(weight.dtype)
    rows = torch.randn((_TRIAL_ROWS, len(weight)), generator=torch.Generator().manual_seed(0))
    x = (rows * 10.0 ** -torch.arange(_TRIAL_ROWS)[:, None]).to(weight)  # small ones, too, which tell eps
    expected = _try(module_with_values, x)
    if limit is None or expected is None:
        return None
    for eps in _list_epsilons(module):
        for offset in (0, 1):
            found = rms_norm(x, weight.float() + offset if offset else weight, eps)
            if torch.allclose(found.float(), expected.float(), rtol=limit, atol=0):
                return _Norm(module, ops, eps, offset)
    return None


def _weight_of(module: torch.nn.Module) -> torch.Tensor:
    weight: torch.Tensor = module.weight.data  # type: ignore[assignment]
    return weight


def _with_values(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module on the meta device that has a weight: that of a rehearsal has none."""
    copied = copy.deepcopy(module)
    weight = torch.linspace(0.5, 1.5, len(_weight_of(module)), dtype=_weight_of(module).dtype)
    copied.weight = torch.nn.Parameter(weight, requires_grad=False)
    return copied


def _list_epsilons(module: torch.nn.Module) -> list[float]:
    """Return the numbers of a module that may be its eps."""
    return sorted({value for value in vars(module).values() if type(value) is float and 0 < value <= _MOST_EPS})


def _try(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    """Return what `module` makes of x; None unless that is a tensor like x."""
    try:
        with torch.no_grad():
            made = module(x.clone())
    except Exception:  # another kind of module: its own code, which may raise anything
        return None
    is_like = isinstance(made, torch.Tensor) and made.shape == x.shape and made.dtype == x.dtype
    return made if is_like else None


def _looks_like_norm(module: torch.nn.Module) -> bool:
    """Whether a module has a vector of weights, nothing else, and takes one tensor."""
    if [name for name, _ in module.named_parameters()] != ["weight"] or [*module.children(), *module.buffers()]:
        return False
    [weight] = module.parameters()
    taken = list(inspect.signature(type(module).forward).parameters.values())
    return weight.dim() == 1 and len(taken) == 2 and taken[1].kind is taken[1].POSITIONAL_OR_KEYWORD
