"""Rotary embeddings of Transformers' modules are left to our kernel where it computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereAttention
from transformers.models.glm.modeling_glm import GlmAttention
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaConfig, apply_rotary_pos_emb
from transformers.models.stablelm.modeling_stablelm import StableLmAttention

from seesay.errors import CheckpointError
from seesay.llm.models.modules.module_attention import ModuleStep, StepHolder
from seesay.llm.models.modules.module_rotary import fuse_rotary, part_rotary
from seesay.llm.ops.torch_ops import TorchOps

CONFIG = LlamaConfig(
    hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_hidden_layers=1, vocab_size=8
)


def make_step() -> ModuleStep:
    still = torch.ones((3, 1, 2)), torch.zeros((3, 1, 2))
    return ModuleStep([], None, None, torch.arange(3), torch.zeros(3), still)


def fuse(module: nn.Module) -> tuple[nn.Module, StepHolder]:
    holder = StepHolder(TorchOps())
    fuse_rotary([module], holder)
    return module, holder


def find_turn(module: Any) -> Any:
    return module.forward.__func__.__globals__["apply_rotary_pos_emb"]


def draw_angles(size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.randn((1, 3, size // 2), generator=torch.Generator().manual_seed(1)).repeat(1, 1, 2)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize(("kind", "is_fused"), [
    (LlamaAttention, True), (StableLmAttention, True), (CohereAttention, False), (GlmAttention, False),
])  # fmt: skip
def test_functions_that_turn_halves_are_recognised(kind: type[nn.Module], is_fused: bool) -> None:
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    assert ("forward" in vars(fuse(module)[0])) == is_fused
    part_rotary([module])
    assert "forward" not in vars(module)


def test_queries_and_keys_are_turned_where_they_are_written() -> None:
    module, holder = fuse(LlamaAttention(CONFIG, 0))
    turn = find_turn(module)
    query, key = (torch.randn((1, heads, 3, 16), generator=torch.Generator().manual_seed(heads)) for heads in (2, 1))
    cos, sin = draw_angles()
    expected = apply_rotary_pos_emb(query, key, cos, sin)
    found = turn(query, key, cos, sin)
    assert torch.equal(found[0], expected[0]), "outside of a step, the model turns by itself"
    holder.step = make_step()
    assert turn(query, key, cos, sin) == (query, key)
    angles = holder.step.take_angles(query, key)
    turned = query[0].transpose(0, 1).clone()
    TorchOps().rotate(turned, *angles)
    torch.testing.assert_close(turned, expected[0][0].transpose(0, 1))
    assert holder.step.take_angles(query, key) is holder.step.still, "once"
    turn(query, key, cos, sin)
    assert holder.step.take_angles(query, key) is angles, "layers of one cos share what is made of it"


def test_a_change_behind_the_turn_is_found() -> None:
    step = make_step()
    query, key = torch.zeros((1, 2, 3, 16)), torch.zeros((1, 1, 3, 16))
    step.turn_later(query, key, *draw_angles())
    with pytest.raises(CheckpointError, match="change queries or keys"):
        step.take_angles(query * 2, key)


def test_what_the_kernel_does_not_take_is_turned_by_the_model() -> None:
    module, holder = fuse(LlamaAttention(CONFIG, 0))
    turn = find_turn(module)
    holder.step = make_step()
    query, key = torch.randn((1, 3, 2, 16)), torch.randn((1, 3, 1, 16))
    cos, sin = draw_angles()
    found, _ = turn(query, key, cos, sin, unsqueeze_dim=2)
    assert torch.equal(found, apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim=2)[0])
    assert holder.step.take_angles(query, key) is holder.step.still


def test_other_modules_are_left() -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert "forward" not in vars(fuse(Other())[0])
