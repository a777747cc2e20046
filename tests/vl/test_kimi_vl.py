"""Kimi-VL: sizes of pictures, options, prompts, files that are refused; and its decoder of Transformers' modules."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, make_message, make_picture, parse
from family_contract import IMAGE, Loaded, draw_image, edit_json, load_family, plan, preprocess
from other_weights import copy_with_other_weights, read_weights
from safetensors.torch import load_file, save_file

from seesay import GenerationConfig, pipeline
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, RequestError
from seesay.values import MediaSize
from seesay.vl.families.kimi_vl import KimiVL

CPU = torch.device("cpu")
CONFIG = EngineConfig(device_type="cpu", block_size=16)


def of_published_sizes(limit: int) -> KimiVL:
    """The arithmetic of the published model, without its files."""
    family = KimiVL.__new__(KimiVL)
    family._limit, family._patch = limit, 14
    return family


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((28, 28), (1, 2, 2)), ((29, 28), (1, 4, 2)), ((896, 896), (1, 64, 64)), ((909, 909), (1, 66, 66)),
        ((1080, 1920), (1, 48, 86)), ((4000, 6000), (1, 54, 80)), ((1, 1), (1, 2, 2)), ((13, 7140), (1, 2, 510)),
    ],
)  # fmt: skip
def test_patches_of_pictures_of_published_sizes(size: tuple[int, int], grid: tuple[int, int, int]) -> None:
    measured = of_published_sizes(4096).measure(IMAGE, MediaSize(num_frames=1, height=size[0], width=size[1]), {})
    assert measured["grid"] == grid and measured["resized"] == (grid[1] * 14, grid[2] * 14)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((13, 7141), "a picture of 7141x13 pixels has a side of 512 patches, more than the 511 that this model has"),
        ((100_000, 5), "has a side of 7144 patches"),
        ((14, 20_000_000), "a side of no pixel when it is shrunk to 4096 patches of 14x14: crop or pad it"),
    ],
)
def test_pictures_that_are_too_thin(size: tuple[int, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        plan(of_published_sizes(4096), IMAGE, MediaSize(num_frames=1, height=size[0], width=size[1]))


@pytest.mark.parametrize("limit", [1, 7, 100, 4096, 16384])
def test_no_picture_has_more_patches_than_the_largest(limit: int) -> None:
    family = of_published_sizes(limit)
    most = family._count_patches(family.largest_size())
    edges = [14 * number + more for number in (*range(1, 40, 3), 100, 320, 509) for more in (-1, 0, 1)]
    assert max(family._count_patches((height, width)) for height in edges for width in edges) <= most < 3 * limit + 1100


def test_most_pixels_of_one_picture(load: Callable[[str], Loaded]) -> None:
    family, picture = load("kimi_vl").family, draw_image(40, 40)
    sizes = [preprocess(family, picture, {"max_pixels": most})["fitted"] for most in (1, 400, 1600, 1 << 20)]
    assert sizes == [(4, 4), (20, 20), (40, 40), (40, 40)]
    assert plan(family, IMAGE, picture.size, {"max_pixels": 400}).expansion.takes_embedding.sum() == 9


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("processor_config.json", {"pad_input": False}, "processor setting pad_input must be True, got False"),
        ("processor_config.json", {"pad_input": None}, "pad_input must be True, got None"),
        ("processor_config.json", {"patch_size": 8}, "patch_size must be 4, got 8"),
        ("processor_config.json", {"merge_kernel_size": [1, 1]}, r"merge_kernel_size must be \[2, 2\]"),
        ("processor_config.json", {"in_token_limit": 0}, "in_token_limit must be an integer from 1 to"),
        ("vision_config", {"model_type": "clip"}, "vision_config.model_type must be 'moonvit', got 'clip'"),
        ("vision_config", {"merge_kernel_size": [4, 4]}, r"vision_config.merge_kernel_size must be \[2, 2\]"),
        ("vision_config", {"init_pos_emb_width": 6}, "vision_config.init_pos_emb_width must be 5, got '6'"),
        ("vision_config", {"init_pos_emb_height": 1 << 20}, "init_pos_emb_height must be an integer from 1 to 1024"),
        ("text_config", {"scoring_func": "softmax"}, "scoring_func must be 'sigmoid', got 'softmax'"),
        ("text_config", {"moe_layer_freq": 2}, "moe_layer_freq must be 1, got '2'"),
        ("text_config", {"n_shared_experts": None}, "n_shared_experts must be an integer from 1 to 16384, got 'None'"),
        ("config.json", {"media_placeholder_token_id": 3}, "media_placeholder_token_id=3 of config.json is not the"),
        ("config.json", {"text_config": 5}, "text_config must be an object, got '5'"),
    ],
)  # fmt: skip
def test_other_settings_are_refused(
    file: str, change: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def apply(data: dict[str, Any]) -> None:
        part = data["image_processor"] if file == "processor_config.json" else data.get(file, data)
        part.update(change)

    name = file if file.endswith(".json") else "config.json"
    path = edit_json(tiny_checkpoint("kimi_vl"), tmp_path / "changed", name, apply)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_the_prompt_of_a_conversation(tiny_checkpoint: Callable[[str], Path]) -> None:
    """A place that is written without its tags stands for a picture, too."""
    picture = make_picture(8, 16, 1)
    with AsyncEngine(str(tiny_checkpoint("kimi_vl")), backend_config=CONFIG) as engine:
        [request] = parse([[make_message(picture, "what?")]])
        found = engine.tokenize(request).result(60)
        assert engine.tokenizer.decode(found.tolist(), skip_special_tokens=False) == (
            "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|><|im_user|>user<|im_middle|>"
            "<|media_start|>image<|media_content|><|media_pad|><|media_pad|><|media_end|>what?<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>"
        )


def damage(path: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    shutil.copytree(path, target)
    state = load_file(target / "model.safetensors")
    change(state)
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    return target


NORM = "language_model.model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop(NORM), f"tensor '{NORM}' is missing from the checkpoint"),
        (lambda state: state.update({NORM: torch.zeros(3)}), f"tensor '{NORM}' has shape .3., the config says .64."),
        (lambda state: state.update({NORM + "s": torch.zeros(3)}), f"unexpected tensor '{NORM}s'"),
    ],
)
def test_damaged_decoders_are_refused_by_name(
    change: Callable[[dict[str, torch.Tensor]], object],
    message: str,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    family, _ = load_family(damage(tiny_checkpoint("kimi_vl"), tmp_path / "damaged", change))
    with pytest.raises(CheckpointError, match=message):
        family.backbone().load_decoder(family.checkpoint, session_len=64, device=CPU, dtype=torch.float32)


def test_new_weights(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Of tower and decoder, also once they are freed and read again."""
    first = tiny_checkpoint("kimi_vl")
    second = copy_with_other_weights(first, tmp_path / "second")
    prompts: list[Any] = ["the game", ("what?", make_picture(20, 30, 1))]
    generation = GenerationConfig(max_new_tokens=6, ignore_eos=True)

    def answer(pipe: Any) -> list[list[int]]:
        return [list(each.token_ids) for each in pipe(prompts, generation)]

    with pipeline(str(second), backend_config=CONFIG) as pipe:
        expected = answer(pipe)
    with pipeline(str(first), backend_config=CONFIG) as pipe:
        before = answer(pipe)
        pipe.update_weights(read_weights(second).items())
        assert answer(pipe) == expected != before
        pipe.update_weights(first)
        assert answer(pipe) == before
        pipe.update_weights(second)
        pipe.sleep(2)
        pipe.wake_up()
        assert answer(pipe) == expected


def test_text_alone_without_the_tower(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", block_size=16, disable_vision_encoder=True)
    with AsyncEngine(str(tiny_checkpoint("kimi_vl")), backend_config=config) as engine:
        [text, picture] = ask(engine, parse(["the game", ("what?", make_picture(9, 9, 1))], max_new_tokens=3))
    assert text.error is None and picture.error is not None and "turned off" in str(picture.error)
