"""Modules of timm as towers: made without downloading anything, filled with a checkpoint's weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from seesay.encoders.towers.vit import TowerRows
from seesay.errors import CheckpointError, MissingExtraError

MODULE = "module."
"""Begins the names of timm's tensors in a `TimmTower`."""


class TimmTower(nn.Module):
    """Patch vectors [N, patches, 3·ph·pw] of pictures of `image_size` to timm's rows [N, R, size], those of tokens
    before the patches included. What a convolutional model makes of a picture becomes rows, line by line."""

    def __init__(self, module: nn.Module, image_size: tuple[int, int], patch_size: tuple[int, int]) -> None:
        super().__init__()
        self.module = module
        self._find_features: Callable[[Tensor], Tensor] = cast("Any", module).forward_features
        self._grid = (image_size[0] // patch_size[0], image_size[1] // patch_size[1])
        self._patch_size = patch_size

    def forward(self, patches: Tensor) -> Tensor:
        (rows, columns), (height, width) = self._grid, self._patch_size
        parts = patches.view(len(patches), rows, columns, 3, height, width).permute(0, 3, 1, 4, 2, 5)
        pictures = parts.reshape(len(patches), 3, rows * height, columns * width)
        made = self._find_features(pictures)
        return made.flatten(2).transpose(1, 2) if made.dim() == 4 else made


def make_module(architecture: str, args: Mapping[str, object], where: object) -> nn.Module:
    """Return timm's module on the meta device. Raises `MissingExtraError` without timm, and `CheckpointError` for an
    architecture that timm does not have or cannot make with these `args`; `where` is the checkpoint."""
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise MissingExtraError(f"the vision tower {architecture!r}", package="timm", extra="timm") from None
    if not timm.is_model(architecture):
        raise CheckpointError(f"{where}: timm {timm.__version__} has no model {architecture!r}")
    try:
        with torch.device("meta"):
            module: nn.Module = timm.create_model(architecture, pretrained=False, num_classes=0, **args)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: timm cannot make {architecture!r} of {dict(args)}: {error}") from error
    if not callable(getattr(module, "forward_features", None)):
        raise CheckpointError(f"{where}: the timm model {architecture!r} has no features to take")
    return module


def finish_module(module: nn.Module, device: torch.device, where: object) -> None:
    """Compute the buffers that checkpoints do not have, such as rotary angles, on `device`. Raises `CheckpointError`
    for a module that cannot compute its own."""
    for child in module.modules():
        names = [name for name, buffer in child.named_buffers(recurse=False) if buffer.is_meta]
        for name in [name for name in names if not getattr(child, name).is_floating_point()]:
            setattr(child, name, torch.zeros_like(getattr(child, name), device=device))  # counters of batch norms
            names.remove(name)
        if not names:
            continue
        if not hasattr(child, "init_non_persistent_buffers"):
            raise CheckpointError(
                f"{where}: timm's {type(child).__name__} has a buffer {names[0]!r} of its own, which this version of "
                "timm cannot compute again"
            )
        for name in names:
            setattr(child, name, torch.empty_like(getattr(child, name), device=device))
        cast("Any", child).init_non_persistent_buffers()


def check_rows(tower: nn.Module, rows: TowerRows, where: object) -> None:
    """Raise `CheckpointError` if the tower does not make these rows of a picture."""
    parameter = next(tower.parameters())
    vectors = torch.zeros(
        1,
        math.prod(side // patch for side, patch in zip(rows.image_size, rows.patch_size, strict=True)),
        3 * math.prod(rows.patch_size),
        device=parameter.device,
        dtype=parameter.dtype,
    )
    with torch.inference_mode():
        made = tower(vectors)
    expected = (rows.has_class_token + math.prod(rows.grid), rows.size)
    if tuple(made.shape[1:]) != expected:
        raise CheckpointError(
            f"{where}: the tower makes rows {list(made.shape[1:])} of a picture, the configuration says "
            f"{list(expected)}"
        )
