"""Every architecture can be quantized together with its tower, calibrated with texts and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from enrolment import CHECKPOINTS, OF_MODULES, WITH_EXPERTS, WITH_STATES
from family_contract import draw_image, load_family, preprocess
from lite.reading import TEXT, logits_of, multiply_out
from PIL import Image

from seesay import lite
from seesay.errors import ConfigError

_SPLIT = ("CogVLMForCausalLM", "InternLMXComposer2ForCausalLM", "InternVLChatModel/intern_vit_patch")
SPLIT = tuple(name for name, tiny in CHECKPOINTS.items() if tiny.architecture in _SPLIT)
"""Their linear layers have other weights for pictures, or additions."""


ONE_BY_ONE = (
    "deepseek_moe", "ernie4_5_moe", "glm4_moe", "glm4v_moe", "internvl_qwen3_moe", "llama4", "llama4_text", "mixtral",
    "olmoe", "phimoe", "phimoe_published", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_published",
)  # fmt: skip
"""With experts that other tools store quantized, too."""
REFUSED = (*(name for name in WITH_EXPERTS if name not in ONE_BY_ONE), *SPLIT, *WITH_STATES, *OF_MODULES, "mllama")


def test_models_with_weights_of_their_own_for_pictures_are_refused(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="linear layers of their own cannot be quantized here"):
        lite.auto_gptq(tiny_checkpoint("cogvlm"), tmp_path / "out", calib_dataset=tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gpt_oss", "experts with biases cannot be quantized here"),
        ("granitemoe", "experts that are stored as '.*block_sparse_moe.input_linear.weight' cannot be quantized here"),
    ],
)
def test_experts_that_no_tool_stores_quantized_are_refused(
    name: str, told: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        lite.auto_gptq(tiny_checkpoint(name), tmp_path / "out", calib_dataset=tmp_path, device="cpu")


def test_decoders_that_attend_to_pictures_are_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="attends to pictures beside the text cannot be quantized here"):
        lite.auto_gptq(tiny_checkpoint("mllama"), tmp_path / "out", calib_dataset=tmp_path, device="cpu")


@pytest.mark.parametrize("name", ["qwen3_5_text", "deepseek_v2"])
def test_layers_with_states_and_latent_rows_are_refused(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="with a state or latent rows cannot be quantized here"):
        lite.auto_gptq(tiny_checkpoint(name), tmp_path / "out", calib_dataset=tmp_path, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if name not in REFUSED])
def test_every_architecture(name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source, prompts = tiny_checkpoint(name), tmp_path / "prompts"
    has_tower = bool(load_family(source)[0].markers)
    prompts.mkdir()
    (prompts / "long.txt").write_text(TEXT)
    for number in range(4 if has_tower else 0):
        Image.fromarray(draw_image(40 + 8 * number, 56).frames[0]).save(prompts / f"{number}.png")
        (prompts / f"{number}.txt").write_text("a game in the frame")
    folder = tmp_path / "out"
    options: dict[str, Any] = {
        "calib_dataset": prompts,
        "calib_samples": 4,
        "calib_seqlen": 256 if has_tower else 64,
        "batch_size": 2,
        "device": "cpu",
        "vision": has_tower,
    }
    lite.auto_gptq(source, folder, w_group_size=-1, **options)
    plain = multiply_out(folder, tmp_path / "plain")
    check(*(logits_of(path) for path in (folder, plain, source)))
    if has_tower:
        check(*(encode(path) for path in (folder, plain, source)))


def encode(path: Path) -> torch.Tensor:
    family, _ = load_family(path)
    encoder = family.build_encoder(torch.device("cpu"), torch.float32)
    return encoder.encode([preprocess(family, draw_image(40, 56))])[0]


def check(found: torch.Tensor, expected: torch.Tensor, before: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    change = float((expected - before).norm() / before.norm())
    assert 1e-4 < change < 0.8, f"quantizing changed it by {change:.4f}"
