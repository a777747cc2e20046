"""As much of a model's modules is fused as passes a check, and what does not pass is undone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from seesay.errors import CheckpointError
from seesay.llm.models.modules.module_attention import StepHolder
from seesay.llm.models.modules.module_fusion import Fusion, try_fusions
from seesay.llm.models.modules.module_linear import joined_layers, noting_inputs
from seesay.llm.models.modules.module_norm import ModuleNorm
from seesay.llm.ops.torch_ops import TorchOps

IDS = torch.arange(7)[None]


def make_fusion() -> Fusion:
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    with noting_inputs(model) as groups:
        model(IDS)
    attention = [layer.self_attn for layer in model.model.layers]
    return Fusion(model, groups, attention, StepHolder(TorchOps()))


def find_fused(fusion: Fusion) -> dict[str, int]:
    """Return how many norms, joined layers and rotary embeddings are fused."""
    joined = [len(layers) for _, layers in joined_layers(fusion.model) if len(layers) > 1]
    return {
        "norms": sum(isinstance(module, ModuleNorm) for module in fusion.model.modules()),
        "joined": sum(joined),
        "turned": sum("forward" in vars(module) for module in fusion.attention),
    }


@pytest.mark.parametrize(("num_failures", "fused"), [
    (0, {"norms": 5, "joined": 10, "turned": 2}),
    (1, {"norms": 5, "joined": 10, "turned": 0}),
    (2, {"norms": 0, "joined": 0, "turned": 0}),
])  # fmt: skip
def test_less_is_fused_where_the_check_fails(num_failures: int, fused: dict[str, int]) -> None:
    fusion, tries = make_fusion(), list[dict[str, int]]()
    expected = fusion.model(IDS).logits

    def check() -> None:
        tries.append(find_fused(fusion))
        if len(tries) <= num_failures:
            raise CheckpointError("other logits")

    try_fusions(fusion, check)
    assert find_fused(fusion) == fused and len(tries) == num_failures + 1
    torch.testing.assert_close(fusion.model(IDS).logits, expected)


@pytest.mark.parametrize(("error", "num_tries"), [(CheckpointError("no"), 3), (MemoryError(), 1)])
def test_what_the_plain_modules_fail_with_is_raised(error: Exception, num_tries: int) -> None:
    tries = [0]

    def check() -> None:
        tries[0] += 1
        raise error

    with pytest.raises(type(error)):
        try_fusions(make_fusion(), check)
    assert tries == [num_tries]
