"""RMS norms of Transformers' modules are recognised by what they compute, and compute that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from seesay.llm.models.modules.module_norm import ModuleNorm, fuse_norms, part_norms, renew_norms
from seesay.llm.ops.torch_ops import TorchOps

X = torch.randn((2, 5, 3, 24), generator=torch.Generator().manual_seed(1)) * 1e-2


class Mean(Qwen2RMSNorm):  # type: ignore[misc]
    """Takes the mean away, too: another norm that looks the same."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))
        return found


class Gated(Qwen2RMSNorm):  # type: ignore[misc]
    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        found: torch.Tensor = super().forward(hidden_states)
        return found if gate is None else found * gate


def make(kind: type[nn.Module], dtype: torch.dtype = torch.float32, **options: float) -> Any:
    module = kind(24, **options).requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return nn.ModuleList([module.to(dtype)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [Qwen2RMSNorm, Gemma2RMSNorm, nn.RMSNorm])
def test_norms_are_recognised(kind: type[nn.Module], dtype: torch.dtype) -> None:
    [expected], model = make(kind, dtype, eps=1e-5), make(kind, dtype, eps=1e-5)
    fuse_norms(model, TorchOps())
    assert isinstance(model[0], ModuleNorm)
    x = X.to(dtype)
    tolerance: Any = {"rtol": 1.6e-2, "atol": 0.0} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(model[0](x), expected(x), **tolerance)
    part_norms(model)
    assert type(model[0]) is kind and torch.equal(model[0](x), expected(x))


@pytest.mark.parametrize("kind", [Mean, Gated, nn.LayerNorm])
def test_what_only_looks_like_one_is_left(kind: type[nn.Module]) -> None:
    model = make(kind)
    fuse_norms(model, TorchOps())
    assert type(model[0]) is kind


def test_eps_is_the_one_that_fits() -> None:
    [expected], model = make(Qwen2RMSNorm, eps=1e-3), make(Qwen2RMSNorm, eps=1e-3)
    model[0].dropout = 1e-6
    fuse_norms(model, TorchOps())
    torch.testing.assert_close(model[0](X), expected(X))


@pytest.mark.parametrize("kind", [Qwen2RMSNorm, Gemma2RMSNorm])
def test_other_weights_at_the_same_addresses(kind: type[nn.Module]) -> None:
    [expected], model = make(kind), make(kind)
    fuse_norms(model, TorchOps())
    before = model[0].norm.weight.data_ptr()
    for module in (expected, model[0]):
        module.weight.data.copy_(torch.arange(24.0))
    renew_norms(model)
    torch.testing.assert_close(model[0](X), expected(X))
    assert model[0].norm.weight.data_ptr() == before
    model[0].weight.data = torch.empty(0)
    renew_norms(model)
    assert not model[0].norm.weight.numel(), "dropped"


@pytest.mark.parametrize(("kind", "is_fused"), [(Gemma2RMSNorm, True), (Mean, False)])
def test_a_rehearsal_recognises_norms_without_values(kind: type[nn.Module], is_fused: bool) -> None:
    model = make(kind, torch.bfloat16).to("meta")
    fuse_norms(model, TorchOps())
    assert isinstance(model[0], ModuleNorm) == is_fused
    assert model[0].weight.is_meta
