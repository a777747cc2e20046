"""The projector of CogVLM and of GLM's vision models: a linear layer, a norm and a gated feed-forward (arXiv
2311.03079, section 2.1)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from seesay.device.linear import Linear
from seesay.encoders.layers import GatedMlp


class GluProjector(GatedMlp):
    """down(act(gate(y)) · up(y)) of y = gelu(norm(proj(x))), for rows x [R, size]: [R, size]. Nothing but the norm has
    biases."""

    def __init__(self, size: int, inner_size: int, activation: str) -> None:
        super().__init__(size, inner_size, activation, bias=False)
        self.proj = Linear(size, size, bias=False)
        self.proj_norm = nn.LayerNorm(size)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.gelu(self.proj_norm(self.proj(x))))
