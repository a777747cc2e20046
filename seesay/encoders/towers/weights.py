"""Loads a tower's weights from a checkpoint, and gets its layers ready to compute."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.parts import Weight, plain_weight
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.device.linear.linear import Linear
from seesay.encoders.towers.layers import Fusible


def load_tower(
    module: nn.Module,
    checkpoint: Checkpoint,
    name_of: Callable[[str], str | None],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> LoadedLayers:
    """Load the linear layers, and other parameters and buffers that checkpoints have, of `module`, built on the meta
    device, to `device`. Returns what replaces them.

    `name_of` maps a checkpoint tensor's name to that in the module, or to None for tensors of other parts. Raises
    `CheckpointError`: see `load_weights`.
    """
    linears = _find_linears(module)
    owned = {f"{path}.{name}" for path, linear in linears.items() for name, _ in linear.named_parameters()}
    buffers = {name for name in module.state_dict() if name not in dict(module.named_parameters())}
    others = {
        name: plain_weight(name, *tensor.shape)
        for name, tensor in module.state_dict(keep_vars=True).items()
        if name not in owned and tensor.is_floating_point()
    }

    def renew() -> None:
        for name, weight in others.items():
            _set_tensor(module, name, weight, device, dtype, is_buffer=name in buffers)
        if any(linear.tensors for linear in linears.values()):
            _fuse(module, device)

    layers = LoadedLayers(linears, list(others.values()), name_of=name_of, device=device, dtype=dtype, on_change=renew)
    layers.load(checkpoint)
    module.eval()
    return layers


def _set_tensor(
    module: nn.Module, name: str, weight: Weight, device: torch.device, dtype: torch.dtype, *, is_buffer: bool
) -> None:
    """Let the parameter or buffer `name` be the data of `weight`; empty if that was dropped."""
    data = weight.data if hasattr(weight, "data") else torch.empty(0, device=device, dtype=dtype)
    path, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(path), attribute, data if is_buffer else nn.Parameter(data, requires_grad=False))


def finish_layers(module: nn.Module) -> None:
    """Get a tower whose parameters are set ready to compute, as `load_tower` does."""
    device = next(module.parameters()).device
    for linear in _find_linears(module).values():
        linear.finish()
    _fuse(module, device)


def _find_linears(module: nn.Module) -> dict[str, Linear]:
    return {path: child for path, child in module.named_modules() if isinstance(child, Linear)}


def _fuse(module: nn.Module, device: torch.device) -> None:
    if device.type != "cpu":
        for child in module.modules():
            if isinstance(child, Fusible):
                child.fuse()
