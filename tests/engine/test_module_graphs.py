"""Decode steps of Transformers' modules as CUDA graphs: the same answers, and none where modules cannot be captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from asking import ask, make_conversations, parse, run_transformers
from enrolment import MODULES, VISION_MODULES
from transformers.models.cohere2.modeling_cohere2 import Cohere2MLP

from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.llm.models.modules.module_decoder import ModuleDecoder
from seesay.llm.models.modules.module_graphs import why_not_captured
from seesay.llm.models.modules.module_linear import joined_layers
from seesay.llm.models.modules.module_model import ModuleModel
from seesay.llm.models.modules.module_norm import ModuleNorm
from seesay.vl.modules.module_family import ModuleTextFamily

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
NEW_TOKENS = 12


def load(folder: Path, dtype: torch.dtype = torch.float32) -> ModuleDecoder:
    return ModuleDecoder(ModuleModel(Checkpoint.load(folder), ModuleTextFamily.auto_class), device=GPU, dtype=dtype)


@pytest.mark.parametrize("name", (*MODULES, *VISION_MODULES))
def test_answers_with_and_without_graphs_equal_transformers(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint(name)
    expected = [each.answer for each in run_transformers(path, name, new_tokens=NEW_TOKENS, device="cuda")]
    plain: dict[str, Any] = {"device_type": "cuda", "engine_process": False, "dtype": "float32", "num_gpu_blocks": 200}
    requests = parse(make_conversations(name), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS)
    for eager_mode in (False, True):
        config = EngineConfig(**plain, block_size=16, eager_mode=eager_mode)
        with AsyncEngine(str(path), backend_config=config) as engine:
            assert [list(output.token_ids) for output in ask(engine, requests)] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_of_plain_modules_are_captured(dtype: torch.dtype, tmp_path: Path) -> None:
    decoder = load(save_llama(tmp_path), dtype)
    assert decoder.traits.has_graphs
    model: Any = decoder._model
    assert sum(isinstance(module, ModuleNorm) for module in model.modules()) == 5
    assert sorted(len(layers) for _, layers in joined_layers(model)) == [1, 1, 1, 1, 1, 2, 2, 3, 3]
    assert all("forward" in vars(model.get_submodule(name)) for name in decoder._owner.probed.modules)


def save_llama(folder: Path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_modules_that_look_at_the_device_are_not_captured(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forward = Cohere2MLP.forward

    def look(self: Any, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = forward(self, x)
        return found if bool((found.abs().sum() >= 0).item()) else found * 2

    monkeypatch.setattr(Cohere2MLP, "forward", look)
    decoder = load(tiny_checkpoint("cohere2"))
    assert not decoder.traits.has_graphs and "not captured as graphs, which makes them slow" in caplog.text
    assert load_again(decoder).isfinite().all(), "the device is as it was"


def test_numbers_of_the_host_that_change_are_found(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forward, calls = Cohere2MLP.forward, [0]

    def count(self: Any, x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        found: torch.Tensor = forward(self, x)
        return found * (2.0 ** (calls[0] // 2 % 5) if is_counting else 1)

    is_counting = False
    monkeypatch.setattr(Cohere2MLP, "forward", count)
    decoder = load(tiny_checkpoint("cohere2"))
    assert decoder.traits.has_graphs
    is_counting = True
    reason = why_not_captured(decoder)
    assert reason is not None and reason.startswith("a captured step has other logits")


def load_again(decoder: ModuleDecoder) -> torch.Tensor:
    return decoder.compute_alone(torch.arange(8, device=GPU))
