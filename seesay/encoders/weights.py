"""Loads a tower's weights from a checkpoint, then gives its layers the fastest kernels of their device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.loading import load_tensors
from seesay.device.linear import make_linear_kernel
from seesay.encoders.layers import Fusible


def load_weights(
    module: nn.Module,
    checkpoint: Checkpoint,
    name_of: Callable[[str], str | None],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Move `module`, built on the meta device, to `device` and load its parameters there (see `load_tensors`).

    `name_of` maps a checkpoint tensor's name to the parameter's, or to None for tensors of other parts.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}

    def allocate() -> dict[str, nn.Parameter]:
        module.requires_grad_(False).eval()
        # Not `to_empty`: for tensors on the meta device PyTorch imports SymPy and more, which takes half a second.
        empty = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
        module.load_state_dict(empty, assign=True)
        return dict(module.named_parameters())

    load_tensors(checkpoint, shapes, name_of=name_of, allocate=allocate, device=device)
    use_fast_kernels(module)


def use_fast_kernels(module: nn.Module) -> None:
    """Convert the loaded weights of a tower to the layouts that compute fastest on their device."""
    if next(module.parameters()).is_cuda:
        for child in module.modules():
            if isinstance(child, Fusible):
                child.fuse()
    for child in module.modules():
        if isinstance(child, nn.Linear) and child.weight.numel():
            _use_fast_kernel(child)


def _use_fast_kernel(linear: nn.Linear) -> None:
    """Compute `linear` with `make_linear_kernel`. On the CPU it keeps a packed copy of the weight, so the parameter is
    emptied."""
    linear.forward = make_linear_kernel(linear.weight, linear.bias)  # type: ignore[assignment, method-assign]
    if linear.weight.device.type == "cpu":
        linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
