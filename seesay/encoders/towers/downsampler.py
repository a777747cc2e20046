"""Join neighbouring patches to one row; and the projector of CogVLM and of GLM's vision models behind that: a
linear layer, a norm and a gated feed-forward (arXiv 2311.03079, section 2.1)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.linear.linear import Linear
from seesay.encoders.towers.layers import GatedMlp


class PatchMerger(nn.Module):
    """Joins groups of `unit` patches of `size` columns, which lie together: [R, out_size]. The checkpoint's matrix has
    its inputs by channel, then by patch, as that of a convolution."""

    def __init__(self, size: int, unit: int, out_size: int, *, bias: bool) -> None:
        super().__init__()
        self.group = (unit, size)
        self.merging_layer = Linear(size * unit, out_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.merging_layer(x.reshape(-1, *self.group).transpose(1, 2).flatten(1))


class GluProjector(GatedMlp):
    """down(act(gate(y)) · up(y)) of y = gelu(norm(proj(x))), for rows x [R, in_size]: [R, size]. Nothing but the norm
    has biases."""

    def __init__(self, in_size: int, size: int, inner_size: int, activation: str) -> None:
        super().__init__(size, inner_size, activation, bias=False)
        self.proj = Linear(in_size, size, bias=False)
        self.proj_norm = nn.LayerNorm(size)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.gelu(self.proj_norm(self.proj(x))))


class Downsampler(nn.Module):
    """Joins groups of `unit` patches of `size` columns, if that is more than one, at `merged_size`, which is `out_size`
    where it is not given; and projects them: [R, out_size]."""

    def __init__(
        self,
        size: int,
        unit: int,
        out_size: int,
        *,
        inner_size: int,
        activation: str,
        merged_size: int | None = None,
    ) -> None:
        super().__init__()
        self.patch_merger: nn.Module = nn.Identity()
        if unit > 1:
            merged_size = out_size if merged_size is None else merged_size
            self.patch_merger = PatchMerger(size, unit, merged_size, bias=True)
            size = merged_size
        self.projector = GluProjector(size, out_size, inner_size, activation)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.projector(self.patch_merger(x))
        return result
