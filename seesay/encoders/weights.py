"""Fills a tower's parameters from a checkpoint, strictly: every tensor has its place and every place its tensor. Then
its layers get the fastest kernels of their device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from seesay.checkpoint import Checkpoint, guess_stored_name
from seesay.device.linear import make_linear_kernel
from seesay.encoders.layers import Fusible
from seesay.errors import CheckpointError


def load_weights(
    module: nn.Module,
    checkpoint: Checkpoint,
    name_of: Callable[[str], str | None],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Move `module`, built on the meta device, to `device` and read its parameters there.

    `name_of` maps a checkpoint tensor's name to the parameter's, or to None for those of somebody else. A convolution
    kernel whose stride is its size fills a linear layer's weight: it is flattened. Raises `CheckpointError` naming a
    tensor that is missing, unexpected or misshapen.
    """
    stored = {own: name for name in checkpoint.tensor_names() if (own := name_of(name)) is not None}
    parameters = dict(module.named_parameters())
    if missing := sorted(parameters.keys() - stored.keys()):
        raise CheckpointError(
            f"{checkpoint.path}: tensor {guess_stored_name(missing[0], stored)!r} of the vision tower is missing"
        )
    if unexpected := sorted(stored.keys() - parameters.keys()):
        raise CheckpointError(f"{checkpoint.path}: tensor {stored[unexpected[0]]!r} has no place in the vision tower")
    owner = {name: own for own, name in stored.items()}
    for name, own in sorted(owner.items()):  # before any memory is taken
        expected, found = tuple(parameters[own].shape), checkpoint.shape(name)
        if len(expected) == 2 and len(found) > 2:
            found = (found[0], math.prod(found[1:]))
        if found != expected:
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name!r} has shape {list(checkpoint.shape(name))}; "
                f"config.json asks for {list(expected)}"
            )
    module.to(dtype=dtype).to_empty(device=device).requires_grad_(False).eval()
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in checkpoint.tensors(owner, device):
            parameter = parameters[owner[name]]
            parameter.copy_(tensor.view(parameter.shape))
    use_fast_kernels(module)


def use_fast_kernels(module: nn.Module) -> None:
    """Bring the loaded weights of a tower into the layouts that compute fastest on their device."""
    if next(module.parameters()).is_cuda:
        for child in module.modules():
            if isinstance(child, Fusible):
                child.fuse()
    for child in module.modules():
        if isinstance(child, nn.Linear) and child.weight.numel():
            _use_fast_kernel(child)


def _use_fast_kernel(linear: nn.Linear) -> None:
    """Compute `linear` by `make_linear_kernel`, which keeps what it needs of the weight: the parameter is emptied where
    it keeps a packed copy."""
    linear.forward = make_linear_kernel(linear.weight, linear.bias)  # type: ignore[assignment, method-assign]
    if linear.weight.device.type == "cpu":
        linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
